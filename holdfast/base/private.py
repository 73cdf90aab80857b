"""Files and folders for their owner only, whatever the umask is and whatever is there already.

A folder in shared memory, where every user may make one under any name, must be a real folder of ours. A state folder
may be a link that another user set up; it must belong to us, or to root and not be open to all users.
"""

import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path

from holdfast.base.errors import UsageError

_FOLDER, _FILE, _OTHERS = 0o700, 0o600, 0o077
_OURS = frozenset({"controller.sqlite", "controller.lock", "agent.lock", "spans", "logs", "run", "controller", "node0"})
"""What lies in a state folder of ours: one of these, and the whole folder is taken for ours."""


def state_folder(path: Path, name: str = "state_dir") -> None:
    """Make it, or take the one that is there and close it to others. UsageError in one line when that cannot be.

    One with other things in it, and nothing of ours, keeps its mode, for others may need it as it is; what we make in
    it is closed.
    """
    try:
        there = make_folder(path, closing=False)
        if there is None:
            return
        mode = stat.S_IMODE(there.st_mode)
        if mode & 0o002 and mode & stat.S_ISVTX:
            raise PermissionError(1, "it is shared by all users", str(path))
        if there.st_uid == os.geteuid() and _is_ours(path):
            _close(path, mode)
        elif mode & 0o002:
            raise PermissionError(1, "every user may write there, and other things lie in it", str(path))
    except OSError as error:
        raise UsageError(f"{name} {path}: {error.strerror}; give another --{name.replace('_', '-')}") from None


def make_folder(path: Path, closing: bool = True) -> os.stat_result | None:
    """Make it, and what is missing above it; or take one that is there and, if it is ours, close it to others.
    OSError says why not. What was there; None where nothing was."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        if not path.parent.exists():
            make_folder(path.parent)
        with suppress(FileExistsError):
            os.mkdir(path, _FOLDER)
            os.chmod(path, _FOLDER)
            return None
        there = os.stat(path)
    if not stat.S_ISDIR(there.st_mode):
        raise FileExistsError(17, "File exists", str(path))
    if there.st_uid not in (os.geteuid(), 0):
        raise PermissionError(1, f"it belongs to {_user(there.st_uid)}", str(path))
    if closing and there.st_uid == os.geteuid():
        _close(path, stat.S_IMODE(there.st_mode))
    return there


def _close(path: Path, mode: int) -> None:
    if mode & _OTHERS:
        os.chmod(path, mode & ~_OTHERS & 0o777)


def _is_ours(path: Path) -> bool:
    with os.scandir(path) as entries:
        names = {entry.name for entry in entries}
    return not names or bool(names & _OURS)


def shared_folder(path: Path) -> None:
    """A folder of ours in a place where all users may make one. UsageError in one line if another has its name."""
    try:
        with suppress(FileExistsError):
            os.mkdir(path, _FOLDER)
        check_shared(path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def check_shared(path: Path) -> None:
    """The same for one that is there; FileNotFoundError where there is none."""
    # Not by its name again: what is closed is what was looked at.
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError:
        raise UsageError(f"{path} is no folder that we may use: remove it") from None
    try:
        there = os.fstat(fd)
        if there.st_uid != os.geteuid():
            raise UsageError(f"{path} belongs to {_user(there.st_uid)}, not to us: have it removed")
        if stat.S_IMODE(there.st_mode) != _FOLDER:
            os.fchmod(fd, _FOLDER)
    finally:
        os.close(fd)


def opener(path: str, flags: int) -> int:
    """For `open(path, "w", opener=opener)`: a new file is its owner's, and one of ours that is there becomes so."""
    fd = os.open(path, flags | os.O_CLOEXEC, _FILE)
    there = os.fstat(fd)
    if stat.S_ISREG(there.st_mode) and there.st_uid == os.geteuid() and stat.S_IMODE(there.st_mode) != _FILE:
        os.fchmod(fd, _FILE)
    return fd


def make_file(path: Path) -> None:
    """Make an empty one, or close the one that is there; what is no plain file (`/dev/null`, a pipe) stays as it is.
    Raises OSError; PermissionError if it is another user's."""
    with suppress(FileNotFoundError):
        there = os.stat(path)
        if not stat.S_ISREG(there.st_mode):
            return
        if there.st_uid != os.geteuid():
            raise PermissionError(1, f"it belongs to {_user(there.st_uid)}", str(path))
    os.close(opener(str(path), os.O_WRONLY | os.O_CREAT))


def write_text(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8", opener=opener) as file:
        file.write(text)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
