"""Faults that a worker injects into itself when its agent asks for one: real ones, not simulated ones.

`perform` runs inside the worker, `finish_oom` in the process that saw it die. A kernel OOM kill needs a memory
cgroup that we may write: the worker moves into a child cgroup with a limit just above what it uses, so the kernel
kills it and no other process.
"""

import ctypes
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
HEADROOM_BYTES = 64 << 20
_CHUNK_BYTES = 4 << 20


def perform(kind: str, step: int) -> None:
    """Inject the fault now. Returns for an unknown kind only; raises RuntimeError for "exception"."""
    match kind:
        case "exception":
            raise RuntimeError(f"injected exception at step {step}")
        case "segfault":
            ctypes.string_at(0)
        case "oom":
            exhaust_memory()
        case "gil":
            # PyDLL calls without releasing the GIL, so no other thread of this process runs again.
            libc = ctypes.PyDLL(None)
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # which would end a sleep
            while True:
                libc.sleep(3600)
        case "hang":
            lock = threading.Lock()
            while True:
                lock.acquire()  # the second time nobody can release it
        case "exit":
            os._exit(7)
        case "kill" | "stop":
            os.kill(os.getpid(), signal.SIGKILL if kind == "kill" else signal.SIGSTOP)


def drag(amount: float, since_ns: int) -> None:
    """Work of a thread that began at `since_ns` of its processor time takes this share longer; of work that is not
    timed (0), `amount` are seconds that it waits."""
    if not amount:
        return  # not even a sleep of nothing, which would give the processor away
    if not since_ns:
        time.sleep(amount)
        return
    used = time.thread_time_ns() - since_ns
    until = since_ns + used + int(amount * used)
    while time.thread_time_ns() < until:
        pass


class Ambush:
    """A fault that waits for the next operation of a mesh axis, as the probe sees operations."""

    def __init__(self, kind: str, place: str, step: int) -> None:
        """`place`: one of `probe_layout.PLACES`, e.g. "tp" or "before-dp"."""
        self._kind, self._step = kind, step
        where, _, axis = place.rpartition("-")
        self._where = where
        self._names = tuple(name.encode() for name in ((f"{axis}:", "ddp:") if axis == "dp" else (f"{axis}:",)))
        self._is_inside = False
        self._has_struck = False

    def entering(self, name: bytes) -> None:
        if self._where == "before" and name.startswith(self._names):
            self._strike()

    def entered(self, name: bytes) -> None:
        matches = name.startswith(self._names)
        if (matches and not self._where) or (self._where == "after" and self._is_inside and not matches):
            self._strike()
        self._is_inside = matches

    def _strike(self) -> None:
        if not self._has_struck:
            self._has_struck = True
            perform(self._kind, self._step)


def exhaust_memory() -> None:
    """Touch memory until the kernel's OOM killer ends this process. MemoryError where that cannot be arranged."""
    group = _enter_limited_group()
    if group is None:
        raise MemoryError("injected out-of-memory: no writable memory cgroup here that would make the kernel kill")
    held: list[bytearray] = []
    for _ in range(64 * HEADROOM_BYTES // _CHUNK_BYTES):
        block = bytearray(_CHUNK_BYTES)
        block[:: os.sysconf("SC_PAGE_SIZE")] = b"\1" * len(block[:: os.sysconf("SC_PAGE_SIZE")])
        held.append(block)
    raise MemoryError(f"injected out-of-memory: the limit of {group} did not hold")


def finish_oom(pid: int) -> bool:
    """Remove the cgroup of a dead worker's "oom" injection; True when the kernel's OOM killer acted in it."""
    for parent in _parents():
        group = parent / _name(pid)
        if not group.is_dir():
            continue
        killed = any(_counter(group / file, "oom_kill") > 0 for file in ("memory.events", "memory.oom_control"))
        with suppress(OSError):
            group.rmdir()
        return killed
    return False


def _name(pid: int) -> str:
    return f"holdfast-oom-{pid}"


def _parents() -> list[Path]:
    """Where a child cgroup with a memory limit may be made, best first. Empty without cgroups."""
    found: list[Path] = []
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return found
    for line in lines:
        number, controllers, own = line.split(":", 2)
        if "memory" in controllers.split(","):  # version 1
            found += [CGROUP_ROOT / "memory" / own.lstrip("/"), CGROUP_ROOT / "memory"]
        elif number == "0" and (CGROUP_ROOT / "cgroup.controllers").exists():  # version 2
            # A cgroup with processes in it cannot have children with limits: ours becomes a sibling.
            group = CGROUP_ROOT / own.lstrip("/")
            # `own` may itself be the limited group, when this runs in the worker after it moved.
            found += [parent for parent in (group.parent, group) if _can_limit(parent)]
    return found


def _can_limit(group: Path) -> bool:
    try:
        return "memory" in (group / "cgroup.subtree_control").read_text().split()
    except OSError:
        return False


def _enter_limited_group() -> Path | None:
    for parent in _parents():
        group = parent / _name(os.getpid())
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            (group / "cgroup.procs").write_text(str(os.getpid()))
            _limit(group)
        except OSError:
            with suppress(OSError):
                (parent / "cgroup.procs").write_text(str(os.getpid()))
            with suppress(OSError):
                group.rmdir()
            continue
        return group
    return None


def _limit(group: Path) -> None:
    if (group / "memory.max").exists():
        use = int((group / "memory.current").read_text())
        with suppress(OSError):
            (group / "memory.swap.max").write_text("0")
        (group / "memory.max").write_text(str(use + HEADROOM_BYTES))
        return
    use = int((group / "memory.usage_in_bytes").read_text())
    (group / "memory.limit_in_bytes").write_text(str(use + HEADROOM_BYTES))
    with suppress(OSError):  # absent where the kernel does not account swap
        (group / "memory.memsw.limit_in_bytes").write_text(str(use + HEADROOM_BYTES))


def _counter(path: Path, name: str) -> int:
    try:
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    except (OSError, ValueError):
        pass
    return 0
