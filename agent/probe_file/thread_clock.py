"""What the kernel says of the thread that makes the steps: how long it ran, and how long it was kept from running.

Ready to run without a processor (run-queue wait) is the host's doing. The rest of the time that a thread does not run,
it left by itself: asleep, at a lock, in a read. A kernel without CONFIG_SCHED_INFO writes zeros for run-queue wait; its
context switches distinguish the two: involuntary ones are the host's, voluntary ones the thread's own.
"""

import os
import resource
import threading
import time
from contextlib import suppress
from typing import NamedTuple


class Passed(NamedTuple):
    """Of a thread, since it asked before. -1 where not known."""

    cpu: int
    """Nanoseconds of processor time."""
    delayed: int
    """Nanoseconds of run-queue wait."""
    voluntary: int = -1
    """Context switches that the thread asked for; counted where `delayed` is not known."""
    involuntary: int = -1


class ThreadClock:
    """Of the thread that asks. One system call to read each, files held open."""

    def __init__(self) -> None:
        self._thread = 0
        self._fd = -1
        self._cpu = self._delayed = 0
        self._switches = (-1, -1)

    def since(self) -> Passed | None:
        """What passed since this thread asked before; None the first time."""
        thread = threading.get_ident()
        is_known = thread == self._thread
        if not is_known:
            self._open(thread)
        cpu, delayed = time.thread_time_ns(), self._read()
        switches = _switches() if delayed < 0 else (-1, -1)
        passed = Passed(
            cpu - self._cpu,
            delayed - self._delayed if min(delayed, self._delayed) >= 0 else -1,
            *(now - then if min(now, then) >= 0 else -1 for now, then in zip(switches, self._switches, strict=True)),
        )
        self._cpu, self._delayed, self._switches = cpu, delayed, switches
        return passed if is_known else None

    def _open(self, thread: int) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._thread, self._fd = thread, -1
        with suppress(OSError):
            path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def _read(self) -> int:
        if self._fd < 0:
            return -1
        try:
            # ns on a processor, ns on a run queue, slices: this thread runs, so zeros are no figures.
            ran, waited, slices = map(int, os.pread(self._fd, 64, 0).split()[:3])
        except (OSError, ValueError):
            self._fd = -1  # not closed: the descriptor may have been reused
            return -1
        return waited if ran or waited or slices else -1


def _switches() -> tuple[int, int]:
    """Voluntary and involuntary ones of this thread, as in /proc/self/task/TID/status, which is long."""
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return (used.ru_nvcsw, used.ru_nivcsw) if used.ru_nvcsw or used.ru_nivcsw else (-1, -1)
