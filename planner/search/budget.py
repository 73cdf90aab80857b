"""How long a search may take, by a clock that is passed in. Pure but for what that clock is."""

from __future__ import annotations

from collections.abc import Callable

SECONDS = 40e-6
"""Of a computation that a prediction builds and simulates, until this search has taken the time of one: twice what one
core of 2.5 GHz takes."""


class Budget:
    """So many seconds from now. `is_up` ends a search between two layouts; `is_too_long` keeps it from one that would
    not be done before, by what such layouts have taken so far."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._end = clock() + seconds
        self._each = SECONDS
        self._begun: tuple[float, int] | None = None
        """When a long layout was begun, and its computations."""

    def is_up(self) -> bool:
        now = self._clock()
        if self._begun is not None:
            began, computations = self._begun
            self._each, self._begun = (now - began) / computations, None
        return now >= self._end

    def is_too_long(self, computations: int) -> bool:
        """Whether a layout with so many would end too late. If not, it begins now, and lasts up to the next `is_up`."""
        now = self._clock()
        if now + computations * self._each > self._end:
            return True
        self._begun = now, computations
        return False
