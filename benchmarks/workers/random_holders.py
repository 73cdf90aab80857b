"""Pauses in which something else holds the processes: a debugger, SIGSTOP of the whole job, the cgroup freezer.

What holds them is started by the process that is held, and lets go by itself.
"""

import os
import subprocess
import time
from pathlib import Path

FREEZERS = Path("/sys/fs/cgroup/freezer")
"""Version 1. Where it is not, or not ours to use, a debugger or SIGSTOP stands in."""


def register(folder: Path, rank: int) -> None:
    """Leave the process id where the others find it, with what tells it from a later process of the same id."""
    pid = str(os.getpid())
    (folder / f"pid-{rank}.part").write_text(f"{pid} {_born(pid)}")
    (folder / f"pid-{rank}.part").rename(folder / f"pid-{rank}")


def _born(pid: str) -> str:
    """When the process was started, in ticks; empty: it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def debugger(folder: Path, seconds: float) -> None:
    """gdb is attached to this process."""
    words = ["gdb", "-nx", "-batch", "-ex", "set auto-solib-add off", "-ex", f"attach {os.getpid()}",
             "-ex", f"shell sleep {seconds}", "-ex", "detach"]  # fmt: skip
    subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)


def stop_job(folder: Path, seconds: float) -> None:
    pids = " ".join(_ranks(folder))
    _held_by(f"kill -STOP {pids}; sleep {seconds}; kill -CONT {pids}")


def freeze_job(folder: Path, seconds: float) -> None:
    if not os.access(FREEZERS, os.W_OK):
        return stop_job(folder, seconds)
    _freeze(_ranks(folder), seconds)


def freeze_rank(folder: Path, seconds: float) -> None:
    if not os.access(FREEZERS, os.W_OK):
        return debugger(folder, seconds)
    _freeze([str(os.getpid())], seconds)


def _ranks(folder: Path) -> list[str]:
    """Those that are still there."""
    known = [path.read_text().split() for path in folder.glob("pid-?")]
    return [pid for pid, born in known if born == _born(pid)]


def _freeze(pids: list[str], seconds: float) -> None:
    group = FREEZERS / f"random-pauses-{os.getpid()}-{time.monotonic_ns()}"
    lines = [f"mkdir {group}"]
    lines += [f"echo {pid} > {group}/cgroup.procs" for pid in pids]
    lines += [f"echo FROZEN > {group}/freezer.state", f"sleep {seconds}", f"echo THAWED > {group}/freezer.state"]
    lines += [f"echo {pid} > {FREEZERS}/cgroup.procs" for pid in pids]
    _held_by("\n".join([*lines, f"rmdir {group}"]))


def _held_by(script: str) -> None:
    """Run it in a session of its own, and wait for its end."""
    subprocess.run(["sh", "-c", script], stdin=subprocess.DEVNULL, start_new_session=True, check=False)
