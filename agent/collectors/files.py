"""Counter files in sysfs, read through descriptors that stay open.

Any single file may refuse (EINVAL on a restricted function, "N/A (no PMA)" on a virtual one, gone after an
unplug). Such a file costs its own value and nothing else, and a file that refused is not asked again: some
drivers write a line into the kernel log at each attempt.
"""

import errno
import os
from dataclasses import dataclass

GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.ENOTDIR})
"""Errors of a device that left; it may come back, so these are worth another attempt."""


def read_text(path: str, default: str = "") -> str:
    """The stripped content of a small file (at most 4 KiB), or `default` when it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return default
    try:
        return os.read(fd, 4096).decode("utf-8", "replace").strip()
    except OSError:
        return default
    finally:
        os.close(fd)


def list_dir(path: str) -> list[str]:
    """Sorted names in a directory; empty when it cannot be read."""
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []


def leading_number(text: str) -> float | None:
    """The number that a sysfs value starts with ("4: ACTIVE", "400 Gb/sec (4X NDR)"), or None."""
    head = text.replace(":", " ").split(maxsplit=1)
    try:
        return float(head[0]) if head else None
    except ValueError:
        return None


@dataclass(slots=True)
class _File:
    path: str
    scale: float
    fd: int = -1
    retry_at: float = 0.0


class CounterFiles:
    """Many small number files under their metric names."""

    def __init__(self, retry: float = 10.0) -> None:
        """`retry`: seconds before a vanished file is opened again."""
        self._retry = retry
        self._files: dict[str, _File] = {}
        self.refused: dict[str, str] = {}
        """Metric name -> why it was given up for good."""

    def add(self, name: str, path: str, scale: float = 1.0) -> None:
        """Read `path` as `name` from now on; the value is multiplied by `scale`. Known names are kept."""
        if name not in self._files and name not in self.refused:
            self._files[name] = _File(path, scale)

    def read(self, now: float) -> dict[str, float]:
        """All values that can be had at monotonic time `now`. Never raises."""
        values: dict[str, float] = {}
        refused: list[str] = []
        for name, file in self._files.items():
            if file.retry_at > now:
                continue
            try:
                if file.fd < 0:
                    file.fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
                raw = os.pread(file.fd, 64, 0)
            except OSError as error:
                if error.errno in GONE:
                    self._close(file)
                    file.retry_at = now + self._retry
                else:
                    self.refused[name] = os.strerror(error.errno or 0)
                    refused.append(name)
                continue
            try:
                value: float | None = float(raw)  # nearly always, and much quicker
            except ValueError:
                value = leading_number(raw.decode("ascii", "replace"))
            if value is not None:
                values[name] = value * file.scale
            elif raw.strip():
                self.refused[name] = raw.decode("ascii", "replace").strip()
                refused.append(name)
            else:  # an empty read: the device is on its way out
                self._close(file)
                file.retry_at = now + self._retry
        for name in refused:
            self._close(self._files.pop(name))
        return values

    def close(self) -> None:
        """Close every descriptor and forget all files (but not what was refused)."""
        for file in self._files.values():
            self._close(file)
        self._files.clear()

    @staticmethod
    def _close(file: _File) -> None:
        if file.fd >= 0:
            os.close(file.fd)
            file.fd = -1
