"""Threads of Holdfast in the watched process."""

import signal
import threading
from collections.abc import Callable

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
