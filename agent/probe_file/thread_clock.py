"""What the kernel says of the thread that makes the steps: how long it ran, and how long it was kept from running.

Ready to run without a processor (run-queue wait) is the host's doing. The rest of the time that a thread does not run,
it left by itself: asleep, at a lock, in a read.
"""

import os
import threading
import time
from contextlib import suppress


class ThreadClock:
    """Of the thread that asks. One system call to read each, files held open."""

    def __init__(self) -> None:
        self._thread = 0
        self._fd = -1
        self._cpu = self._delayed = 0

    def since(self) -> tuple[int, int] | None:
        """Nanoseconds of processor time and of run-queue wait since this thread asked before; None the first time.
        Run-queue wait is -1 where the kernel does not tell."""
        thread = threading.get_ident()
        is_known = thread == self._thread
        if not is_known:
            self._open(thread)
        cpu, delayed = time.thread_time_ns(), self._read()
        passed = cpu - self._cpu, delayed - self._delayed if delayed >= 0 else -1
        self._cpu, self._delayed = cpu, delayed
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
            ran, delayed, _ = os.pread(self._fd, 64, 0).split()  # ns on a processor, ns on a run queue, slices
            return int(delayed) if int(ran) else -1  # a kernel that keeps no statistics writes zeros
        except (OSError, ValueError, IndexError):
            self._fd = -1  # not closed: nobody knows any more whose number it is
            return -1
