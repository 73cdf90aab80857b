"""Where a traced module may be cut into stages, and where it is. Pure: facts about operations in, places out.

A cut at place p parts the operations before p from p and those behind it. All values made before it and read behind it
are live there, and go into the message of that cut, also through stages that do not read them. (Merak, Lai et al.,
TPDS 2023, cuts so that few values are live, and balances parameters. Here the largest stage is made as small as can be,
and among cuts that are about as good those with the smallest messages are taken.)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

SLACK = 0.1
"""By how much the largest stage may exceed the best balance where messages are smaller for it."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One step of a trace, in the order of computation. Inputs of the model are the first ones, at no cost."""

    cost: float = 0.0
    """In any unit, the same for all."""
    last_use: int = -1
    """Place of the last operation that reads its value; the number of operations where it is a result. -1: none."""
    num_bytes: int = 0
    """Of its value in a message."""
    can_cross: bool = True
    """Whether a message can hold its value."""
    has_gradient: bool = False
    """Whether a gradient goes back through its value."""
    changed_until: int = -1
    """Place of the last operation that changes its memory, or that of a view of it; -1: it stays as it was made."""
    parameters: frozenset[str] = frozenset()
    """Names of those it reads."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """The places of the cuts between stages."""

    places: tuple[int, ...]
    tied: str | None = None
    """A parameter that first and last stage both hold."""


class CannotCut(ValueError):
    """No cuts into so many stages exist; the text says into how many there are some."""


def live(operations: Sequence[Operation], place: int) -> list[int]:
    """Operations before a place whose values are read from there on."""
    return [v for v, one in enumerate(operations[:place]) if one.last_use >= place]


def cut(operations: Sequence[Operation], inputs: int, stages: int) -> Cuts:
    """Cuts into `stages`, the first `inputs` operations being the model's inputs. Raises CannotCut.

    Every stage reads a parameter, and through every cut goes a value with a gradient, so that each has a way back. A
    parameter that several operations read is in one stage, but for one at most that the first and the last stage share.
    """
    if stages == 1:
        return Cuts(())
    spread = _uses_apart(operations)
    tied = next(iter(spread), None)
    most = 1
    for shared in dict.fromkeys((None, tied)):
        allowed = _allowed(operations, inputs, shared)
        board = _Board(operations, allowed)
        places = board.cut(stages)
        if places is not None:
            return Cuts(places, shared if shared and _is_apart(operations, shared, places) else None)
        most = max(most, board.most_stages())
    reason = ""
    if spread:
        reason = f"; {next(iter(spread))} is read in many places, which have to be in one stage"
    raise CannotCut(f"it can be cut into {most} stage{'s' if most > 1 else ''}, not into {stages}{reason}")


def _uses_apart(operations: Sequence[Operation]) -> dict[str, list[int]]:
    """Parameters that several operations read, with their places; those with the widest gap between two first."""
    uses: dict[str, list[int]] = {}
    for place, one in enumerate(operations):
        for name in one.parameters:
            uses.setdefault(name, []).append(place)
    several = {name: places for name, places in uses.items() if len(places) > 1}
    return dict(sorted(several.items(), key=lambda item: (-_widest(item[1])[0], item[0])))


def _widest(places: list[int]) -> tuple[int, int, int]:
    """The widest gap between neighbours: its size and both ends."""
    return max((b - a, a, b) for a, b in pairwise(places))


def _is_apart(operations: Sequence[Operation], name: str, places: Sequence[int]) -> bool:
    uses = [i for i, one in enumerate(operations) if name in one.parameters]
    return uses[0] < places[0] and uses[-1] >= places[-1]


def _allowed(operations: Sequence[Operation], inputs: int, tied: str | None) -> list[bool]:
    """By place from 0 to the number of operations, whether there may be a cut. `tied` may be in both end stages."""
    count = len(operations)
    allowed = [inputs <= place for place in range(count + 1)]
    with_gradient = [0] * (count + 2)
    for v, one in enumerate(operations):
        if one.has_gradient and one.last_use > v:
            with_gradient[v + 1] += 1
            with_gradient[min(one.last_use, count) + 1] -= 1
        # Not where it is live and cannot be sent, and not between making a value and changing it: a copy would not see
        # the change.
        if not one.can_cross:
            _forbid(allowed, v + 1, one.last_use)
        _forbid(allowed, v + 1, one.changed_until)
    for name, uses in _uses_apart(operations).items():
        if name == tied:
            _, first, last = _widest(uses)
            _forbid(allowed, 0, first)
            _forbid(allowed, last + 1, count)
        else:
            _forbid(allowed, uses[0] + 1, uses[-1])
    ways_back = list(accumulate(with_gradient))
    return [may and ways_back[place] > 0 for place, may in enumerate(allowed)]


def _forbid(allowed: list[bool], first: int, last: int) -> None:
    for place in range(max(first, 0), min(last, len(allowed) - 1) + 1):
        allowed[place] = False


class _Board:
    """The places where cuts may be, with what lies before each: 0, those allowed, and the end."""

    def __init__(self, operations: Sequence[Operation], allowed: Sequence[bool]) -> None:
        count = len(operations)
        self.places = [0, *(p for p in range(1, count) if allowed[p]), count]
        costs = [0.0, *accumulate(one.cost for one in operations)]
        readers = [0, *accumulate(bool(one.parameters) for one in operations)]
        crossing = [0] * (count + 2)
        for v, one in enumerate(operations):
            if one.last_use > v:
                crossing[v + 1] += one.num_bytes
                crossing[min(one.last_use, count) + 1] -= one.num_bytes
        sizes = list(accumulate(crossing))
        self.costs = [costs[p] for p in self.places]
        self.readers = [readers[p] for p in self.places]
        self.sizes = [sizes[p] for p in self.places]

    def cut(self, stages: int) -> tuple[int, ...] | None:
        """The places of the cuts into so many stages, None if there are none.

        First the best balance, then the smallest messages near it, then the best balance with messages as small.
        """
        if self._cheapest(stages, math.inf) is None:
            return None
        best = self._lowest(stages, self.costs[-1] / stages, self.costs[-1], math.inf)
        near = best * (1 + SLACK)
        found = self._cheapest(stages, near)
        assert found is not None
        found = self._cheapest(stages, self._lowest(stages, best, near, found[0]))
        assert found is not None
        return found[1]

    def _lowest(self, stages: int, low: float, high: float, size: float) -> float:
        """The lowest limit up to `high` with which messages are no larger than `size`, about."""
        while high - low > 1e-6 * high:
            middle = (low + high) / 2
            found = self._cheapest(stages, middle)
            if found is None or found[0] > size:
                low = middle
            else:
                high = middle
        return high

    def most_stages(self) -> int:
        """Into how many it can be cut."""
        stages = 1
        while self._cheapest(stages + 1, math.inf) is not None:
            stages += 1
        return stages

    def _cheapest(self, stages: int, limit: float) -> tuple[float, tuple[int, ...]] | None:
        """Size and places of the cuts with the smallest messages whose stages read a parameter and cost up to `limit`.

        best[p] is the size of all messages up to place p, for as many stages as are done; a stage that ends at p begins
        at one of a window of places, which only moves on with p.
        """
        size = len(self.places)
        best = [0.0 if p == 0 else math.inf for p in range(size)]
        begins: list[list[int]] = []
        for stage in range(stages):
            found, begin = [math.inf] * size, [0] * size
            window: deque[int] = deque()
            entered = 0
            for p in range(1, size):
                while entered < p and self.readers[entered] < self.readers[p]:
                    while window and best[window[-1]] > best[entered]:
                        window.pop()
                    window.append(entered)
                    entered += 1
                while window and self.costs[p] - self.costs[window[0]] > limit:
                    window.popleft()
                if window and best[window[0]] < math.inf:
                    begin[p] = window[0]
                    found[p] = best[window[0]] + (self.sizes[p] if stage < stages - 1 else 0)
            best = found
            begins.append(begin)
        if best[-1] == math.inf:
            return None
        places, at = [], size - 1
        for begin in reversed(begins[1:]):
            at = begin[at]
            places.append(self.places[at])
        return best[-1], tuple(reversed(places))
