"""The kernel's log from /dev/kmsg: GPU faults, OOM kills, and lines for the host's log rules.

Reading starts at the end: what happened before the agent started is not reported. Pids in the kernel log count in the
host's pid namespace; inside a container only `OomWatch` (cgroup counters) finds OOM kills.
"""

import asyncio
import errno
import os
import re
import time
from dataclasses import dataclass

from holdfast.agent.collectors.files import read_text
from holdfast.agent.logs.rules import Rules
from holdfast.facts import sxid, xid
from holdfast.wire.types import LogMatched, Severity

# Out of memory: Killed process 4242 (python3) total-vm:8123kB, anon-rss:7000kB ...
# Memory cgroup out of memory: Killed process 4242 (python3) total-vm:8123kB ...
_OOM = re.compile(r"(?:Memory cgroup out of memory|Out of memory)[^:]*: Killed process (\d+) \(([^)]*)\)")
KEPT_PIDS = 256
MAX_RECORDS = 4096
"""Records read in one poll: a log storm must not hold up the agent."""


@dataclass(frozen=True, slots=True)
class KernelLine:
    """One record. `mono` is the kernel's clock in seconds (CLOCK_MONOTONIC), `level` 0 (emergency) to 7.
    `written`: a program wrote it into /dev/kmsg; the kernel never lets one write as the kernel itself."""

    mono: float
    level: int
    text: str
    written: bool = False


@dataclass(frozen=True, slots=True)
class OomKill:
    pid: int
    name: str
    cgroup: bool


def oom_kill(text: str) -> OomKill | None:
    """The OOM kill that a kernel line reports, or None."""
    if "Killed process" not in text or (match := _OOM.search(text)) is None:
        return None
    return OomKill(int(match[1]), match[2], "Memory cgroup" in text)


def parse_record(record: str) -> KernelLine | None:
    """A /dev/kmsg record ("6,1234,5678901,-;text"), or None for its continuation lines and noise."""
    head, separator, text = record.partition(";")
    fields = head.split(",")
    if not separator or len(fields) < 3 or head.startswith(" "):
        return None
    try:
        priority = int(fields[0])  # the facility's number above the level's three bits; 0: the kernel
        return KernelLine(int(fields[2]) / 1e6, priority & 7, text.strip(), priority >> 3 > 0)
    except ValueError:
        return None


def event(line: KernelLine, rules: Rules, wall_ns: int) -> LogMatched | None:
    """The event for a kernel line: a fault of a GPU or an NVSwitch, an OOM kill, a host rule, or nothing.

    What a program wrote there (systemd, a test of monitoring, a container) is not from the driver.
    """
    if line.written:
        return None
    if (fault := xid.parse(line.text)) is not None:
        return xid_event(fault, wall_ns, line.text)
    if (report := sxid.parse(line.text)) is not None:
        rule, device = f"sxid-{report.code}", f"{report.switch}/{report.pci}"
        return LogMatched("", 0, -1, wall_ns, rule, "gpu", report.severity, line.text, device)
    if (kill := oom_kill(line.text)) is not None:
        # A cgroup at its own limit concerns its owner; a host without memory concerns all processes.
        rule, kind = "host-oom-kill", "memory"
        severity = Severity.WARNING if kill.cgroup else Severity.CRITICAL
    elif (found := rules.match(line.text, host=True)) is not None:
        rule, kind, severity = found.name, found.kind, found.severity
    else:
        return None
    return LogMatched("", 0, -1, wall_ns, rule, kind, severity, line.text)


def xid_event(fault: xid.Xid, wall_ns: int, line: str = "") -> LogMatched:
    """The event for a GPU's report. `line`: of the kernel log, if that is where it was read."""
    line = line or fault.text or f"Xid {fault.code} on {fault.device}"
    return LogMatched("", 0, -1, wall_ns, f"xid-{fault.code}", "gpu", fault.severity, line, fault.device)


