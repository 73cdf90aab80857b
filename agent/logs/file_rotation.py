"""A file that its writer keeps open, rotated from outside: copied aside a step at a time, then emptied in place.

For workers' output that is on the disk itself, where there is no output in memory. What the worker writes between the
last step's end and the emptying, microseconds, is lost to the disk.
"""

import contextlib
import os

STEP = 8 << 20
"""Bytes that one step copies, so that none takes long."""
_PIECE = 1 << 20


class Rotation:
    """One rotation of one file."""

    def __init__(self, path: str, keep: int) -> None:
        """`keep` older copies stay as `PATH.1` (newest) and up. Raises OSError when there can be no copy."""
        self._path, self._keep = path, keep
        self._copied = 0
        self._fd = -1
        if keep > 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._fd = os.open(f"{path}.new", flags, 0o600)

    def step(self, source: int, size: int) -> bool:
        """Copy on; is all of it copied? Where the disk has no room for the copy there is none, and that is all."""
        try:
            self._copy(source)
        except OSError:
            self.end()
        return self._fd < 0 or self._copied >= size

    def finish(self, source: int) -> None:
        """Copy what came since; called right before the file is emptied."""
        with contextlib.suppress(OSError):  # a copy without its last lines is still a copy
            self._copy(source)

    def shift(self) -> None:
        """The file was emptied: the copy takes its place among the older ones."""
        if self._fd >= 0:
            for number in range(self._keep, 1, -1):
                if os.path.exists(older := f"{self._path}.{number - 1}"):
                    os.replace(older, f"{self._path}.{number}")
            os.replace(f"{self._path}.new", f"{self._path}.1")
        self.end()

    def end(self) -> None:
        """Give it up, or over. Harmless to repeat."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            if os.path.exists(f"{self._path}.new"):
                os.unlink(f"{self._path}.new")

    def _copy(self, source: int) -> None:
        most = STEP
        while self._fd >= 0 and most > 0:
            raw = os.pread(source, min(most, _PIECE), self._copied)
            if not raw:
                return
            written = os.pwrite(self._fd, raw, self._copied)
            self._copied += written
            most -= written
