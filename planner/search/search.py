"""The best layouts of a model on a cluster. Pure: costs come in, and whether time is up.

Families of layouts are looked at in the order of an estimate, and none of which a floor says that it can't be among the
best: a time that no layout of them beats, or bytes that none of them goes below. So what is found is the best of all,
unless time is up before.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from holdfast.base.errors import UsageError
from holdfast.plan.transformer import Transformer
from holdfast.planner.cost.layout import Layout, LayoutError
from holdfast.planner.cost.measured import ProfileError
from holdfast.planner.cost.predict import CostModel
from holdfast.planner.search.ranked import Goal, Ranked, is_as_without
from holdfast.planner.search.reasons import NothingFits, no_family, no_member, too_large
from holdfast.planner.search.space import Family, Space, families
from holdfast.planner.unlike.blocks import is_unlike
from holdfast.planner.unlike.fit import fitted

KEPT = 10
MOST_DEVICES = 1 << 17


@dataclass(frozen=True, slots=True)
class Found:
    """Best first. `is_complete`: no other layout of the space is better; else none takes less than `floor_s`."""

    best: tuple[Ranked, ...]
    is_complete: bool
    floor_s: float
    counts: Mapping[str, int]
    """What became of layouts: predicted, too large or slower; and of families of them."""


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
    allows: Callable[[Layout], bool] = lambda layout: True
    """What else must be true of a layout."""
    _left: list[tuple[float, int, float, Family]] = field(default_factory=list, init=False)
    """(estimate, number, floor, family), a heap."""
    _under_way: list[Layout] = field(default_factory=list, init=False)
    _best: list[Ranked] = field(default_factory=list, init=False)
    _smallest: tuple[float, Layout] | None = field(default=None, init=False)
    """Bytes of the one that came closest to fitting."""
    _counts: Counter[str] = field(default_factory=Counter, init=False)

    def __post_init__(self) -> None:
        model, costs = self.model, self.costs
        if costs.cluster.world > MOST_DEVICES:
            raise UsageError(f"{costs.cluster.world:,} devices: the search takes {MOST_DEVICES:,} at most")
        if set(self.space.memory) - {"device"} and costs.cluster.host is None:
            away = next(one for one in self.space.memory if one != "device")
            raise UsageError(f"{away} in host memory: give the cluster [host] memory_bytes and bytes_per_s")
        if self.samples < 1:
            raise UsageError(f"{self.samples} samples in a step: 1 or more is needed")
        self.space = replace(self.space, device_bytes=self.space.device_bytes or int(self.limit))
        found = list(families(model, costs.cluster, self.samples, self.space))
        if not found:
            raise NothingFits(no_family(model, costs.cluster, self.samples, self.space))
        refused: ProfileError | None = None
        for number, one in enumerate(found):
            shared = replace(one.base, zero=max(self.space.zero))
            least = costs.least_bytes(model, shared, one.policies(self.space))
            if self._is_too_large(one.base, least):
                continue
            try:
                first = least if self.goal == "memory" else costs.estimate(model, one.base)
                self._left.append((first, number, costs.floor(model, one.base), one))
            except ProfileError as error:
                self._counts["families not measured"] += 1
                refused = error
        if refused is not None and not self._left:
            raise refused
        heapq.heapify(self._left)

    @property
    def limit(self) -> float:
        """Bytes of a device that tensors may take."""
        return self.limit_bytes or self.costs.cluster.gpu.memory_bytes

    def run(self, is_up: Callable[[], bool] = lambda: False) -> Found:
        """Until done, or time is up behind a layout that fits. NothingFits if all are too large."""
        while (layout := self._next()) is not None:
            self._look_at(layout)
            if self._best and is_up():
                break
        if not self._best:
            if self._smallest is None:
                raise NothingFits(no_member(self.model, self.costs.cluster, self.samples))
            raise NothingFits(too_large(self.costs, self.model, *self._smallest, self.limit))
        floors = [floor for _, _, floor, _ in self._left]
        floors += [self.costs.floor(self.model, one) for one in self._under_way[:1]]
        floors = [floor for floor in floors if not self._is_slower(floor)]
        return Found(tuple(self._best), not floors, min(floors, default=0.0), dict(self._counts))

    def _next(self) -> Layout | None:
        while not self._under_way and self._left:
            _, _, floor, family = heapq.heappop(self._left)
            if self._is_slower(floor):
                self._counts["families slower"] += 1
                continue
            members = family.members(self.model, self.space)
            if is_unlike(self.costs.cluster):
                members = fitted(self.costs, self.model, members)
            self._under_way = list(members)[::-1]
        return self._under_way.pop() if self._under_way else None

    def _look_at(self, layout: Layout) -> None:
        model, costs = self.model, self.costs
        if self._is_slower(costs.floor(model, layout, with_schedule=True)):
            self._counts["slower"] += 1
            return
        if not self.allows(layout):
            self._counts["not possible"] += 1
            return
        if self._is_too_large(layout, costs.least_bytes(model, layout)):
            return
        try:
            prediction = costs.predict(model, layout)
        except ProfileError:
            self._counts["not measured"] += 1
            return
        except LayoutError:  # chunks that a device has no room for
            self._counts["too large"] += 1
            return
        self._counts["predicted"] += 1
        if is_as_without(layout, prediction):
            return
        if self._is_too_large(layout, prediction.fullest.total) or self._is_too_much_for_host(prediction.host_bytes):
            return
        self._best.append(Ranked(layout, prediction))
        self._best.sort(key=lambda one: one.key(self.goal))
        del self._best[self.kept :]

    def _is_slower(self, floor: float) -> bool:
        """Than all that are kept. Nothing is by its time where memory is the goal."""
        if self.goal != "time" or len(self._best) < self.kept:
            return False
        return floor > self._best[-1].prediction.step_s

    def _is_too_much_for_host(self, held: float) -> bool:
        host = self.costs.cluster.host
        if not held or (host is not None and held <= host.bytes):
            return False
        self._counts["too large for the host"] += 1
        return True

    def _is_too_large(self, layout: Layout, held: float) -> bool:
        if held <= self.limit or self.costs.expands:
            return False
        self._counts["too large"] += 1
        if self._smallest is None or held < self._smallest[0]:
            self._smallest = held, layout
        return True
