"""The launchers that `benchmarks/faults.py` compares, each as its own users start it: an agent a node, one script.

A node is a process and all that it started, found by a mark in the environment: losing one is SIGKILL to them all.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from common import end, free_port

from holdfast.cli.local.leftovers import remove_shared_memory

SCRIPT = Path(__file__).parent / "workers" / "toy_ddp.py"
PEERS = str(Path(__file__).with_name("peers.py"))
EVERY = 10  # steps between checkpoints, as the script has it
MARK = "FAULTS_NODE"
ROOT = Path(__file__).parents[1]


class System:
    """`nodes` with `per` workers each, and perhaps one node more that waits. All under `folder`."""

    name = ""
    module = ""
    """What must be there to import, beside PyTorch."""
    tuned = ""
    """What was set other than the defaults, for the table."""
    only_if_named = False
    cannot: ClassVar[dict[str, str]] = {}
    """Faults that it has no answer to by design, and why."""
    every = EVERY
    """Steps between two states that outlive a fault."""

    def __init__(self, folder: Path, nodes: int, per: int, spare: bool, shrink: bool) -> None:
        self.folder, self.nodes, self.per, self.spare, self.shrink = folder, nodes, per, spare, shrink
        self.processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True)

    @classmethod
    def python(cls) -> str:
        return os.environ.get(f"FAULTS_{cls.name.upper().replace('-', '_')}", sys.executable)

    @classmethod
    def missing(cls) -> str:
        """Why it cannot run here; empty when it can."""
        question = "import sys; from importlib.util import find_spec as f; sys.exit(not all(map(f, sys.argv[1:])))"
        wanted = [name for name in ("torch", cls.module) if name]
        found = subprocess.run([cls.python(), "-c", question, *wanted], capture_output=True).returncode == 0
        return "" if found else f"{cls.python()} has no {' or no '.join(wanted)}"

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
            process.terminate()
        deadline = time.monotonic() + 5
        for process in self.processes:
            end(process, max(0.0, deadline - time.monotonic()))
        for pid in marked(f"{self.folder}:"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while marked(f"{self.folder}:") and time.monotonic() < deadline:
            time.sleep(0.05)


def marked(mark: str) -> list[int]:
    """Processes with this mark, their own or inherited from their parent. Zombies have none left."""
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

    def close(self) -> None:
        """Its daemons ended without a word: what nodes keep in memory for their successors has no owner now."""
        super().close()
        names = [f"node{number}" for number in range(self.nodes + self.spare)]
        for name in names:
            remove_shared_memory(self.folder / name, name)

    def wait_for_nodes(self, http: int) -> None:
        from holdfast.base.config.client import ClientConfig
        from holdfast.base.errors import HoldfastError
        from holdfast.cli.common.client import Client

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

    launcher: tuple[str, ...] = ("-m", "torch.distributed.run")
    extra: tuple[str, ...] = ()
    environment: ClassVar[dict[str, str]] = {}

    def begin(self) -> None:
        where = f"127.0.0.1:{free_port()}"
        for number in range(self.nodes + self.spare):
            argv = [self.python(), *self.launcher, "--nnodes", self.counts, "--nproc-per-node", str(self.per)]
            argv += ["--max-restarts", "1000", "--rdzv-backend", "c10d", "--rdzv-endpoint", where]
            # On one host each would take the address for its own; the first is to be the one that stays.
            argv += ["--rdzv-id", "faults", "--rdzv-conf", f"is_host={number == 0}", *self.extra]
            self.run(f"node{number}", [*argv, str(SCRIPT), "--folder", str(self.folder)], **self.environment)
            if number + 1 == self.nodes:
                time.sleep(3.0)  # the one that comes later is the spare


class Torchrun(Elastic):
    """Its workers meet in a store of their own. By default they share the launchers', in which the addresses of those
    before them still stand when they start again."""

    name = "torchrun"
    tuned = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1; without it see torchrun-defaults"
    environment: ClassVar[dict[str, str]] = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class TorchrunDefaults(Elastic):
    name = "torchrun-defaults"
    only_if_named = True


class Nvrx(Elastic):
    """NVIDIA's resiliency extension, as a job's launcher. Its default limit for a hang is 45 minutes."""

    name = "nvrx"
    module = "nvidia_resiliency_ext"
    launcher = ("-m", "nvidia_resiliency_ext.fault_tolerance.launcher")
    tuned = "heartbeat 5 s, check 1 s"
    extra = (
        "--ft-param-workload_check_interval", "1", "--ft-param-initial_rank_heartbeat_timeout", "60",
        "--ft-param-rank_heartbeat_timeout", "5", "--ignore-missing-fault-tol-cfg",
    )  # fmt: skip


class Dlrover(System):
    """DLRover's launcher on one node, with the master that it starts itself."""

    name = "dlrover"
    module = "dlrover"
    tuned = "one node of all workers; an argument that its release does not know of given to torch's SubprocessHandler"
    cannot: ClassVar[dict[str, str]] = dict.fromkeys(
        ("node-spare", "node-shrink"), "its nodes come from Kubernetes or Ray; one alone has no other"
    )

    def begin(self) -> None:
        argv = [self.python(), PEERS, "dlrover", "--standalone", "--nnodes", "1"]
        argv += ["--nproc-per-node", str(self.nodes * self.per), "--max-restarts", "1000"]
        self.run("node0", [*argv, str(SCRIPT), "--folder", str(self.folder)])


class Torchft(System):
    """Every worker a replica group with a launcher of its own, around one lighthouse, as its example has it."""

    name = "torchft"
    module = "torchft"
    tuned = "as its example: 5 s for a collective, 10 s for all else; lighthouse joins within 10 s"
    every = 1

    def begin(self) -> None:
        port = free_port()
        where = f"http://127.0.0.1:{port}"
        self.run("lighthouse", [self.python(), PEERS, "torchft-lighthouse", f"127.0.0.1:{port}"])
        world = self.nodes * self.per
        for number in range(world + self.per * self.spare):
            launcher = ["-m", "torch.distributed.run", "--nproc-per-node", "1", "--max-restarts", "1000"]
            launcher += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
            script = [str(SCRIPT.with_name("toy_torchft.py")), "--folder", str(self.folder)]
            script += ["--group", str(number), *(["--fixed", str(world)] if self.spare else [])]
            what = f"node{number // self.per}-{number}"
            self.run(what, [self.python(), *launcher, *script], TORCHFT_LIGHTHOUSE=where)


class LmResiliency(System):
    """A rendezvous for torchrun, with checks and checkpoints that hook themselves into the script (0.2.0)."""

    name = "lm-resiliency"

    @classmethod
    def missing(cls) -> str:
        return "checks and checkpoints need NCCL; a restart waits for the plan of a coordinator that is the user's"


SYSTEMS: tuple[type[System], ...] = (Holdfast, Torchrun, TorchrunDefaults, Nvrx, Dlrover, Torchft, LmResiliency)
