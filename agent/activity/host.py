"""What the kernel reports about a whole host, read once for all workers of one turn."""

import math
import os
import time
from collections import deque
from collections.abc import Callable
from statistics import median

from holdfast.agent.processes import sockets
from holdfast.agent.processes.descendants import Descendants
from holdfast.agent.processes.memory_sharers import MemorySharers, Unknown
from holdfast.agent.processes.proc_files import parse_stat, read

SOCKETS_FRESH_S = 0.09
_DEBUGGER = b"debugpy"
_WAKES = 9
"""Sleeps of ours of which the median says what a wake costs now."""


class HostLook:
    """What is looked at once for all workers of one turn."""

    def __init__(
        self, proc: str = "/proc", dump: Callable[[], sockets.Sockets] = sockets.dump, sysfs: str = "/sys"
    ) -> None:
        self.proc, self.sysfs = proc, sysfs
        self.has_rdma = os.path.isdir(f"{sysfs}/class/infiniband")
        self.workers: frozenset[int] = frozenset()
        """All workers of this host that are watched, which may wait for each other."""
        self.leaders: frozenset[int] = frozenset()
        """Processes of Holdfast: they and their children (rendezvous stores) serve all ranks, so they show nothing."""
        self.is_one = False
        """Whether the host has one worker only: what the host moves is that one's."""
        self.descendants = Descendants(proc)
        self._sharers = MemorySharers()
        self._wakes: deque[float] = deque(maxlen=_WAKES)
        self._dump = dump
        self._sockets = sockets.Sockets()
        self._sockets_at = -math.inf
        self._debuggers: dict[int, bool] = {}

    def begin(self, now: float) -> None:
        self.descendants.look(now)
        self._sharers.keep(self.workers)

    def sharers(self, pid: int) -> str:
        """Names a process that has the same memory as a worker, in words; empty: there is none."""
        try:
            found = self._sharers.of(pid, self.descendants.began)
        except Unknown:
            return "processes that may share its memory: this kernel does not say"
        return f"pid {found[0]}, which shares its memory" if found else ""

    def sleep(self, seconds: float) -> None:
        """Sleep, and measure what waking up takes: the workers' attempts are compared with that."""
        before = time.thread_time()
        time.sleep(seconds)
        self._wakes.append(time.thread_time() - before)

    @property
    def wake_s(self) -> float:
        """Processor time that a wake from a sleep takes on this host, seconds; 0: not known."""
        return median(self._wakes) if self._wakes else 0.0

    def sockets(self, now: float) -> sockets.Sockets:
        if now - self._sockets_at > SOCKETS_FRESH_S:
            self._sockets, self._sockets_at = self._dump(), now
        return self._sockets

    def is_debugger(self, pid: int) -> bool:
        """Whether a descendant is the adapter through which an editor's debugger talks."""
        if pid not in self._debuggers:
            stat = parse_stat(read(f"{self.proc}/{pid}/stat"))
            readable = stat is not None and stat.state not in "DZX"
            self._debuggers[pid] = readable and _DEBUGGER in read(f"{self.proc}/{pid}/cmdline", 4096)
            while len(self._debuggers) > 4096:
                self._debuggers.pop(next(iter(self._debuggers)))
        return self._debuggers[pid]
