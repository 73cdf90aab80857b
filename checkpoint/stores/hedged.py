"""A call that may come to wait for nothing, begun anew beside itself: the first result counts.

After Dean and Barroso, "The Tail at Scale" (2013), hedged requests.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


def first_of(
    call: Callable[[Callable[[], None]], T], discard: Callable[[T], None], patience_s: float, copies: int
) -> T:
    """The first result of up to `copies` calls, each in a thread of its own.

    A call is given what it calls when all that is left to do is to wait. Only after `patience_s` of that the next one
    begins, so that a server that is slow, or gone, is not asked more often. `discard` gets the results that come too
    late. Raises what the last one raised when all that began have failed.
    """
    race: _Race[T] = _Race(call, discard)
    began, ended = 0, 0
    last_waits = False
    race.begin(began := began + 1)
    while True:
        try:
            number, failure = race.reported.get(timeout=patience_s if last_waits and began < copies else None)
        except queue.Empty:
            last_waits = False
            race.begin(began := began + 1)
            continue
        if race.results:
            return race.results[0]
        if failure is None:
            last_waits = last_waits or number == began
            continue
        ended += 1
        if ended == began:
            try:
                raise failure
            finally:
                del failure  # it holds this frame, and what else was at work


class _Race(Generic[T]):
    def __init__(self, call: Callable[[Callable[[], None]], T], discard: Callable[[T], None]) -> None:
        self._call, self._discard = call, discard
        self._lock = threading.Lock()
        self.results: list[T] = []
        """At most one."""
        self.reported: queue.SimpleQueue[tuple[int, BaseException | None]] = queue.SimpleQueue()
        """Which call only waits, has failed (and how), or was the first."""

    def begin(self, number: int) -> None:
        threading.Thread(target=self._run, args=(number,), name="hedged", daemon=True).start()

    def _run(self, number: int) -> None:
        try:
            result = self._call(lambda: self.reported.put((number, None)))
        except BaseException as error:  # whatever it is, it is the caller's to raise
            self.reported.put((number, error))
            return
        with self._lock:
            is_first = not self.results
            if is_first:
                self.results.append(result)
        self.reported.put((number, None))
        if not is_first:
            self._discard(result)
