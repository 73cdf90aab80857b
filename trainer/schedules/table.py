"""All pipeline schedules: one entry each. Settings, messages, documentation and plans are derived from it. No torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from holdfast.plan.plan import Order
from holdfast.trainer.schedules.breadth_first import breadth_first
from holdfast.trainer.schedules.gpipe import gpipe
from holdfast.trainer.schedules.interleaved import interleaved
from holdfast.trainer.schedules.one_f_one_b import eager_one_f_one_b, one_f_one_b
from holdfast.trainer.schedules.zero_bubble import interleaved_zero_bubble, zbv

Builder = Callable[[int, int, int], list[Order]]
"""Ranks, chunks a rank and micro-batches to one list of computations a rank."""


class Placement(Enum):
    """How stages are dealt out over the pipeline ranks, in rounds of one stage a rank."""

    LOOP = "every round from the first rank to the last"
    FOLD = "a way out and a way back"

    def rank_of(self, stage: int, ranks: int) -> int:
        """The pipeline rank that holds a stage."""
        turn, place = divmod(stage, ranks)
        return ranks - 1 - place if self is Placement.FOLD and turn % 2 else place


@dataclass(frozen=True, slots=True)
class Schedule:
    """What is known of a schedule before it is built."""

    name: str
    """As `parallel.schedule` has it."""
    build: Builder
    chunks: int = 1
    """Stages on each rank, where `parallel.chunks` says nothing. More than 1 need two ranks."""
    takes_chunks: bool = False
    """Whether `parallel.chunks` may be another number than that."""
    placement: Placement = Placement.LOOP
    halves_backward: bool = False
    """Backward for inputs and for weights are two actions."""
    whole_rounds: bool = False
    """Micro-batches must fill rounds of equal size, of about one a rank."""


def _one_stage(build: Callable[[int, int], list[Order]]) -> Builder:
    """A builder that knows of one stage a rank only."""
    return lambda ranks, chunks, micro_batches: build(ranks, micro_batches)


SCHEDULES = {
    one.name: one
    for one in (
        Schedule("1f1b", _one_stage(one_f_one_b)),
        Schedule("eager-1f1b", _one_stage(eager_one_f_one_b)),
        Schedule("gpipe", _one_stage(gpipe)),
        Schedule("interleaved", interleaved, chunks=2, takes_chunks=True, whole_rounds=True),
        Schedule("bfs", breadth_first, chunks=2, takes_chunks=True),
        Schedule("zbv", zbv, chunks=2, placement=Placement.FOLD, halves_backward=True),
        Schedule(
            "interleaved-zero-bubble",
            interleaved_zero_bubble,
            chunks=2,
            takes_chunks=True,
            halves_backward=True,
            whole_rounds=True,
        ),
    )
}
