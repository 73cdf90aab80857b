"""What is computed at once. Usually a micro-batch; where a plan does half of one somewhere, half of one everywhere.

Each piece has a graph of its own, so that any of them can go back alone: of two micro-batches that went forward in one
action, or of the halves of one.
"""

from __future__ import annotations

import math
from collections import defaultdict

from torch import Tensor

from holdfast.plan.plan import Action, Plan

Piece = tuple[int, int]
"""(micro-batch, which part of it)."""


class Pieces:
    """Into how many equal pieces a plan cuts each micro-batch, on all ranks alike."""

    def __init__(self, plan: Plan) -> None:
        self._counts: defaultdict[int, int] = defaultdict(lambda: 1)
        for _, action in plan.actions():
            if action.parts > 1:
                for m in action.micro_batches:
                    self._counts[m] = math.lcm(self._counts[m], action.parts)

    @property
    def counts(self) -> set[int]:
        """All that `count` can say."""
        return {1, *self._counts.values()}

    def count(self, micro_batch: int) -> int:
        """Pieces of a micro-batch."""
        return self._counts[micro_batch]

    def of(self, action: Action) -> tuple[Piece, ...]:
        """What an action is about; nothing for one of the whole stage."""
        which, parts = action.part
        found = []
        for m in action.micro_batches:
            each = self._counts[m] // parts
            found += [(m, i) for i in range(which * each, (which + 1) * each)]
        return tuple(found)

    def cut(self, whole: Tensor, micro_batches: int) -> dict[Piece, Tensor]:
        """The samples of all micro-batches, in order, by piece."""
        return {
            (m, i): piece
            for m, samples in enumerate(whole.tensor_split(micro_batches))
            for i, piece in enumerate(samples.tensor_split(self._counts[m]))
        }
