"""What workers print, written to the node's disk by a thread of its own: a full or slow disk blocks no worker.

What has no room there is dropped and counted; the file says so where it is missing.
"""

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.agent.forkserver import output_memory
from holdfast.base import private

MOST_WAITING = 32 << 20
"""Bytes that may wait for the disk; more are dropped."""
_SLOW = "the disk is too slow"


@dataclass(slots=True)
class Disk:
    """One stream's file. Only the thread touches it, once it was given away."""

    path: str
    memory: int
    """The worker's output in memory, open for reading and taking."""
    taken: int
    fd: int = -1
    size: int = 0
    missing: int = 0
    """Bytes dropped since the last that were written."""
    why: str = ""
    is_mid_line: bool = False


class OutputLog:
    """One thread for all files. `on_full` is called from it, each time that a file system refuses."""

    def __init__(self, max_bytes: int, keep: int, on_full: Callable[[str, OSError], None]) -> None:
        """`on_full` gets the file and the system's error."""
        self._max_bytes, self._keep, self._on_full = max_bytes, keep, on_full
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def write(self, disk: Disk, raw: bytes, end: int) -> None:
        """Write what was read up to offset `end`, then give its memory back. Returns at once."""
        with self._lock:
            is_late = self._waiting + len(raw) > MOST_WAITING
            self._waiting += 0 if is_late else len(raw)
        length = len(raw)
        if is_late:
            self._do(lambda: self._left_away(disk, length, end))
        else:
            self._do(lambda: self._written(disk, raw, end))

    def skip(self, disk: Disk, count: int, why: str) -> None:
        """So many bytes were not there to be read any more."""

        def skip() -> None:
            disk.missing, disk.why = disk.missing + count, why

        self._do(skip)

    def close(self, disk: Disk) -> None:
        """The stream is over: after all that was given before, close its descriptors."""

        def close() -> None:
            if disk.missing:
                self._append(disk, b"")
            for fd in (disk.fd, disk.memory):
                if fd >= 0:
                    os.close(fd)

        self._do(close)

    def flush(self, timeout: float = 5.0) -> bool:
        """Wait until all that was given is done; False when it takes too long."""
        if self._thread is None:
            return True
        done = threading.Event()
        self._do(done.set)
        return done.wait(timeout)

    def end(self, timeout: float = 2.0) -> None:
        """Do what is left, and end the thread. A disk that hangs is not waited for longer."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(timeout)
            self._thread = None

    # --- the thread

    def _do(self, job: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="holdfast-logs", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            with contextlib.suppress(OSError):
                job()

    def _written(self, disk: Disk, raw: bytes, end: int) -> None:
        try:
            self._append(disk, raw)
            self._take(disk, end)
        finally:
            with self._lock:
                self._waiting -= len(raw)

    def _left_away(self, disk: Disk, count: int, end: int) -> None:
        disk.missing, disk.why = disk.missing + count, _SLOW
        self._take(disk, end)

    @staticmethod
    def _take(disk: Disk, end: int) -> None:
        with contextlib.suppress(OSError):
            output_memory.take(disk.memory, disk.taken, end)
        disk.taken = end

    def _append(self, disk: Disk, raw: bytes) -> None:
        try:
            if disk.fd < 0:
                private.make_folder(Path(disk.path).parent)
                disk.fd = os.open(disk.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
                disk.size = os.fstat(disk.fd).st_size
            if disk.missing:
                said = f"[holdfast: {disk.missing} bytes of output are missing here: {disk.why}]\n".encode()
                said = b"\n" + said if disk.is_mid_line else said
                while said:
                    said = said[self._put(disk, said) :]
                disk.missing = 0
            while raw:
                raw = raw[self._put(disk, raw) :]
        except OSError as error:
            disk.missing, disk.why = disk.missing + len(raw), error.strerror or str(error)
            self._on_full(disk.path, error)
        if disk.fd >= 0 and disk.size > self._max_bytes:
            self._rotate(disk)

    @staticmethod
    def _put(disk: Disk, raw: bytes) -> int:
        done = os.write(disk.fd, raw)
        disk.size += done
        disk.is_mid_line = raw[done - 1 : done] != b"\n" if done else disk.is_mid_line
        return done

    def _rotate(self, disk: Disk) -> None:
        os.close(disk.fd)
        disk.fd, disk.size = -1, 0
        with contextlib.suppress(OSError):
            if not self._keep:
                os.unlink(disk.path)
                return
            for number in range(self._keep, 1, -1):
                if os.path.exists(older := f"{disk.path}.{number - 1}"):
                    os.replace(older, f"{disk.path}.{number}")
            os.replace(disk.path, f"{disk.path}.1")
