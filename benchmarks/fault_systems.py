"""The launchers that `benchmarks/faults.py` compares, each as its own users start it: an agent a node, one script.

A node is a process and all that it started, found by a mark in the environment: losing one is SIGKILL to them all.
"""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from common import end, free_port

SCRIPT = Path(__file__).parent / "workers" / "toy_ddp.py"
MARK = "FAULTS_NODE"
ROOT = Path(__file__).parents[1]


class System:
    """`nodes` with `per` workers each, and perhaps one node more that waits. All under `folder`."""

    name = ""
    tuned = ""
    """What was set other than the defaults, for the table."""
    spares = True
    """Whether a node that waits can take a lost one's place."""

    def __init__(self, folder: Path, nodes: int, per: int, spare: bool, shrink: bool) -> None:
        self.folder, self.nodes, self.per, self.spare, self.shrink = folder, nodes, per, spare, shrink
        self.processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True)

    @classmethod
    def missing(cls) -> str:
        """Why it cannot run here; empty when it can."""
        return ""

    def begin(self) -> None:
        raise NotImplementedError

    @property
    def counts(self) -> str:
        """`--nnodes` as torchrun has it."""
        return f"1:{self.nodes}" if self.shrink else str(self.nodes)

    def run(self, what: str, argv: list[str], **env: str) -> subprocess.Popen[bytes]:
        own = {key: value for key, value in os.environ.items() if not key.startswith(("HOLDFAST_", "TORCHELASTIC_"))}
        own |= {"OMP_NUM_THREADS": "1", MARK: f"{self.folder}:{what}", "PYTHONPATH": str(ROOT), **env}
        with open(self.folder / f"{what}.log", "ab") as log:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=own,
                                       start_new_session=True)  # fmt: skip
        self.processes.append(process)
        return process

    def on_node(self, number: int) -> list[int]:
        return marked(f"{self.folder}:node{number}")

    def has_ended(self) -> bool:
        """Did it give up? Its log says why."""
        return all(process.poll() is not None for process in self.processes)

    def close(self) -> None:
        for process in self.processes:
            end(process, 5.0)
        for pid in marked(f"{self.folder}:"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while marked(f"{self.folder}:") and time.monotonic() < deadline:
            time.sleep(0.05)


def marked(mark: str) -> list[int]:
    """Processes with this mark, themselves or by whom they were started. Zombies have none left."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if any(pair.startswith(wanted) for pair in (entry / "environ").read_bytes().split(b"\0")):
                    found.append(int(entry.name))
    return found


class Holdfast(System):
    name = "holdfast"

    def begin(self) -> None:
        command = [sys.executable, "-m", "holdfast"]
        grpc, http = free_port(), free_port()
        ports = ["--grpc-port", str(grpc), "--http-port", str(http)]
        self.run("controller", [*command, "controller", *ports, "--state-dir", str(self.folder / "controller")])
        for number in range(self.nodes + self.spare):
            where = ["--controller", f"127.0.0.1:{grpc}", "--state-dir", str(self.folder / f"node{number}")]
            node = ["--node-name", f"node{number}", "--slots", str(self.per)]
            self.run(f"node{number}", [*command, "agent", *where, *node])
        self.wait_for_nodes(http)
        job = ["run", "--controller", f"127.0.0.1:{http}", "--nnodes", self.counts, "--nproc-per-node", str(self.per)]
        self.run("job", [*command, *job, str(SCRIPT), "--folder", str(self.folder)])

    def wait_for_nodes(self, http: int) -> None:
        from holdfast.cli.client import Client
        from holdfast.config import ClientConfig
        from holdfast.errors import HoldfastError

        deadline = time.monotonic() + 60
        with Client(ClientConfig(controller=f"127.0.0.1:{http}"), timeout=5.0) as client:
            while time.monotonic() < deadline:
                with suppress(HoldfastError):
                    if sum(node["connected"] for node in client.nodes()) == self.nodes + self.spare:
                        return
                time.sleep(0.1)
        raise SystemExit("holdfast: the agents did not come up")


class Elastic(System):
    """Launchers that are torchrun, or grew out of it: one on each node, which meet at an address."""

    launcher: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()

    def begin(self) -> None:
        where = f"127.0.0.1:{free_port()}"
        argv = [*self.launcher, "--nnodes", self.counts, "--nproc-per-node", str(self.per), "--max-restarts", "1000"]
        argv += ["--rdzv-backend", "c10d", "--rdzv-endpoint", where, "--rdzv-id", "faults", *self.extra]
        argv += [str(SCRIPT), "--folder", str(self.folder)]
        for number in range(self.nodes + self.spare):
            self.run(f"node{number}", argv)
            if number + 1 == self.nodes:
                time.sleep(3.0)  # who comes later is the spare


class Torchrun(Elastic):
    name = "torchrun"
    launcher = (sys.executable, "-m", "torch.distributed.run")


class Nvrx(Elastic):
    """NVIDIA's resiliency extension, as a job's launcher. Its default limit for a hang is 45 minutes."""

    name = "nvrx"
    tuned = "heartbeat 5 s, check 1 s"
    extra = (
        "--ft-param-workload_check_interval", "1", "--ft-param-initial_rank_heartbeat_timeout", "60",
        "--ft-param-rank_heartbeat_timeout", "5", "--ignore-missing-fault-tol-cfg",
    )  # fmt: skip
    launcher = tuple(filter(None, (os.environ.get("FAULTS_NVRX") or shutil.which("ft_launcher"),)))

    @classmethod
    def missing(cls) -> str:
        return "" if cls.launcher else "no ft_launcher (pip install nvidia-resiliency-ext; FAULTS_NVRX names another)"


class Dlrover(System):
    """DLRover's launcher on one node, with the master that it starts itself."""

    name = "dlrover"
    spares = False
    launcher = os.environ.get("FAULTS_DLROVER") or shutil.which("dlrover-run")

    @classmethod
    def missing(cls) -> str:
        return "" if cls.launcher else "no dlrover-run (pip install dlrover; FAULTS_DLROVER names another)"

    def begin(self) -> None:
        assert self.launcher is not None
        argv = [self.launcher, "--standalone", "--nnodes", "1", "--nproc-per-node", str(self.nodes * self.per)]
        argv += ["--max-restarts", "1000", str(SCRIPT), "--folder", str(self.folder)]
        self.run("node0", argv)


SYSTEMS: tuple[type[System], ...] = (Holdfast, Torchrun, Nvrx, Dlrover)


def has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None
