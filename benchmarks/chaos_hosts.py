"""Ten hosts and a controller's on one machine, for `chaos.py`: each with a network, processes, disk, shared memory,
sysfs and kernel log of its own, a real agent under a keeper that starts it again, and a power switch.

Daemons speak over mutual TLS with certificates from `holdfast certs`. All processes of a host are in its own pid
namespace: taking its power ends them at once and takes disk and memory along. If this process dies, all of it does.
"""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from common import child_pids, end, from_tests

from holdfast.base.config.client import ClientConfig
from holdfast.base.errors import HoldfastError
from holdfast.cli.common.client import Client

cables = from_tests("cables")
Sysfs = from_tests("agent.support.sysfs").Sysfs

ROOT = Path(__file__).parents[1]
HOLDFAST = (sys.executable, "-m", "holdfast")
RESTART_S = 0.5
_FREEZERS = Path("/sys/fs/cgroup/freezer")
_WITH_US = ("setpriv", "--pdeathsig", "KILL")
# The first process of a host: it makes the host's mounts, and reaps what loses its parent (SIGCHLD ignored does that).
_INIT = """
set -e
mount -t proc proc /proc
mount -t tmpfs -o size=64m,mode=755 disk {folder}/state
mount -t tmpfs -o size=1g memory /dev/shm
mount -t sysfs sysfs {folder}/sys
mount --bind {folder}/kmsg /dev/kmsg
touch {folder}/on
trap '' CHLD
exec sleep infinity
"""


def missing() -> str:
    """Why there can be no such hosts here; empty when there can."""
    return cables.missing() or ("" if cables.can_filter() else "needs nft (nftables)")


class Host:
    """One node: what its power switch, its kernel and its service manager do."""

    def __init__(self, name: str, switch: str, space: str, folder: Path, agent: list[str], env: dict[str, str]) -> None:
        self.name, self.switch, self.folder = name, switch, folder
        self._space, self._agent_words = space, agent
        self._env = env | {"CHAOS_HOST": str(folder), "PYTHONPATH": str(Path(__file__).parent / "chaos_site")}
        self._init: subprocess.Popen[bytes] | None = None
        self._agent: subprocess.Popen[bytes] | None = None
        self._again_at = 0.0
        for made in ("state", "sys", "fake/class"):
            (folder / made).mkdir(parents=True)
        Sysfs(folder / "fake").rdma("mlx5_0")
        (folder / "fake/class/net").symlink_to(folder / "sys/class/net")
        os.mkfifo(folder / "kmsg")

    @property
    def is_on(self) -> bool:
        return self._init is not None

    def power_on(self) -> None:
        ready = self.folder / "on"
        ready.unlink(missing_ok=True)
        for state in ("gpus.json", "clock"):
            (self.folder / state).unlink(missing_ok=True)
        words = [*_WITH_US, "nsenter", f"--net=/run/netns/{self._space}", "unshare", "--mount", "--pid", "--fork",
                 "--kill-child", "sh", "-c", _INIT.format(folder=self.folder)]  # fmt: skip
        self._init = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + 10
        while not ready.exists():
            if self._init.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} does not come up")
            time.sleep(0.01)
        self._start()

    def power_off(self) -> None:
        """All at once: the kernel ends all processes of a pid namespace with its first one."""
        if self._init is not None:
            self._init.kill()
            self._init.wait()
            self._init = None
        if self._agent is not None:
            self._agent.wait()
            self._agent = None

    def _start(self) -> None:
        assert self._init is not None
        (first,) = child_pids(self._init.pid)
        with open(self.folder / "log", "ab") as log:
            self._agent = subprocess.Popen(
                ["nsenter", "-t", str(first), "-m", "-n", "-p", *self._agent_words],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._env, start_new_session=True,
            )  # fmt: skip

    def keep(self) -> None:
        """What a service manager does: an agent that died is started again, after a moment."""
        if self._init is None or self._agent is None or self._agent.poll() is None:
            return
        if not self._again_at:
            self._again_at = time.monotonic() + RESTART_S
        elif time.monotonic() > self._again_at:
            self._again_at = 0.0
            self._start()

    def go_on(self) -> None:
        """An agent that was stopped runs again; so does the parent that stopped with it."""
        assert self._agent is not None
        for pid in (*child_pids(self._agent.pid), self._agent.pid):
            os.kill(pid, signal.SIGCONT)

    def processes(self, word: str, where: str = "cmdline") -> list[int]:
        """This host's processes that have the word in their command line, or in their memory maps (`where`); the agent
        is none of them."""
        assert self._init is not None
        (first,) = child_pids(self._init.pid)
        own = os.readlink(f"/proc/{first}/ns/pid")
        agent = child_pids(self._agent.pid) if self._agent is not None else []
        found = []
        for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()):
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/ns/pid") == own and word in Path(f"/proc/{pid}/{where}").read_text():
                    found.append(pid)
        return sorted(pid for pid in found if pid not in agent)

    @property
    def disk(self) -> Path:
        """Its state folder, which is mounted nowhere else."""
        assert self._init is not None
        (first,) = child_pids(self._init.pid)
        return Path(f"/proc/{first}/root{self.folder}/state")

    def gpus(self, **said: object) -> None:
        """How the first of its two GPUs is from now on; nothing: well."""
        _put(self.folder / "gpus.json", json.dumps([said, {}]))

    def clock(self, ahead_s: float) -> None:
        _put(self.folder / "clock", str(ahead_s))

    def counter(self, path: str) -> Path:
        """A file of its RDMA port in sysfs."""
        return self.folder / "fake/class/infiniband/mlx5_0/ports/1" / path


