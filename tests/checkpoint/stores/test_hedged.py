"""A call that makes no progress is hedged; no other is, and late results are discarded."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from holdfast.checkpoint.stores.hedged import first_of
from tests.conftest import Until

SOON_S, NEVER_S = 0.01, 3600.0


class Calls:
    """Each call waits for its own `ends`; `waiting` ones say before that they only wait."""

    def __init__(self, waiting: set[int]) -> None:
        self._waiting = waiting
        self.ends = [threading.Event() for _ in range(4)]
        self.fails: set[int] = set()
        self.after_failure: threading.Event | None = None
        self.began = 0
        self.discarded: list[int] = []
        self._lock = threading.Lock()

    def __call__(self, waits: Callable[[], None]) -> int:
        with self._lock:
            number = self.began
            self.began += 1
        if number in self._waiting:
            waits()
        assert self.ends[number].wait(30)
        if number in self.fails:
            if self.after_failure is not None:
                self.after_failure.set()
            raise OSError(f"call {number}")
        return number


def test_one_that_is_quick_is_the_only_one() -> None:
    calls = Calls(waiting={0})
    calls.ends[0].set()
    assert first_of(calls, calls.discarded.append, NEVER_S, 3) == 0
    assert (calls.began, calls.discarded) == (1, [])


def test_the_next_begins_when_the_last_only_waits(until: Until) -> None:
    calls = Calls(waiting={0, 1})
    calls.ends[2].set()
    assert first_of(calls, calls.discarded.append, SOON_S, 3) == 2
    calls.ends[0].set()
    calls.ends[1].set()
    until(lambda: sorted(calls.discarded) == [0, 1])
    assert calls.began == 3


def test_one_that_still_works_is_waited_for(until: Until) -> None:
    calls = Calls(waiting=set())
    threading.Timer(20 * SOON_S, calls.ends[0].set).start()
    assert first_of(calls, calls.discarded.append, SOON_S, 3) == 0
    assert calls.began == 1


def test_there_are_no_more_copies_than_asked_for() -> None:
    calls = Calls(waiting={0, 1, 2})
    threading.Timer(20 * SOON_S, calls.ends[1].set).start()
    assert first_of(calls, calls.discarded.append, SOON_S, 2) == 1
    assert calls.began == 2


def test_it_fails_when_all_that_began_have_failed() -> None:
    calls = Calls(waiting=set())
    calls.fails = {0}
    calls.ends[0].set()
    with pytest.raises(OSError, match="call 0"):
        first_of(calls, calls.discarded.append, SOON_S, 3)
    assert calls.began == 1


def test_one_that_fails_leaves_it_to_the_other() -> None:
    calls = Calls(waiting={0})
    calls.fails, calls.after_failure = {1}, calls.ends[0]
    calls.ends[1].set()
    assert first_of(calls, calls.discarded.append, SOON_S, 2) == 0
    assert calls.began == 2
