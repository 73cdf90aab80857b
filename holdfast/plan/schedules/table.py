"""All pipeline schedules: one entry each. Settings, messages, documentation and plans are derived from it. No torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from holdfast.plan.plan import Layers, Mesh, Order, Plan
from holdfast.plan.schedules import ahead
from holdfast.plan.schedules.ahead import Ahead
from holdfast.plan.schedules.axonn import axonn
from holdfast.plan.schedules.breadth_first import breadth_first
from holdfast.plan.schedules.chimera import backward_halving, chimera, forward_doubling, pipe_ranks
from holdfast.plan.schedules.dualpipev import dualpipev
from holdfast.plan.schedules.gpipe import gpipe
from holdfast.plan.schedules.interleaved import interleaved
from holdfast.plan.schedules.merak import baseline, early_recompute, last_stage_kept, shifted
from holdfast.plan.schedules.one_f_one_b import eager_one_f_one_b, one_f_one_b
from holdfast.plan.schedules.zero_bubble import interleaved_zero_bubble, zbv

Builder = Callable[[int, int, int], list[Order]]
"""Ranks, chunks a rank and micro-batches to one list of computations a rank."""


class Placement(Enum):
    """How stages are dealt out over the pipeline ranks, in rounds of one stage a rank."""

    LOOP = "every round from the first rank to the last"
    FOLD = "a way out and a way back"
    BOTH_WAYS = "in each round a replica of every stage, down or up the ranks"

    def stages(self, ranks: int, chunks: int) -> int:
        """Into how many stages the model is cut."""
        return ranks if self is Placement.BOTH_WAYS else ranks * chunks

    def places(self, ranks: int, chunks: int) -> list[tuple[int, ...]]:
        """By pipe, the pipeline rank of each stage. Only one pipe, unless stages have replicas.

        ValueError for numbers that do not divide.
        """
        if self is Placement.BOTH_WAYS:
            return pipe_ranks(ranks, chunks)
        return [tuple(self.rank_of(stage, ranks) for stage in range(ranks * chunks))]

    def rank_of(self, stage: int, ranks: int) -> int:
        """The pipeline rank that holds a stage, or its first replica."""
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
    fills_stages: bool = False
    """Micro-batches must be as many as stages, or more."""
    is_message_driven: bool = False
    """Its lists are one possible order: a rank computes what is ready."""
    recomputes: bool = False
    """Whether it recomputes stages by actions of its own."""
    when: str = ""
    """When a user chooses it, in a few words."""
    ahead: Ahead | None = None
    """How far forwards are ahead when the first backward ends; None: nothing is known but what all schedules have."""

    def obstacle(self, ranks: int, micro_batches: int) -> str | None:
        """Why it cannot run `micro_batches` of a replica on so many pipeline ranks, None if it can."""
        if self.chunks > 1 and ranks == 1:
            return "needs pp of 2 or more"
        if self.fills_stages and micro_batches < (stages := self.placement.stages(ranks, self.chunks)):
            return f"needs a micro-batch for each stage: {micro_batches} micro-batches for {stages} stages"
        if self.whole_rounds and (left := micro_batches % max(1, micro_batches // ranks)):
            turns = micro_batches // ranks
            return f"needs rounds of equal size: {micro_batches} micro-batches in {turns} rounds leave {left} over"
        return None

    parts: int = 1
    """Into how many parts it cuts the samples of a micro-batch."""

    def plan(self, ranks: int, chunks: int, micro_batches: int) -> Plan:
        """Its computations on stages of one layer each. ValueError for numbers that it cannot be built for."""
        first, *replicas = self.placement.places(ranks, chunks)
        return Plan(
            self.name,
            Mesh.of(pp=ranks),
            tuple(Layers(stage, stage + 1, rank) for stage, rank in enumerate(first)),
            micro_batches,
            tuple(self.build(ranks, chunks, micro_batches)),
            tuple(replicas),
        )


def _one_stage(build: Callable[[int, int], list[Order]]) -> Builder:
    """A builder that knows of one stage a rank only."""
    return lambda ranks, chunks, micro_batches: build(ranks, micro_batches)


SCHEDULES = {
    one.name: one
    for one in (
        Schedule(
            "1f1b",
            _one_stage(one_f_one_b),
            ahead=ahead.one_f_one_b,
            when="activations must be few and backward whole; the default",
        ),
        Schedule(
            "eager-1f1b",
            _one_stage(eager_one_f_one_b),
            ahead=ahead.eager_one_f_one_b,
            when="messages are slow, and a rank can have one stage only",
        ),
        Schedule(
            "gpipe",
            _one_stage(gpipe),
            ahead=ahead.all_of_them,
            when="micro-batches are fewer than ranks, or as a baseline",
        ),
        Schedule(
            "interleaved",
            interleaved,
            chunks=2,
            ahead=ahead.interleaved,
            takes_chunks=True,
            whole_rounds=True,
            when="the bubble must shrink and backward stay whole (`overlap_chunks`, ZeRO stage 3 by layer)",
        ),
        Schedule(
            "bfs",
            breadth_first,
            chunks=2,
            ahead=ahead.all_of_them,
            takes_chunks=True,
            when="parameters are gathered by stage (ZeRO stage 3), or messages are slow and posted early (gloo)",
        ),
        Schedule(
            "zbv",
            zbv,
            chunks=2,
            ahead=ahead.folded,
            placement=Placement.FOLD,
            halves_backward=True,
            when="the bubble must be smallest: halves of a backward fill it",
        ),
        Schedule(
            "dualpipev",
            dualpipev,
            chunks=2,
            ahead=ahead.dualpipev,
            placement=Placement.FOLD,
            halves_backward=True,
            fills_stages=True,
            when="as `zbv`, with most backwards whole, each beside a forward of the rank's other stage",
        ),
        Schedule(
            "interleaved-zero-bubble",
            interleaved_zero_bubble,
            chunks=2,
            ahead=ahead.interleaved_zero_bubble,
            takes_chunks=True,
            halves_backward=True,
            whole_rounds=True,
            when="as `zbv`, with another number of stages per rank than two",
        ),
        *(
            Schedule(
                name, build, 2, takes_chunks=True, placement=Placement.BOTH_WAYS, parts=parts, when=when, ahead=first
            )
            for name, build, parts, first, when in (
                (
                    "chimera",
                    chimera,
                    1,
                    ahead.chimera,
                    "micro-batches are about as many as ranks, and weights fit twice",
                ),
                (
                    "chimera-doubling",
                    forward_doubling,
                    1,
                    None,
                    "as `chimera`, with more micro-batches: two fit at once",
                ),
                ("chimera-halving", backward_halving, 2, None, "as `chimera-doubling`, where only one fits"),
            )
        ),
        Schedule(
            "axonn",
            _one_stage(axonn),
            is_message_driven=True,
            when="the time of messages or of computations varies at random: what is ready runs",
        ),
        *(
            Schedule(name, _one_stage(build), recomputes=True, when=when)
            for name, build, when in (
                ("merak-baseline", baseline, "as a baseline: stages recompute, when the gradient is there"),
                ("merak-early", early_recompute, "stages recompute: before the gradient arrives"),
                ("merak-last-kept", last_stage_kept, "as `merak-early`, and the last stage keeps its activations"),
                ("merak", shifted, "as `merak-last-kept`, with 4 micro-batches or more"),
            )
        ),
    )
}
