"""The children of the fork server: how one is forked, what the child does first, how its end is read.

Everything here runs in a process with a single thread (fork copies only the calling one, and locks held by others
would never be released).
"""

import gc
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from holdfast.agent.forkserver import bootstrap
from holdfast.agent.forkserver.worker_spec import WorkerSpec
from holdfast.agent.processes import interpreter

OOM_SCORE = 500
"""Workers are to be killed before the agent and this process when the host runs out of memory."""

STARTUP_VARIABLES = (
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "MALLOC_CONF",
    "PYTHONDEVMODE",
    "PYTHONHASHSEED",
    "PYTHONHOME",
    "PYTHONMALLOC",
    "PYTHONOPTIMIZE",
    "PYTHONUTF8",
    "PYTHONWARNINGS",
)
"""Read when an interpreter or its loader starts: a job that sets one of these differently gets a fresh interpreter."""


GPU_DRIVERS = ("/dev/nvidia-uvm", "/dev/kfd")
"""What CUDA and ROCm keep open from the first question on; NVML, which may be asked, does not open these."""


def threads() -> int:
    """Threads of this process, those of C libraries too."""
    return len(os.listdir("/proc/self/task"))


def have_asked_for_gpus() -> bool:
    """Whether children could use no GPU since a driver was asked for them here: CUDA and ROCm survive no fork."""
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one that lists them is gone already
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith(GPU_DRIVERS):
                return True
    # torch keeps its own account of it, which only a child can read.
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    is_spoilt = getattr(cuda, "_is_in_bad_fork", None)
    if is_spoilt is None:
        return False
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(int(is_spoilt()))
        finally:
            os._exit(1)  # if torch cannot say, assume that it has asked: slower, never wrong
    return os.waitpid(pid, 0)[1] != 0


def fork(body: Callable[[], int], release: Callable[[], None], outputs: tuple[int, int]) -> int:
    """Fork a child that leads its own session, writes to these descriptors, runs `body` and exits with its result.

    `release` closes what belongs to the parent; `outputs` are closed there, whatever happens. Returns the child's
    process id; raises OSError when there can be no more processes.
    """
    out, err = outputs
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # else the child writes it a second time
    try:
        pid = os.fork()
    except OSError:
        os.close(out)
        os.close(err)
        raise
    if pid:
        os.close(out)
        os.close(err)
        return pid
    code = 1
    try:
        _settle(out, err)
        release()
        code = body()
    except BaseException:
        # Of ours: the user's own errors end inside `body`.
        traceback.print_exc()
    finally:
        bootstrap.finish(code)
    raise AssertionError("unreachable")


def open_files(out_path: str, err_path: str) -> tuple[int, int]:
    """These files, to be written at their ends. Raises OSError when they cannot be opened."""
    out = os.open(out_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        return out, os.open(err_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        os.close(out)
        raise


def run_worker(spec: WorkerSpec, run_dir: Path) -> int:
    """The body of a worker's child: its program, here if this interpreter can stand for a fresh one."""
    _oom_score()
    with suppress(OSError):
        Path("/proc/self/comm").write_text(f"holdfast-r{spec.rank}")  # what `ps` and `top` show, 15 bytes
    if spec.program.warm and not needs_fresh(spec):
        return bootstrap.main(spec)
    path = _left_for_itself(run_dir, json.dumps(spec.to_json()).encode())
    command = interpreter.command("holdfast.agent.forkserver.bootstrap", str(path))
    os.execve(command[0], command, interpreter.environment(spec.environment()))


def _left_for_itself(run_dir: Path, data: bytes) -> str:
    """Where the fresh interpreter that this process becomes reads its spec: in memory, or else in a file."""
    try:
        fd = os.memfd_create("holdfast-spec", 0)
    except OSError:
        fd = -1
    path = f"/proc/self/fd/{fd}" if fd >= 0 else str(run_dir / f"spec-{os.getpid()}.json")
    fd = fd if fd >= 0 else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(fd, "wb", closefd=not path.startswith("/proc/")) as file:
        file.write(data)
    return path


def needs_fresh(spec: WorkerSpec) -> bool:
    """Whether the job sets a variable that only counts at the start of an interpreter, to another value than ours."""
    return any(spec.env[name] != os.environ.get(name) for name in STARTUP_VARIABLES if name in spec.env)


def _settle(out: int, err: int) -> None:
    """Leave everything of the parent that a new process would not have."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)
    gc.enable()


def _oom_score() -> None:
    with suppress(OSError):  # not allowed everywhere, and only a preference
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))


def reap(pidfd: int) -> tuple[int, int, bool] | None:
    """How a child ended: exit status (-1 for a signal), signal, whether it dumped core. None while it runs."""
    result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    if result is None or result.si_pid == 0:
        return None
    if result.si_code == os.CLD_EXITED:
        return result.si_status, 0, False
    return -1, result.si_status, result.si_code == os.CLD_DUMPED


class ChildOomWatch:
    """Whether the kernel's OOM killer acted a moment ago: its kills are SIGKILLs like any other.

    The host's counter has no names, so it only explains a SIGKILL that Holdfast did not send, one per count.
    """

    WINDOW_S = 10.0

    def __init__(self, path: Path = Path("/proc/vmstat")) -> None:
        self._path = path
        self._count = self._read()
        self._acts: list[float] = []

    def look(self) -> None:
        """Notice what happened since the last look. Call about once a second while it matters."""
        now = time.monotonic()
        count = self._read()
        self._acts = [at for at in self._acts if now - at < self.WINDOW_S] + [now] * min(count - self._count, 64)
        self._count = count

    def explains(self) -> bool:
        """True when it acted within the last 10 s, once for each time."""
        self.look()
        return bool(self._acts) and self._acts.pop(0) > 0

    def _read(self) -> int:
        try:
            for line in self._path.read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
        except (OSError, ValueError):
            pass
        return 0
