"""A layout's schedule with durations: when each pipeline rank ends, and what it did. Pure.

A plan of many micro-batches is not simulated whole. Once the pipeline is full, pp more micro-batches always take
equally long: two shorter plans give the rest, in time that does not grow with the batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from holdfast.plan.plan import Action, Layers, Mesh, Op, Order, Plan
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.planner.cost.compiled import compiled
from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.shared_cores import simulate_shared

MOST_ACTIONS = 2_000
"""Computations of a plan that is simulated whole."""
T = TypeVar("T")
_BACK = (Op.BACKWARD, Op.BACKWARD_INPUT)


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds of one micro-batch through a stage, on one rank: (compute, recompute, tensor, replicas)."""

    forward: tuple[float, float, float, float]
    backward: tuple[float, float, float, float]
    again: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    """Of a recompute of the whole stage."""


@dataclass(frozen=True, slots=True)
class RankTimes:
    """Of one pipeline rank in a step."""

    end: float
    """When its last computation ends."""
    kinds: tuple[float, ...]
    """Sums over its computations, as StageTimes has them."""


def plan_of(layout: Layout, local: int | None = None) -> Plan:
    """The computations of a layout, or of so many micro-batches of a replica."""
    return _plan(layout.schedule, layout.pp, layout.stages_per_rank, local or layout.local_micro_batches,
                 layout.recompute == "cell")  # fmt: skip


@functools.lru_cache(maxsize=512)
def _plan(schedule: str, pp: int, chunks: int, micro_batches: int, cell: bool) -> Plan:
    known = SCHEDULES[schedule]
    first, *replicas = known.placement.places(pp, chunks)
    orders: Sequence[Order] = known.build(pp, chunks, micro_batches)
    if cell:
        orders = [tuple(_with_recompute(order)) for order in orders]
    stages = tuple(Layers(stage, stage + 1, rank) for stage, rank in enumerate(first))
    return Plan(schedule, Mesh.of(pp=pp), stages, micro_batches, tuple(orders), tuple(replicas))


def _with_recompute(order: Order) -> list[Action]:
    """A recompute of the whole stage before each backward."""
    found = []
    for action in order:
        if action.op in _BACK:
            found.append(replace(action, op=Op.RECOMPUTE))
        found.append(action)
    return found


def samples_of(layout: Layout) -> tuple[int, int] | None:
    """Micro-batches of the two shorter plans; None where the whole plan is simulated."""
    local, pp = layout.local_micro_batches, layout.pp
    if 2 * layout.stages * local <= MOST_ACTIONS:
        return None
    least = 2 * pp + local % pp
    schedule = SCHEDULES[layout.schedule]
    # Rounds of another size take another time, so a number that fills none evenly is simulated whole.
    if local <= least + pp or (schedule.takes_chunks and local % pp):
        return None
    if any(schedule.obstacle(pp, count) is not None for count in (least, least + pp)):
        return None
    return least, least + pp


def computations(layout: Layout) -> int:
    """That a prediction builds and simulates: of the whole plan, or of the two shorter ones."""
    micro_batches = sum(samples_of(layout) or (layout.local_micro_batches,))
    backwards = 2 if SCHEDULES[layout.schedule].halves_backward or layout.recompute == "cell" else 1
    return layout.stages * micro_batches * (1 + backwards)


def extrapolated(layout: Layout, of: Callable[[Plan], T], join: Callable[[T, T, float], T]) -> T:
    """`of` the layout's plan; of a long one, `join(shorter, longer, k)` goes on k differences behind the shorter."""
    pair = samples_of(layout)
    if pair is None:
        return of(plan_of(layout))
    short, long = pair
    return join(of(plan_of(layout, short)), of(plan_of(layout, long)), (layout.local_micro_batches - short) / layout.pp)


def run(layout: Layout, stages: Sequence[StageTimes], latency: float, cores: float = 0.0) -> tuple[RankTimes, ...]:
    """By pipeline rank. `latency`: seconds of a message. `cores`: that all ranks share; 0: each has its own."""

    def of(plan: Plan) -> tuple[RankTimes, ...]:
        return _run(plan, stages, latency, cores, layout.dp * layout.tp)

    def join(short: tuple[RankTimes, ...], long: tuple[RankTimes, ...], k: float) -> tuple[RankTimes, ...]:
        return tuple(
            RankTimes(_on(a.end, b.end, k), tuple(_on(x, y, k) for x, y in zip(a.kinds, b.kinds, strict=True)))
            for a, b in zip(short, long, strict=True)
        )

    return extrapolated(layout, of, join)


def _on(short: float, long: float, k: float) -> float:
    return short + (long - short) * k


def _run(plan: Plan, stages: Sequence[StageTimes], latency: float, cores: float, ranks: int) -> tuple[RankTimes, ...]:
    kinds = {
        (stage, op): _kinds(one, op)
        for stage, one in enumerate(stages)
        for op in (Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT, Op.RECOMPUTE)
    }
    totals = {at: sum(one) for at, one in kinds.items()}
    once = compiled(plan)
    if cores:

        def duration(action: Action) -> float:
            return totals[action.stage, action.op] * len(action.micro_batches) / action.parts

        end = simulate_shared(plan, duration, cores, ranks, latency)
        ends = [max((end[a.id] for a in order), default=0.0) for order in plan.orders]
    else:
        ends = once.ends(totals, latency)
    found = []
    for last, shares in zip(ends, once.shares, strict=True):
        sums = [0.0] * 4
        for at, scale in shares.items():
            for i, value in enumerate(kinds[at]):
                sums[i] += scale * value
        found.append(RankTimes(last, tuple(sums)))
    return tuple(found)


def _kinds(one: StageTimes, op: Op) -> tuple[float, float, float, float]:
    """Halves of a backward take half of it each; what is recomputed, and collectives, belong to the first."""
    if op is Op.FORWARD:
        return one.forward
    if op is Op.RECOMPUTE:
        return one.again
    compute, *rest = one.backward
    if op is Op.BACKWARD_WEIGHT:
        return compute / 2, 0.0, 0.0, 0.0
    return (compute if op is Op.BACKWARD else compute / 2, *rest)  # type: ignore[return-value]
