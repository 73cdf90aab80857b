"""Hosts on one machine: a network namespace each, under two bridges ("switches") that are joined, every link limited
by tc to the same rate; a controller and an agent in each run for real. Root only; all of it goes away with `close()`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]
SUBNET = "10.77.0"
RATE, SLOW_RATE = "200mbit", "60mbit"
_CGROUPS = Path("/sys/fs/cgroup")


def missing() -> str:
    """Why no such hosts can be had here; empty when they can."""
    if os.geteuid() != 0:
        return "needs root"
    if not shutil.which("ip") or not shutil.which("tc"):
        return "needs ip and tc (iproute2)"
    name = f"hf{uuid.uuid4().hex[:6]}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return "cannot make network namespaces"
    try:
        return "" if _run("ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", RATE,
                          "burst", "64kb", "latency", "1s") else "tc has no token bucket here"  # fmt: skip
    finally:
        _run("ip", "netns", "del", name)


def _run(*words: str, stdin: str = "") -> bool:
    return subprocess.run(words, input=stdin.encode(), capture_output=True, check=False).returncode == 0


def _must(*words: str, stdin: str = "") -> None:
    done = subprocess.run(words, input=stdin, text=True, capture_output=True, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}"


class Fabric:
    """`hosts` agents called n0, n1, ...; the lower half under switch s0, the rest under s1."""

    def __init__(self, folder: Path, hosts: int = 8) -> None:
        self.folder, self.names = folder, [f"n{i}" for i in range(hosts)]
        self._mark = f"hf{uuid.uuid4().hex[:5]}"
        self._running: list[subprocess.Popen[bytes]] = []
        self._pids: dict[str, int] = {}
        self._cgroup = ""
        self._http = ""

    def __enter__(self) -> Self:
        try:
            self._build()
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def space(self, name: str) -> str:
        return f"{self._mark}-{name}"

    # --- cables ----------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        switches = self.space("sw")
        _must("ip", "netns", "add", switches)
        inside = ("ip", "-n", switches, "link")
        for bridge in ("s0", "s1"):
            _must(*inside, "add", bridge, "type", "bridge")
            _must(*inside, "set", bridge, "up")
        _must(*inside, "add", "up0", "type", "veth", "peer", "name", "up1")
        for index in ("0", "1"):
            _must(*inside, "set", f"up{index}", "master", f"s{index}", "up")
        for index, name in enumerate(["ctl", *self.names]):
            switch = 0 if index == 0 else (index - 1) * 2 // len(self.names)
            self._plug(name, f"{SUBNET}.{index + 1}", switch)

    def _plug(self, name: str, address: str, switch: int) -> None:
        space, port = self.space(name), f"p-{name}"
        _must("ip", "netns", "add", space)
        peer = ("peer", "name", port, "netns", self.space("sw"))
        _must("ip", "-n", space, "link", "add", "eth0", "type", "veth", *peer)
        _must("ip", "-n", self.space("sw"), "link", "set", port, "master", f"s{switch}", "up")
        _must("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _must("ip", "-n", space, "link", "set", device, "up")
        if name != "ctl":
            self.limit(name, RATE)

    def limit(self, name: str, rate: str) -> None:
        """Both ways of a host's link."""
        shape = ("root", "tbf", "rate", rate, "burst", "64kb", "latency", "1s")
        _must("tc", "-n", self.space(name), "qdisc", "replace", "dev", "eth0", *shape)
        _must("tc", "-n", self.space("sw"), "qdisc", "replace", "dev", f"p-{name}", *shape)

    @staticmethod
    def can_lose() -> bool:
        return shutil.which("nft") is not None

    def lose(self, name: str, per_thousand: int) -> None:
        """So many of a thousand packets to this host get lost; 0: none."""
        space = ("ip", "netns", "exec", self.space(name), "nft")
        _run(*space, "delete", "table", "inet", "loss")
        if per_thousand:
            rule = f"numgen random mod 1000 < {per_thousand} drop"
            table = (
                f"table inet loss {{\n chain in {{\n  type filter hook input priority 0\n  iif eth0 {rule}\n }}\n}}\n"
            )
            _must(*space, "-f", "-", stdin=table)

    # --- processors ------------------------------------------------------------------------------------------------

    @staticmethod
    def can_throttle() -> bool:
        return any((_CGROUPS / place).exists() for place in ("cpu/cpu.cfs_quota_us", "cpu/tasks", "cgroup.controllers"))

    def throttle(self, name: str, share: float) -> None:
        """Give a host's agent, and all that it starts, this share of one processor; 0: all it can get."""
        one = (_CGROUPS / "cgroup.controllers").exists()
        group = _CGROUPS / ("" if one else "cpu") / f"{self._mark}-slow"
        if not share:
            if self._cgroup:
                self._move(self._pids[name], group.parent)
            return
        group.mkdir(exist_ok=True)
        self._cgroup = str(group)
        period = 20_000
        if one:
            with suppress(OSError):
                (group.parent / "cgroup.subtree_control").write_text("+cpu")
            (group / "cpu.max").write_text(f"{int(share * period)} {period}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(period))
            (group / "cpu.cfs_quota_us").write_text(str(int(share * period)))
        self._move(self._pids[name], group)

    @staticmethod
    def _move(pid: int, group: Path) -> None:
        # Threads too: in a version 1 hierarchy each is moved on its own by `tasks`, all at once by `cgroup.procs`.
        (group / "cgroup.procs").write_text(str(pid))

    def multiply_wrongly(self, name: str, on: bool) -> None:
        flag = self.folder / name / "wrong"
        flag.touch() if on else flag.unlink(missing_ok=True)

    def break_hosts(self, victims: dict[str, str]) -> None:
        """Fault -> host."""
        for fault, name in victims.items():
            match fault:
                case "slow link":
                    self.limit(name, SLOW_RATE)
                case "lossy link":
                    self.lose(name, 10)
                case "slow processor":
                    self.throttle(name, 0.3)
                case "wrong numbers":
                    self.multiply_wrongly(name, True)
                case _:
                    raise ValueError(fault)

    def mend_hosts(self, victims: dict[str, str]) -> None:
        for name in victims.values():
            self.limit(name, RATE)
            self.lose(name, 0)
            self.throttle(name, 0.0)
            self.multiply_wrongly(name, False)

    # --- daemons ---------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        env = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
        env |= {"HOLDFAST_CONFIG": "", "HOLDFAST_LOG_FORMAT": "json"}
        where = f"{SUBNET}.1"
        words = ["controller", "--listen-host", where, "--insecure", "--grpc-port", "7070", "--http-port", "7080"]
        self._daemon("ctl", words, env)
        self._http = f"{where}:7080"
        for name, index in zip(self.names, range(len(self.names)), strict=True):
            words = ["agent", "--controller", f"{where}:7070", "--insecure", "--node-name", name, "--slots", "1"]
            words += ["--switch", f"s{index * 2 // len(self.names)}", "--no-warm", "--sample-interval", "0.05"]
            (self.folder / name).mkdir(parents=True, exist_ok=True)
            wrong = {
                "PYTHONPATH": str(Path(__file__).parent / "wrong_numbers"),
                "WRONG_NUMBERS_IF": str(self.folder / name / "wrong"),
                "OPENBLAS_NUM_THREADS": "1",
            }
            self._pids[name] = self._daemon(name, words, env | wrong)
        deadline = time.monotonic() + 60
        while [n["state"] for n in self.ask("nodes")] != ["healthy"] * len(self.names):
            assert time.monotonic() < deadline, f"not all hosts came up: {self.ask('nodes')}"
            time.sleep(0.2)

    def _daemon(self, name: str, words: list[str], env: dict[str, str]) -> int:
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        command = ["ip", "netns", "exec", self.space(name), sys.executable, "-m", "holdfast", *words]
        with open(folder / "log", "ab") as log:
            process = subprocess.Popen(
                [*command, "--state-dir", str(folder)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                start_new_session=True, cwd=ROOT,
            )  # fmt: skip
        self._running.append(process)
        return process.pid

    def ask(self, *words: str, timeout: float = 120.0) -> Any:
        """A command of ours with --json, on the controller's host; what it prints. Exit codes 0 and 1 are answers."""
        command = ["ip", "netns", "exec", self.space("ctl"), sys.executable, "-m", "holdfast", *words, "--json"]
        env = {**os.environ, "HOLDFAST_CONTROLLER": self._http}
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=env, cwd=ROOT, check=False)
        # While the controller comes up there are no nodes yet; anything else must answer.
        assert done.stdout or words == ("nodes",), done.stderr.strip()
        return json.loads(done.stdout or "[]")

    def close(self) -> None:
        for process in reversed(self._running):
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in self._running:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
        for line in spaces.splitlines():
            if line.startswith(f"{self._mark}-"):
                _run("ip", "netns", "del", line.split()[0])
        if self._cgroup:
            with suppress(OSError):
                os.rmdir(self._cgroup)
