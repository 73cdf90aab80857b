"""Where a worker's streams go that the user wants in files: torchrun's `--log-dir` with `--redirects` and `--tee`.

The worker writes there itself, and the agent follows those files as it follows its own: rules, tracebacks and the live
log see the same lines. They are the user's: the agent neither rotates nor removes them.
"""

import os
import stat
from pathlib import Path

from holdfast.base.errors import UsageError
from holdfast.wire import messages as msg
from holdfast.wire import std_streams

Pair = tuple[str, str]
"""Paths for standard output and error; "" for a stream that stays where the agent puts it."""


def chosen(command: msg.Command, order: msg.StartWorkers, place: msg.Rank) -> Pair:
    """The user's files for this worker: `LOG_DIR/JOB_GROUP/attempt_N/LOCAL_RANK/stdout.log` and `stderr.log`."""
    program = order.program
    if not program.log_dir:
        return "", ""
    streams = std_streams.parse(program.redirects)
    attempt = f"attempt_{command.generation - 1}"
    folder = Path(program.log_dir) / f"{command.job}_{place.group_rank}" / attempt / str(place.local_rank)
    out = str(folder / "stdout.log") if streams.has(place.local_rank, std_streams.OUT) else ""
    err = str(folder / "stderr.log") if streams.has(place.local_rank, std_streams.ERR) else ""
    return out, err


def make(files: Pair) -> None:
    """Their folder, and the files themselves: what cannot be written is reported before a worker is started. The
    umask says who may read them, as with torchrun. UsageError in one line."""
    for path in filter(None, files):
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666))
        except OSError as error:
            raise UsageError(f"--log-dir: cannot write {path}: {error.strerror or error}") from None


def of_process(pid: int) -> Pair:
    """The regular files that a running worker writes to, as far as may be known; "" for a stream without one."""
    return _file_of(pid, 1), _file_of(pid, 2)


def _file_of(pid: int, number: int) -> str:
    link = f"/proc/{pid}/fd/{number}"
    try:
        path = os.readlink(link)
        there = os.stat(link)
        same = os.stat(path)
    except OSError:
        return ""
    is_it = stat.S_ISREG(there.st_mode) and (there.st_dev, there.st_ino) == (same.st_dev, same.st_ino)
    return path if is_it else ""
