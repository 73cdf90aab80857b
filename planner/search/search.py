"""The best layouts of a model on a cluster. Pure: costs come in, and whether time is up.

What can't fit is refused by a bound in closed form, before a plan is built.

Families of layouts are looked at in the order of an estimate, and none of which a floor says that it can't be among the
best: a time that no layout of them beats, or bytes that none of them goes below. So what is found is the best of all,
unless time is up before. A layout with so many computations that it takes seconds is looked at behind all others.
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
from holdfast.planner.cost.schedule import computations
from holdfast.planner.search.ranked import Goal, Ranked, is_as_without
from holdfast.planner.search.reasons import NothingFits, NothingFound, no_family, no_member, no_time, too_large
from holdfast.planner.search.space import Family, Space, families
from holdfast.planner.unlike.blocks import is_unlike
from holdfast.planner.unlike.fit import fitted

KEPT = 10
MOST_DEVICES = 1 << 17
AT_ONCE = 50_000
"""Computations of a layout that are simulated when it is met: about a second. With more it is looked at last."""


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
    _late: list[tuple[int, int, Layout]] = field(default_factory=list, init=False)
    """(computations, number, layout) of the long ones, a heap."""
    _refused: list[tuple[float, int, Family]] = field(default_factory=list, init=False)
    """(least bytes, number, family) of those that are too large."""
    _looked_at: int = field(default=0, init=False)
    """Layouts."""
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
            least = costs.least_of_family(model, shared, one.policies(self.space))
            if least > self.limit and not costs.expands:
                self._counts["families too large"] += 1
                self._refused.append((least, number, one))
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

    @property
    def has_found(self) -> bool:
        return bool(self._best)

    def run(
        self, is_up: Callable[[], bool] = lambda: False, is_too_long: Callable[[int], bool] = lambda count: False
    ) -> Found:
        """Until done, or time is up behind a layout. `is_too_long`: whether one with so many computations, of those
        that are looked at last, takes more than what is left. NothingFits if all are too large; NothingFound if time
        was up before one was found that fits."""
        while self._step(is_too_long):
            if is_up():
                break
        if not self._best:
            raise self._nothing()
        floors = [floor for _, _, floor, _ in self._left]
        floors += [self.costs.floor(self.model, one) for one in self._under_way[:1]]
        floors += [self.costs.floor(self.model, one, with_schedule=True) for _, _, one in self._late]
        floors = [floor for floor in floors if not self._is_slower(floor)]
        return Found(tuple(self._best), not floors, min(floors, default=0.0), dict(self._counts))

    def _nothing(self) -> NothingFits:
        left = len(self._under_way) + len(self._late)
        left += sum(1 for *_, family in self._left for _ in family.members(self.model, self.space))
        if left:
            held = None if self._smallest is None else self._smallest[0]
            return NothingFound(no_time(self._looked_at, self._looked_at + left, self.limit, held))
        self._look_at_refused()
        if self._smallest is None:
            return NothingFits(no_member(self.model, self.costs.cluster, self.samples))
        return NothingFits(too_large(self.costs, self.model, *self._smallest, self.limit))

    def _look_at_refused(self) -> None:
        """For the one that needs the least."""
        for least, _, family in sorted(self._refused, key=lambda one: one[:2]):
            if self._smallest is not None and least >= self._smallest[0]:
                return
            for layout in family.members(self.model, self.space):
                self._note(layout, self.costs.least_bytes(self.model, layout))

    def _step(self, is_too_long: Callable[[int], bool]) -> bool:
        """Look at a layout. False if there is none, or none that takes no more than what is left."""
        layout = self._next()
        if layout is None:
            if not self._late or is_too_long(self._late[0][0]):
                return False
            _, _, layout = heapq.heappop(self._late)
            if not self._is_left_out(layout):
                self._predict(layout)
        elif not self._is_left_out(layout):
            count = computations(layout)
            if count > AT_ONCE:
                heapq.heappush(self._late, (count, len(self._late) + self._looked_at, layout))
                return True
            self._predict(layout)
        self._looked_at += 1
        return True

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

    def _is_left_out(self, layout: Layout) -> bool:
        """By its bound, its floor, or what else must be true: without a plan."""
        model, costs = self.model, self.costs
        if self._is_too_large(layout, costs.least_bytes(model, layout)):
            return True
        if self._is_slower(costs.floor(model, layout, with_schedule=True)):
            self._counts["slower"] += 1
            return True
        if not self.allows(layout):
            self._counts["not possible"] += 1
            return True
        return False

    def _predict(self, layout: Layout) -> None:
        try:
            prediction = self.costs.predict(self.model, layout)
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
        self._note(layout, held)
        return True

    def _note(self, layout: Layout, held: float) -> None:
        """If it is the smallest so far of those that are too large, and possible otherwise."""
        if (self._smallest is None or held < self._smallest[0]) and self.allows(layout):
            self._smallest = held, layout
