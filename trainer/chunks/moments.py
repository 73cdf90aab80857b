"""When chunks are needed and what else is on the device then: watched in the first step, known from then on. Pure.

A moment is one computation of a unit, forward or backward, or the update of one group. All steps have the same ones. A
group is updated where the optimizer's lists of it are: on the device for as many groups as fit beside everything else,
else in host memory (PatrickStar, sections 8.1 and 8.2).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from holdfast.plan.cache.policy import POLICIES, LeastRecentlyUsed, Policy
from holdfast.plan.cache.uses import BesidesElsewhere, Trace

MARGIN = 0.8
"""Share of the bytes that stay free in every moment which the optimizer's lists may take (PatrickStar, 8.2)."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One of a step."""

    groups: tuple[int, ...]
    """What must be there."""
    is_written: bool = False
    """Whether it is changed."""
    is_on_host: bool = False
    """Whether it must be in host memory, not on the device."""


class Moments:
    """Those of a step: recorded while it is done the first time, and compared afterwards."""

    def __init__(self, capacity: int | None) -> None:
        """`capacity`: bytes of the device, None: without limit."""
        self._capacity = capacity
        self._moments: list[Moment] = []
        self._besides: list[int] = []
        self._limits: list[int | None] = []
        self.is_recording = True
        self.step = 0
        self._place = -1

    @property
    def moments(self) -> Sequence[Moment]:
        """Of the step that was recorded, with its updates once `end` was called."""
        return self._moments

    @property
    def limits(self) -> Sequence[int | None]:
        """By moment, once `end` was called: bytes that chunks may take."""
        return self._limits

    @property
    def now(self) -> int:
        """The moment, counted through all steps once they are known."""
        return self._place if self.is_recording else self.step * len(self._moments) + self._place

    def begin(self) -> None:
        """A step begins."""
        self._place = -1
        if self.is_recording:
            # A step that was not done to its end.
            self._moments.clear()
            self._besides.clear()
        else:
            self.step += 1

    def next(self, moment: Moment) -> int | None:
        """The next moment has come. Returns the bytes that chunks may take in it, None: without a limit of its own."""
        self._place += 1
        if self.is_recording:
            self._moments.append(moment)
            self._besides.append(0)
            return None
        expected = self._moments[self._place]
        assert moment == expected, f"moment {self._place} of step {self.step} needs {moment}, in the first {expected}"
        return self._limits[self._place]

    def beside(self, num_bytes: int) -> None:
        """So much is on the device besides chunks."""
        if self.is_recording and self._besides:
            self._besides[-1] = max(self._besides[-1], num_bytes)

    def margin(self, parameter_bytes: int, group_bytes: int, groups: int, in_update: int = 0) -> int:
        """As `margin_of`, beside the most that is ever there."""
        beside = max(self._besides, default=0) + in_update
        return margin_of(self._capacity, beside, parameter_bytes, group_bytes, groups)

    def end(self, on_device: Collection[int], groups: int, device_bytes: int) -> None:
        """All is recorded but the updates of so many groups, one after the other; `device_bytes`: what stays on the
        device for those that are updated there."""
        if not self.is_recording:
            return
        self._besides = [beside + device_bytes for beside in self._besides]
        for group in range(groups):
            is_here = group in on_device
            self._moments.append(Moment((group,), is_here, not is_here))
            self._besides.append(device_bytes)
        self._limits = [None if self._capacity is None else self._capacity - beside for beside in self._besides]
        self.is_recording = False
        self.step = 0


def margin_of(capacity: int | None, beside: int, parameter_bytes: int, group_bytes: int, groups: int) -> int:
    """How many groups of the optimizer's lists fit on the device beside all parameters and `beside` bytes.

    `group_bytes`: of one group in these lists. Where parameters alone do not fit, none.
    """
    if capacity is None:
        return groups
    return max(0, min(groups, int((capacity - beside - parameter_bytes) * MARGIN) // group_bytes))


class Evict(Policy[int]):
    """Who leaves: by the policy of this name. Until a step is known, `belady` is `lru`."""

    def __init__(self, name: str, moments: Moments) -> None:
        self._name, self._moments = name, moments
        self._blind = POLICIES[name](Trace([])) if name != "belady" else LeastRecentlyUsed[int]()
        self._knowing: Policy[int] | None = None

    def entered(self, key: int, now: int) -> None:
        self._chosen().entered(key, now)

    def used(self, key: int, now: int) -> None:
        self._chosen().used(key, now)

    def victim(self, candidates: Collection[int], now: int) -> int:
        return self._chosen().victim(candidates, now)

    def _chosen(self) -> Policy[int]:
        if self._name != "belady" or self._moments.is_recording:
            return self._blind
        if self._knowing is None:
            self._knowing = POLICIES["belady"](uses_on_device(self._moments.moments))
        return self._knowing


def uses_on_device(moments: Sequence[Moment]) -> BesidesElsewhere[int]:
    """The uses of groups on the device in this step and all that follow, up to the next one in host memory."""
    here = Trace(((() if one.is_on_host else one.groups) for one in moments), cyclic=True)
    elsewhere = Trace(((one.groups if one.is_on_host else ()) for one in moments), cyclic=True)
    return BesidesElsewhere(here, elsewhere)