class KernelLog:
    """A non-blocking reader of the kernel log."""

    name = "kernel-log"

    def __init__(self, path: str = "/dev/kmsg", interval: float = 0.5) -> None:
        self.interval = interval
        self.available, self.absent_reason = True, ""
        self.lost = 0
        """Times that the kernel overwrote records before they were read."""
        self.oom_killed_pids: dict[int, float] = {}
        """Pid -> monotonic seconds of its kill; the latest few hundred."""
        self._rest = ""
        self._lines: list[KernelLine] = []  # read and not yet given by `poll`
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_silent = False  # and the loop waits for its next line
        self._fd = -1
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self.available, self.absent_reason = False, f"{path}: {error.strerror}"
            return
        try:
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError as error:
            if error.errno != errno.ESPIPE:  # a pipe has no end to go to
                self.available, self.absent_reason = False, f"{path}: {error.strerror}"
                self.close()

    def follow(self) -> None:
        """From now on the event loop wakes when the kernel has logged a line; until then `poll` costs nothing."""
        self._loop = asyncio.get_running_loop()
        self._wait_for_more()

    def _wait_for_more(self) -> None:
        if self._loop is None or self._is_silent or self._fd < 0:
            return
        try:
            self._loop.add_reader(self._fd, self._stop_waiting)
            self._is_silent = True
        except OSError:  # a file of the disk is always readable: it has to be looked at
            self._loop = None

    def _stop_waiting(self) -> None:
        """Once is enough: in a storm the loop must not turn for every line."""
        if self._loop is not None and self._is_silent:
            self._loop.remove_reader(self._fd)
        self._is_silent = False

    def poll(self) -> list[KernelLine]:
        """The lines since the last call. Never raises, never blocks."""
        if not self._is_silent:
            self.read()
            self._wait_for_more()
        lines, self._lines = self._lines, []
        return lines

    def read(self) -> None:
        """Know of all OOM kills until now; the lines stay for `poll`."""
        lines: list[KernelLine] = []
        for _ in range(MAX_RECORDS if self._fd >= 0 else 0):
            try:
                record = os.read(self._fd, 8192)  # one record per read from the device
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten: the next read continues with the oldest
                    self.lost += 1
                    continue
                self.available, self.absent_reason = False, f"kernel log: {error.strerror}"
                self.close()
                break
            if not record:
                break
            *whole, self._rest = (self._rest + record.decode("utf-8", "replace")).split("\n")
            lines.extend(line for text in whole if (line := parse_record(text)) is not None)
        self._take(lines)

    def _take(self, lines: list[KernelLine]) -> None:
        self._lines += lines
        for line in lines:
            if not line.written and (kill := oom_kill(line.text)) is not None:
                self.oom_killed_pids.pop(kill.pid, None)
                self.oom_killed_pids[kill.pid] = line.mono
        while len(self.oom_killed_pids) > KEPT_PIDS:
            del self.oom_killed_pids[next(iter(self.oom_killed_pids))]

    def say(self, text: str) -> None:
        """Make the next `poll` return this line as though the kernel had written it: an injected fault."""
        self._take([KernelLine(time.monotonic(), 3, text)])

    def close(self) -> None:
        """Read no more. Harmless to repeat."""
        self._stop_waiting()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OomWatch:
    """Whether the OOM killer ended this process. By its cgroup's kill counter, before and after.

    Exact for one process per cgroup. Where several share one, each counted kill is given to one of those that are
    asked about, in the order of asking: so ask only about processes that SIGKILL ended.
    """

    def __init__(self, proc_root: str = "/proc", cgroup_root: str = "/sys/fs/cgroup") -> None:
        self._proc, self._cgroup = proc_root, cgroup_root
        self._file_of: dict[int, tuple[str, int]] = {}
        self._given: dict[str, int] = {}

    def remember(self, pid: int) -> bool:
        """Note the counter at the process's start. False when its cgroup shows none."""
        for path in self._candidates(pid):
            count = _kills(path)
            if count is not None:
                self._file_of[pid] = (path, count)
                self._given.setdefault(path, count)
                return True
        return False

    def verdict(self, pid: int) -> bool:
        """Whether an OOM kill happened in its cgroup since `remember` that no other process was given."""
        path, before = self._file_of.pop(pid, ("", 0))
        after = _kills(path) if path else None
        if after is None or after <= max(before, self._given[path]):
            return False
        self._given[path] = max(before, self._given[path]) + 1
        return True

    def _candidates(self, pid: int) -> list[str]:
        """Counter files of the process, likeliest first. A container may see its own cgroup only as the root."""
        found: list[str] = []
        for line in read_text(f"{self._proc}/{pid}/cgroup").splitlines():
            number, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            path = path.rstrip("/")
            if "memory" in controllers.split(","):
                found += [f"{self._cgroup}/memory{at}/memory.oom_control" for at in (path, "")]
            elif number == "0" and not controllers:
                found += [f"{self._cgroup}{at}/memory.events" for at in (path, "", f"/unified{path}")]
        return found


def _kills(path: str) -> int | None:
    for line in read_text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == "oom_kill" and value.strip().isdigit():
            return int(value)
    return None
