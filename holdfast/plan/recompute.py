"""How much each stage recomputes, so that all ranks hold as many bytes of activations (Merak, Lai et al., TPDS 2023).

A rank early in a pipeline has more micro-batches under way than a late one, and would hold more. Pure: what a stage
holds of a micro-batch is given, and how many are held at once follows from the ranks' lists.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from holdfast.plan.memory import in_flight, peak
from holdfast.plan.plan import Action, Op, Order, Plan


class Kept(NamedTuple):
    """What a stage keeps of a micro-batch. The layers before these recompute all."""

    whole: int
    """How many of its last layers recompute nothing..."""
    selective: int
    """... and how many before them attention and the non-linearity."""


@dataclass(frozen=True, slots=True)
class StageBytes:
    """What a stage holds of one micro-batch from forward to backward."""

    layers: int
    whole: int
    """Bytes of a layer that recomputes nothing..."""
    selective: int
    """... one that recomputes attention and the non-linearity..."""
    full: int
    """... and one that recomputes all: its input."""
    rest: int = 0
    """Bytes outside layers: of the embedding, the head and the loss."""

    def held(self, kept: Kept) -> int:
        """Bytes of a micro-batch of which the stage keeps so much."""
        others = self.layers - sum(kept)
        return self.rest + kept.whole * self.whole + kept.selective * self.selective + others * self.full


@dataclass(frozen=True, slots=True)
class Recomputation:
    """What all ranks of a plan keep."""

    kept: Mapping[tuple[int, int], Kept]
    """By stage and micro-batch."""
    bytes: tuple[float, ...]
    """By pipeline rank: the most that it then holds of activations between a forward and its backward."""

    @property
    def spread(self) -> float:
        """The most that a rank holds over the least; 1: all as much."""
        return max(self.bytes) / min(self.bytes)


def stage_aware(plan: Plan, stages: Sequence[StageBytes]) -> Recomputation:
    """What to keep, so that every rank holds about what that one does which holds least when it recomputes nothing.

    In 1F1B that is the last rank, with one micro-batch under way: it keeps all, the first one a D-th. What does not
    come out even in layers of one micro-batch is spread over those under way: some keep a layer more than others. A
    rank that holds more though it recomputes all, recomputes all.

    `stages` by number. The plan has no recompute actions of its own: ValueError.
    """
    if any(action.op is Op.RECOMPUTE for _, action in plan.actions()):
        raise ValueError(f"{plan.schedule} recomputes whole stages already")
    counts = in_flight(plan)
    ranks = [_Rank(order, stages, count) for order, count in zip(plan.orders, counts, strict=True)]
    level = min(rank.held((rank.most, 0)) for rank in ranks)
    chosen = [rank.nearest(level) for rank in ranks]
    kept = {key: one for rank, amounts in zip(ranks, chosen, strict=True) for key, one in rank.kept(amounts).items()}
    return Recomputation(kept, tuple(rank.held(amounts) for rank, amounts in zip(ranks, chosen, strict=True)))


_Amounts = tuple[int, int]
"""Layers that are whole, and that are selective, over all micro-batches under way at once."""
_TRIES = 12
"""Numbers of whole layers that are tried, each with the selective ones that come nearest."""


class _Rank:
    """A rank's list, and what it holds when it keeps so much."""

    def __init__(self, order: Order, stages: Sequence[StageBytes], under_way: int) -> None:
        self._order, self._stages = order, stages
        self._forwards: defaultdict[int, list[int]] = defaultdict(list)
        """By stage, the micro-batches that come through it, in order."""
        for action in order:
            if action.op is Op.FORWARD:
                self._forwards[action.stage] += action.micro_batches
        self.most = under_way * max(stages[stage].layers for stage in self._forwards)

    def kept(self, amounts: _Amounts) -> dict[tuple[int, int], Kept]:
        """By stage and micro-batch. Of those in a row that are under way at once, a stage keeps its share of both."""
        found = {}
        for stage, those in self._forwards.items():
            layers = self._stages[stage].layers
            for i, m in enumerate(those):
                whole, both = (_share(i, layers * amount, self.most) for amount in (amounts[0], sum(amounts)))
                found[stage, m] = Kept(whole, max(0, both - whole))
        return found

    def held(self, amounts: _Amounts) -> float:
        """The most bytes at once."""
        kept = self.kept(amounts)

        def weight(action: Action) -> float:
            of_stage = self._stages[action.stage]
            return sum(of_stage.held(kept[action.stage, m]) for m in action.micro_batches) / action.parts

        return peak(self._order, weight)

    def nearest(self, level: float) -> _Amounts:
        """With which it holds about so much; of several that come as near, those that recompute least."""
        top = _first(self.most, lambda whole: self.held((whole, 0)) >= level)
        found = []
        for whole in range(top, max(-1, top - _TRIES), -1):
            more = _first(self.most - whole, partial(self._reaches, level, whole))
            found += [(whole, count) for count in (more, more - 1) if count >= 0]
        return min(found, key=lambda amounts: abs(self.held(amounts) - level))

    def _reaches(self, level: float, whole: int, selective: int) -> bool:
        return self.held((whole, selective)) >= level


def _share(i: int, amount: int, over: int) -> int:
    """Of an amount that `over` in a row share evenly, the i-th one's part."""
    return (i + 1) * amount // over - i * amount // over


def _first(most: int, is_enough: Callable[[int], bool]) -> int:
    """The least number that is enough, if more always is; `most` if none is."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        if is_enough(middle):
            high = middle
        else:
            low = middle + 1
    return low
