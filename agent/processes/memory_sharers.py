"""Processes that share a worker's memory (clone with CLONE_VM, as sandboxes and leak checkers do): any of them may wake
its private futexes, as its own threads do. The kernel says so of two processes (kcmp)."""

import ctypes
import errno
import platform
from collections.abc import Mapping

_KCMP = {"x86_64": 312, "aarch64": 272}.get(platform.machine(), 0)
_KCMP_VM = 1
_NOT_ASKED = (errno.ENOSYS, errno.EINVAL)

_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


class Unknown(Exception):
    """The kernel does not compare processes."""


def is_same_memory(one: int, other: int) -> bool:
    """Whether two processes have the same memory. False where either is gone, or is another user's. Raises Unknown
    where this kernel, or this architecture, has no kcmp."""
    if not _KCMP:
        raise Unknown
    answer = _syscall(_KCMP, one, other, _KCMP_VM, 0, 0)
    if answer < 0 and ctypes.get_errno() in _NOT_ASKED:
        raise Unknown
    return bool(answer == 0)


class MemorySharers:
    """Compares each worker with each other process once: two that do not share their memory never will."""

    def __init__(self) -> None:
        self._known: dict[int, dict[int, int]] = {}
        """By worker: processes that do not share its memory, and when they began."""

    def of(self, worker: int, present: Mapping[int, int]) -> list[int]:
        """Other processes with the same memory. `present`: all there are, and when they began. Raises Unknown."""
        known = {pid: began for pid, began in self._known.get(worker, {}).items() if present.get(pid) == began}
        found = []
        for pid, began in present.items():
            if pid == worker or pid in known:
                continue
            if is_same_memory(worker, pid):
                found.append(pid)
            else:
                known[pid] = began
        self._known[worker] = known
        return found

    def keep(self, workers: frozenset[int]) -> None:
        """Forget all others."""
        self._known = {pid: known for pid, known in self._known.items() if pid in workers}
