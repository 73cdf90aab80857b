"""Threads of a watched process that are not the script's: Holdfast's own, and those that torch starts while it makes
process groups, from the worker's side to the agent's.

The names of the latter prove nothing: another copy of gloo in the process calls its threads the same, and moves the
bytes of operations that no hook sees.
"""

import mmap
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from holdfast.agent.probe_file import layout
from holdfast.agent.probe_file.layout import STACKS_SIGNAL

_FAULTS = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP}
_NOT_OURS = signal.valid_signals() - _FAULTS - {STACKS_SIGNAL}


def start_thread(run: Callable[[], None], name: str) -> None:
    """One that gets none of the program's signals: a program that blocks one, to wait for it in a thread of its own,
    would be ended by it in a thread that does not. RuntimeError where no thread is to spare."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _NOT_OURS)  # a new thread has the mask of who starts it
    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class ServiceThreads:
    """The worker's side."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._map = memory
        self._tids: set[int] = set()
        self._before: set[int] | None = None
        """Threads that were there when torch began to make a process group; None: it makes none."""

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Within, torch makes a process group: threads that appear are its own."""
        outer = self._before
        self._before = _threads() if outer is None else outer
        try:
            yield
        finally:
            self.note()
            self._before = outer

    def note(self) -> None:
        """Write down those that have appeared, if it makes a process group. It may wait for its peers in that."""
        if (before := self._before) is None:
            return
        now = _threads()
        if (tids := self._tids & now | now - before) != self._tids:
            self._tids = tids
            self._write()

    def clear(self) -> None:
        self._tids, self._before = set(), None
        self._write()

    def _write(self) -> None:
        tids = sorted(self._tids)[: layout.MOST_SERVICES]
        payload = layout.SERVICES.pack(*tids, *[0] * (layout.MOST_SERVICES - len(tids)))
        at = layout.AT_SERVICES
        self._map[at : at + layout.SEAL.size + layout.SERVICES.size] = layout.seal(payload)


def _threads() -> set[int]:
    with suppress(OSError):
        return {int(tid) for tid in os.listdir("/proc/self/task")}
    return set()


def understand(payload: bytes) -> frozenset[int]:
    """The agent's side: their ids, whatever the bytes are."""
    return frozenset(tid for tid in layout.SERVICES.unpack(payload) if tid > 0)
