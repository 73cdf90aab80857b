"""Hosts on one machine: a network namespace each, under two bridges ("switches") that are joined, every link limited
by tc to the same rate; a controller and an agent in each run for real. Root only; all of it goes away with `close()`.
"""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from holdfast.cli.local import leftovers
from tests.cables import RATE, Cables, can_filter, missing

__all__ = ["Fabric", "missing"]

ROOT = Path(__file__).parents[3]
SLOW_RATE = "60mbit"
_CGROUPS = Path("/sys/fs/cgroup")


class Fabric:
    """`hosts` agents called n0, n1, ...; the lower half under switch s0, the rest under s1."""

    def __init__(self, folder: Path, hosts: int = 8, says_switches: bool = False) -> None:
        """`says_switches`: agents name their switch, so that pairs are tested across. As all are on one machine they
        are measured one after the other, and eight hosts take more than a minute."""
        self._says_switches = says_switches
        self.folder, self.names = folder, [f"n{i}" for i in range(hosts)]
        self.switch_of = {name: f"s{i * 2 // hosts}" for i, name in enumerate(self.names)}
        self.cables = Cables({"ctl": "s0", **self.switch_of})
        self._running: list[subprocess.Popen[bytes]] = []
        self._pids: dict[str, int] = {}
        self._cgroup = ""
        self._http = ""
        self._mark = f"HOLDFAST_E2E={uuid.uuid4().hex}"

    def __enter__(self) -> Self:
        try:
            self.cables.lay()
            for name in self.names:
                self.cables.limit(name, RATE)
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @staticmethod
    def can_lose() -> bool:
        return can_filter()

    # --- processors ------------------------------------------------------------------------------------------------

    @staticmethod
    def can_throttle() -> bool:
        return any((_CGROUPS / place).exists() for place in ("cpu/cpu.cfs_quota_us", "cpu/tasks", "cgroup.controllers"))

    def throttle(self, name: str, share: float) -> None:
        """Give a host's agent, and all that it starts, this share of one processor; 0: all it can get."""
        one = (_CGROUPS / "cgroup.controllers").exists()
        group = _CGROUPS / ("" if one else "cpu") / self.cables.space("slow")
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
                    self.cables.limit(name, SLOW_RATE)
                case "lossy link":
                    self.cables.lose(name, 10)
                case "slow processor":
                    self.throttle(name, 0.3)
                case "wrong numbers":
                    self.multiply_wrongly(name, True)
                case _:
                    raise ValueError(fault)

    def mend_hosts(self, victims: dict[str, str]) -> None:
        for name in victims.values():
            self.cables.limit(name, RATE)
            self.cables.lose(name, 0)
            self.throttle(name, 0.0)
            self.multiply_wrongly(name, False)

    # --- daemons ---------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        env = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
        env |= {"HOLDFAST_CONFIG": "", "HOLDFAST_LOG_FORMAT": "json", **dict([self._mark.split("=")])}
        where = self.cables.addresses["ctl"]
        words = ["controller", "--listen-host", where, "--insecure", "--grpc-port", "7070", "--http-port", "7080"]
        self._daemon("ctl", words, env)
        self._http = f"{where}:7080"
        for name, switch in self.switch_of.items():
            words = ["agent", "--controller", f"{where}:7070", "--insecure", "--node-name", name, "--slots", "1"]
            words += ["--switch", switch] * self._says_switches + ["--no-warm", "--sample-interval", "0.05"]
            (self.folder / name).mkdir(parents=True, exist_ok=True)
            wrong = {
                "PYTHONPATH": str(Path(__file__).parent / "wrong_numbers"),
                "WRONG_NUMBERS_IF": str(self.folder / name / "wrong"),
                "OPENBLAS_NUM_THREADS": "1",
            }
            self._pids[name] = self._daemon(name, words, env | wrong)
        deadline = time.monotonic() + 180  # nine daemons, on a busy machine
        while [n["state"] for n in self.ask("nodes")] != ["healthy"] * len(self.names):
            assert time.monotonic() < deadline, f"not all hosts came up: {self.ask('nodes')}"
            time.sleep(0.2)

    def _daemon(self, name: str, words: list[str], env: dict[str, str]) -> int:
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        command = ["ip", "netns", "exec", self.cables.space(name), sys.executable, "-m", "holdfast", *words]
        with open(folder / "log", "ab") as log:
            process = subprocess.Popen(
                [*command, "--state-dir", str(folder)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env,
                start_new_session=True, cwd=ROOT,
            )  # fmt: skip
        self._running.append(process)
        return process.pid

    def ask(self, *words: str, timeout: float = 120.0) -> Any:
        """A command of ours with --json, on the controller's host; what it prints. Exit codes 0 and 1 are answers."""
        command = ["ip", "netns", "exec", self.cables.space("ctl"), sys.executable, "-m", "holdfast", *words, "--json"]
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
        leftovers.end_marked(self._mark)  # fork servers outlive their agents
        self.cables.close()
        if self._cgroup:
            with suppress(OSError):
                os.rmdir(self._cgroup)
