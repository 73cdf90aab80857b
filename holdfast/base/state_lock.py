"""A daemon's state folder belongs to one process at a time: a lock that ends with its holder, however that one ends."""

import contextlib
import fcntl
import json
import os
import time
from pathlib import Path

from holdfast.base import log, private
from holdfast.base.errors import UsageError

_KEPT = 8
"""Lives that the file remembers."""
_PATIENCE_S = 2.0
"""What a holder that is about to end gets, which a supervisor may not have waited for."""


class StateLock:
    """`lives`: what earlier holders called themselves, the newest last. The kernel vouches that none of them runs."""

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
            pid = _read(self._fd)[0]
            os.close(self._fd)
            raise UsageError(
                f"state_dir {folder}: the {daemon} with pid {pid or 'unknown'} uses it; end that one, or give another "
                "--state-dir"
            )
        self.lives = _read(self._fd)[1]
        kept = [*self.lives, life][-_KEPT:]
        with contextlib.suppress(OSError):  # a disk that is full: the lock holds all the same
            os.pwrite(self._fd, json.dumps({"pid": os.getpid(), "lives": kept}).encode().ljust(4096), 0)

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


def _read(fd: int) -> tuple[int, list[str]]:
    """Pid and lives; 0 and none where the file is new or damaged."""
    try:
        said = json.loads(os.pread(fd, 1 << 16, 0))
        return int(said["pid"]), [str(life)[:64] for life in said["lives"]][-_KEPT:]
    except (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return 0, []
