"""The best layouts of a model on a cluster. Pure: costs come in, and whether time is up.

Families of layouts are looked at in the order of their floor, a time that none of their members can beat; the search ends
when the next floor is above the worst of the best. So what it finds is the best of all, unless time is up before.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from holdfast.base.errors import UsageError
from holdfast.plan.transformer import Transformer
from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.predict import CostModel
from holdfast.planner.search.ranked import Goal, Ranked
from holdfast.planner.search.reasons import NothingFits, no_family, too_large
from holdfast.planner.search.space import Family, Space, families

KEPT = 10
MOST_DEVICES = 1 << 17


@dataclass(frozen=True, slots=True)
class Found:
    """Best first. `is_complete`: no other layout of the space is better; else none takes less than `floor_s`."""

    best: tuple[Ranked, ...]
    is_complete: bool
    floor_s: float
    counts: Mapping[str, int]
    """What became of layouts: predicted, too large; and families that were slower by their floor."""


@dataclass
class Search:
    """One search; `run` may be called again with more time, and goes on where it was."""

    model: Transformer
    costs: CostModel
    samples: int
    """In a step, over all replicas."""
    goal: Goal = "time"
    space: Space = field(default_factory=Space)
    limit_bytes: float = 0.0
    """Of a device; 0: what the cluster's have."""
    kept: int = KEPT
    _left: list[tuple[float, int, Family]] = field(default_factory=list, init=False)
    _under_way: list[Layout] = field(default_factory=list, init=False)
    _smallest: Ranked | None = field(default=None, init=False)
    _best: list[Ranked] = field(default_factory=list, init=False)
    _counts: Counter[str] = field(default_factory=Counter, init=False)

    def __post_init__(self) -> None:
        if self.costs.cluster.world > MOST_DEVICES:
            raise UsageError(f"{self.costs.cluster.world:,} devices: the search takes {MOST_DEVICES:,} at most")
        if self.samples < 1:
            raise UsageError(f"{self.samples} samples in a step: 1 or more is needed")
        found = list(families(self.model, self.costs.cluster, self.samples, self.space))
        if not found:
            raise NothingFits(no_family(self.model, self.costs.cluster, self.samples, self.space))
        self._left = [(self.costs.floor(self.model, one.base), number, one) for number, one in enumerate(found)]
        heapq.heapify(self._left)

    @property
    def limit(self) -> float:
        return self.limit_bytes or self.costs.cluster.gpu.memory_bytes

    def run(self, is_up: Callable[[], bool] = lambda: False) -> Found:
        """Until done, or time is up behind a layout; at least one is looked at. NothingFits if all are too large."""
        while (layout := self._next()) is not None:
            self._look_at(layout)
            if is_up():
                break
        is_complete = not self._under_way and not self._left
        if is_complete and not self._best:
            raise NothingFits(too_large(self.costs, self.model, self._smallest, self.limit))
        floor = min([one[0] for one in self._left[:1]] + [self.costs.floor(self.model, one) for one in self._under_way],
                    default=0.0)  # fmt: skip
        return Found(tuple(self._best), is_complete, floor, dict(self._counts))

    def _next(self) -> Layout | None:
        while not self._under_way and self._left:
            floor, _, family = heapq.heappop(self._left)
            if self._is_slower(floor):
                self._counts["slower by their floor"] += 1 + len(self._left)
                self._left.clear()
                return None
            self._under_way = list(family.members(self.model, self.space))[::-1]
        return self._under_way.pop() if self._under_way else None

    def _is_slower(self, floor: float) -> bool:
        if self.goal != "time" or len(self._best) < self.kept:
            return False
        return floor > self._best[-1].prediction.step_s

    def _look_at(self, layout: Layout) -> None:
        if self._is_slower(self.costs.floor(self.model, layout)):
            self._counts["slower by their floor"] += 1
            return
        prediction = self.costs.predict(self.model, layout)
        self._counts["predicted"] += 1
        if prediction.fullest.total > self.limit and not self.costs.expands:
            self._counts["too large"] += 1
            if self._smallest is None or prediction.fullest.total < self._smallest.prediction.fullest.total:
                self._smallest = Ranked(layout, prediction)
            return
        self._best.append(Ranked(layout, prediction))
        self._best.sort(key=lambda one: one.key(self.goal))
        del self._best[self.kept :]


def search(
    model: Transformer,
    costs: CostModel,
    samples: int,
    goal: Goal = "time",
    space: Space | None = None,
    limit_bytes: float = 0.0,
    kept: int = KEPT,
    is_up: Callable[[], bool] = lambda: False,
) -> Found:
    """The best layouts for a step of so many samples. NothingFits where there is none."""
    return Search(model, costs, samples, goal, space or Space(), limit_bytes, kept).run(is_up)
