"""A daemon's state folder belongs to one process at a time: a lock that ends with its holder, however that one ends."""

import contextlib
import fcntl
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from holdfast.base import log, private
from holdfast.base.errors import UsageError

_KEPT = 8
"""Runs of the daemon that the file remembers."""
_PATIENCE_S = 2.0
"""What a holder that is about to end gets, which a supervisor may not have waited for."""


class StateLock:
    """`runs`: what earlier holders called themselves, the newest last. The kernel guarantees that none of them runs.

    Empty without that guarantee: in a copy of the folder, whose original may be in use, and where files have no locks.
    `is_copy`: processes that files in the folder name may be the original's.
    """

    def __init__(self, folder: Path, daemon: str, run: str, patience_s: float = _PATIENCE_S) -> None:
        """Take the folder for this `daemon` ("agent", ...), which calls itself `run`.

        UsageError in one line when another process has it, or the file cannot be made. The folder is there already.
        """
        self._path = folder / f"{daemon}.lock"
        try:
            self._fd = private.opener(str(self._path), os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise UsageError(f"state_dir {folder}: {error.strerror}; give another --state-dir") from None
        vouched = self._locked(patience_s)
        if vouched is False:
            pid = _Said.read(self._fd).pid
            os.close(self._fd)
            raise UsageError(
                f"state_dir {folder}: the {daemon} with pid {pid or 'unknown'} uses it; end that one, or give another "
                "--state-dir"
            )
        said, file = _Said.read(self._fd), _file_of(self._fd)
        self.is_copy = bool(said.file) and said.file != file
        self.runs = said.runs if vouched and said.file == file else []
        kept = [*self.runs, run][-_KEPT:]
        document = {"pid": os.getpid(), "runs": kept, "file": file}
        with contextlib.suppress(OSError):  # a disk that is full: the lock holds all the same
            os.pwrite(self._fd, json.dumps(document).encode().ljust(4096), 0)

    def _locked(self, patience_s: float) -> bool | None:
        """None where it is unknown."""
        end = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end:
                    return False
                time.sleep(0.05)
            except OSError as error:  # a file system that knows no locks
                log.warning("state.unlocked", path=str(self._path), error=error.strerror)
                return None
            else:
                return True

    def close(self) -> None:
        """Give the folder up. Harmless to repeat."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@dataclass(frozen=True, slots=True)
class _Said:
    """What the file says: 0, nothing and nothing where it is new or damaged."""

    pid: int = 0
    runs: list[str] = field(default_factory=list)
    file: list[int] = field(default_factory=list)
    """The file that it was written into: another one is a copy, and its lock is another."""

    @classmethod
    def read(cls, fd: int) -> Self:
        try:
            said = json.loads(os.pread(fd, 1 << 16, 0))
            runs = [str(run)[:64] for run in said.get("runs") or said["lives"]][-_KEPT:]  # "lives": of earlier releases
            return cls(int(said["pid"]), runs, [int(one) for one in said.get("file", ())])
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            return cls()


def _file_of(fd: int) -> list[int]:
    found = os.fstat(fd)
    return [found.st_dev, found.st_ino]
