"""SIGINT, SIGTERM and SIGHUP for commands that must clean up processes and folders.

A signal may arrive at any time, twice, and during cleanup. So it raises `Interrupted` only where a command waits
(`allowed`); elsewhere it is deferred to the next such place, and nothing stays half made or half removed. Signals that
the parent process ignores (SIGHUP under nohup, SIGINT behind `&` in a script) stay ignored.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType


class Interrupted(KeyboardInterrupt):
    """A signal that ends the command; `code` is its conventional exit code."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.code = 128 + number


def code_of(error: BaseException | None) -> int:
    """The exit code of an interrupted command: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
    return error.code if isinstance(error, Interrupted) else 128 + signal.SIGINT


class _Watch:
    """The received signal, and whether it may be raised now."""

    def __init__(self) -> None:
        self.is_on = False
        self.is_open = False
        self.pending = 0

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_open:
            self.is_open = False  # once: cleanup is not interrupted again
            raise Interrupted(number)
        self.pending = self.pending or number


_watch = _Watch()


def guarded(body: Callable[[], int], signals: Sequence[signal.Signals] = ()) -> int:
    """Run `body` with all three signals, or with those that are given, kept for the places where it waits; its exit
    code, or a signal's."""
    if threading.current_thread() is not threading.main_thread() or _watch.is_on:
        return body()
    wanted = signals or (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    # Signals that the parent ignores stay ignored.
    numbers = [n for n in wanted if n is signal.SIGTERM or signal.getsignal(n) is not signal.SIG_IGN]
    _watch.is_on, _watch.is_open, _watch.pending = True, False, 0
    before = {number: signal.signal(number, _watch.on_signal) for number in numbers}
    try:
        return body()
    except Interrupted as error:
        return error.code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _watch.is_on = False


@contextmanager
def allowed() -> Iterator[None]:
    """A place where the command waits: a signal raises Interrupted, at once if it arrived before."""
    if not _watch.is_on or threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        _watch.is_open = True  # first: later signals are raised
        if _watch.pending:
            number, _watch.pending = _watch.pending, 0
            raise Interrupted(number)
        yield
    finally:
        _watch.is_open = False