def _put(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


class Hosts:
    """`names` of hosts, every second one of them under the other switch; the controller is under the first."""

    def __init__(self, folder: Path, count: int, controller_flags: list[str]) -> None:
        self.folder = folder
        self.names = [f"n{i}" for i in range(count)]
        # Half of the hosts under each switch, and a spare under each: the last two.
        half = (count - 2) // 2
        switch = {name: "s0" if i < half or i == count - 2 else "s1" for i, name in enumerate(self.names)}
        self.cables = cables.Cables({"ctl": "s0", **switch})
        self.hosts: dict[str, Host] = {}
        self._flags = controller_flags
        self._controller: subprocess.Popen[bytes] | None = None
        self._again_at = 0.0
        self._freezer = _FREEZERS / f"holdfast-chaos-{uuid.uuid4().hex[:6]}"
        self._stack = ExitStack()
        self._env = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
        self._env |= {"HOLDFAST_CONFIG": "", "HOLDFAST_LOG_FORMAT": "json"}
        certs = folder / "certs"
        self.client = Client(
            ClientConfig(controller=f"{self.cables.addresses['ctl']}:7080", tls_ca=certs / "operator" / "ca.pem",
                         api_token_file=certs / "operator" / "api-token"), timeout=5.0,
        )  # fmt: skip

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _build(self) -> None:
        certs, address = self.folder / "certs", self.cables.addresses["ctl"]
        nodes = [word for name in self.names for word in ("--node", name)]
        words = [*HOLDFAST, "certs", "--dir", str(certs), "--host", address, *nodes]
        subprocess.run(words, check=True, env=self._env, stdout=subprocess.DEVNULL)
        self.cables.lay()
        # From here on this process is on the controller's host, as an operator would be.
        self._stack.enter_context(cables.inside(self.cables.space("ctl")))
        self.start_controller()
        for name in self.names:
            folder = self.folder / "hosts" / name
            switch = self.cables.switch_of[name]
            words = [*HOLDFAST, "agent", "--controller", f"{address}:7070", "--node-name", name, "--switch", switch,
                     "--slots", "1", "--nics", "eth0", "--sample-interval", "0.01",
                     *_tls(certs / "nodes" / name, "node"),
                     "--state-dir", str(folder / "state"), "--sysfs-root", str(folder / "fake")]  # fmt: skip
            self.hosts[name] = Host(name, switch, self.cables.space(name), folder, words, self._env)
            self.hosts[name].power_on()
        self.wait("all hosts up", 120, lambda: self.well(self.names))

    def start_controller(self) -> None:
        its = self.folder / "certs" / "controller"
        words = [*HOLDFAST, "controller", "--listen-host", self.cables.addresses["ctl"], "--grpc-port", "7070",
                 "--http-port", "7080", "--state-dir", str(self.folder / "ctl"), *_tls(its, "controller"),
                 "--api-token-file", str(its / "api-token"), *self._flags]  # fmt: skip
        with open(self.folder / "ctl.log", "ab") as log:
            self._controller = subprocess.Popen([*_WITH_US, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                env=self._env, start_new_session=True)  # fmt: skip

    def kill_controller(self) -> None:
        assert self._controller is not None
        self._controller.kill()
        self._controller.wait()

    def keep(self) -> None:
        for host in self.hosts.values():
            host.keep()
        if self._controller is not None and self._controller.poll() is not None:
            if not self._again_at:
                self._again_at = time.monotonic() + RESTART_S
            elif time.monotonic() > self._again_at:
                self._again_at = 0.0
                self.start_controller()

    def wait(self, what: str, seconds: float, question: Callable[[], Any]) -> Any:
        """The first answer that is true. TimeoutError. Keeps the daemons meanwhile; no controller is no answer."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.keep()
            with suppress(HoldfastError):
                if answer := question():
                    return answer
            time.sleep(0.15)  # each question costs the controller's processor, too
        raise TimeoutError(f"{what}: not within {seconds:g} s")

    def well(self, names: list[str]) -> bool:
        states = {node["name"]: node["state"] for node in self.client.nodes()}
        return all(states.get(name) in ("healthy", "spare") for name in names)

    def freeze(self, pids: list[int]) -> None:
        """The kernel holds these processes (state D): not even SIGKILL ends them."""
        self._freezer.mkdir(exist_ok=True)
        for pid in pids:
            (self._freezer / "cgroup.procs").write_text(str(pid))
        (self._freezer / "freezer.state").write_text("FROZEN")

    def thaw(self) -> None:
        if self._freezer.exists():
            (self._freezer / "freezer.state").write_text("THAWED")

    def repair(self) -> None:
        """Everything as new: power, cables, filters; an evicted host may serve again."""
        self.thaw()
        self.cables.join(True)
        states = self.client.status()["nodes"]
        for name, host in self.hosts.items():
            self.cables.plug(name, True)
            self.cables.refuse(name, [])
            if states.get(name) == "faulty":  # as after a reset of its GPU, or a reboot
                host.power_off()
            if not host.is_on:
                host.power_on()
        self.wait("repaired hosts", 60, lambda: all(node["connected"] for node in self.client.nodes()))
        for name in self.names:
            self.client.cordon(name, False)
        self.wait("repaired hosts", 60, lambda: self.well(self.names))

    def close(self) -> None:
        self.thaw()
        self.client.close()
        for host in self.hosts.values():
            host.power_off()
        if self._controller is not None:
            end(self._controller)
        self._stack.close()
        self.cables.close()
        deadline = time.monotonic() + 5
        while self._freezer.exists() and time.monotonic() < deadline:
            with suppress(OSError):
                self._freezer.rmdir()
            time.sleep(0.05)


def _tls(folder: Path, name: str) -> list[str]:
    files = {"--tls-ca": "ca", "--tls-cert": name, "--tls-key": f"{name}-key"}
    return [word for flag, file in files.items() for word in (flag, str(folder / f"{file}.pem"))]
