"""When something is needed next. Pure.

A plan's lists say it exactly, a step that was traced says it for the steps that follow, a queue of batches says it as
far as it reaches. Moments are whole numbers: they count accesses, not seconds.
"""

import bisect
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from holdfast.plan.plan import Action, Plan

K = TypeVar("K", bound=Hashable)
"""What is kept: the number of a chunk, say."""
KAny = TypeVar("KAny", bound=Hashable, contravariant=True)
NEVER = math.inf


class Uses(Protocol[KAny]):
    """What is known of the future."""

    def next(self, key: KAny, now: int) -> float:
        """The first moment after `now` that needs `key`; `NEVER` when none is known."""


class Trace(Generic[K]):
    """Uses that are known in full: one collection of keys a moment.

    A `cyclic` trace is of one step, and the next step does the same: a key that the rest of this step does not need is
    needed again after the step's length (PatrickStar, section 8.3). Moments may then go past the trace's end.
    """

    def __init__(self, accesses: Iterable[Collection[K]], *, cyclic: bool = False) -> None:
        self.accesses: Sequence[tuple[K, ...]] = tuple(tuple(keys) for keys in accesses)
        self.is_cyclic = cyclic
        self._moments: dict[K, list[int]] = defaultdict(list)
        for moment, keys in enumerate(self.accesses):
            for key in dict.fromkeys(keys):
                self._moments[key].append(moment)

    def __len__(self) -> int:
        return len(self.accesses)

    def next(self, key: K, now: int) -> float:
        moments = self._moments.get(key)
        if not moments:
            return NEVER
        if not self.is_cyclic:
            place = bisect.bisect_right(moments, now)
            return moments[place] if place < len(moments) else NEVER
        rounds, within = divmod(now, len(self.accesses))
        place = bisect.bisect_right(moments, within)
        if place < len(moments):
            return rounds * len(self.accesses) + moments[place]
        return (rounds + 1) * len(self.accesses) + moments[0]


class BesidesElsewhere(Generic[K]):
    """Uses here of things that are also used elsewhere, where they then have to be.

    What is used elsewhere first leaves anyway: it is as good as never needed here, and goes before all others
    (PatrickStar, section 8.3, has a list of uses for each device).
    """

    def __init__(self, here: Uses[K], elsewhere: Uses[K]) -> None:
        self._here, self._elsewhere = here, elsewhere

    def next(self, key: K, now: int) -> float:
        found = self._here.next(key, now)
        return found if found < self._elsewhere.next(key, now) else NEVER


def trace_of_plan(plan: Plan, rank: int, keys: Callable[[Action], Collection[K]], *, cyclic: bool = True) -> Trace[K]:
    """What a pipeline rank needs, one moment for each action of its list, where `keys` says what an action needs.

    The list is the same in every step, so the trace is exact: no step has to be watched for it.
    """
    return Trace((keys(action) for action in plan.orders[rank]), cyclic=cyclic)
