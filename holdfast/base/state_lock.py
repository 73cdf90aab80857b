"""A daemon's state folder belongs to one process at a time: a lock that ends with its holder, however that one ends."""

import contextlib
import fcntl
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.base import log, private
from holdfast.base.errors import UsageError

_KEPT = 8
"""Lives that the file remembers."""
_PATIENCE_S = 2.0
"""What a holder that is about to end gets, which a supervisor may not have waited for."""


class StateLock:
    """`lives`: what earlier holders called themselves, the newest last. The kernel vouches that none of them runs.

    The file says which file it is: in a copy of a folder the lives are those of another holder, which may well run.
    """

    def __init__(self, folder: Path, daemon: str, life: str, patience_s: float = _PATIENCE_S) -> None:
        """Take the folder for this `daemon` ("agent", ...), which calls this life of it `life`.

        UsageError in one line when another process has it, or the file cannot be made. The folder is there already.
        """
        self._path = folder / f"{daemon}.lock"
        try:
            self._fd = private.opener(str(self._path), os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise UsageError(f"state_dir {folder}: {error.strerror}; give another --state-dir") from None
        if not self._locked(patience_s):
            pid = _read(self._fd).pid
            os.close(self._fd)
            raise UsageError(
                f"state_dir {folder}: the {daemon} with pid {pid or 'unknown'} uses it; end that one, or give another "
                "--state-dir"
            )
        known, itself = _read(self._fd), _identity(self._fd)
        self.lives = known.lives if known.file == itself else []
        said = {"pid": os.getpid(), "lives": [*self.lives, life][-_KEPT:], "file": itself}
        with contextlib.suppress(OSError):  # a disk that is full: the lock holds all the same
            os.pwrite(self._fd, json.dumps(said).encode().ljust(4096), 0)

    def _locked(self, patience_s: float) -> bool:
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
                return True
            else:
                return True

    def close(self) -> None:
        """Give the folder up. Harmless to repeat."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@dataclass(frozen=True, slots=True)
class _Said:
    """What a lock's file says; nothing where it is new or damaged."""

    pid: int = 0
    lives: list[str] = field(default_factory=list)
    file: list[int] = field(default_factory=list)


def _read(fd: int) -> _Said:
    try:
        said = json.loads(os.pread(fd, 1 << 16, 0))
        lives = [str(life)[:64] for life in said["lives"]][-_KEPT:]
        return _Said(int(said["pid"]), lives, [int(number) for number in said["file"]])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return _Said()


def _identity(fd: int) -> list[int]:
    """Device and inode."""
    status = os.fstat(fd)
    return [status.st_dev, status.st_ino]
