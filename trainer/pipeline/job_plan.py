"""From settings to the job's plan: which schedule, over which stages, with everything that goes with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.plan.check import verify
from holdfast.plan.fill import fill, second_order
from holdfast.plan.plan import Action, Layers, Op, Order, Plan, numbered
from holdfast.plan.simulate import Duration, durations, simulate
from holdfast.trainer.pipeline.sharding import (
    add_reduce,
    add_reduce_each,
    add_reduce_once,
    add_reduce_when_freed,
    add_unshard,
    add_unshard_each,
    add_unshard_together,
    reduced_early,
)
from holdfast.trainer.pipeline.transfers import add_transfers, post_ahead
from holdfast.trainer.settings.layout import TrainerLayout

SYNC = ("end", "eager", "eager-opt")
"""When replicas of a stage in several pipes reduce its gradients: behind all computations, behind the last backward, or
so only for stages behind which their ranks are idle anyway."""


@dataclass(frozen=True, slots=True)
class BubbleWork:
    """What a preconditioned optimizer does in the pipeline's bubbles."""

    duration: Duration
    """Of its actions and of computations, in any unit."""
    rounds: Mapping[int, int]
    """By stage, into how many actions its inversions are cut."""


def job_plan(
    layout: TrainerLayout,
    schedule: str,
    layers: int,
    computations: Sequence[Order],
    *,
    ahead: int = 0,
    live: int = 0,
    zero: int = 1,
    by_layer: bool = False,
    reduce_each: bool = True,
    sync: str = "end",
    work: BubbleWork | None = None,
) -> Plan:
    """The whole plan around `computations`, one list a pipeline rank.

    `ahead`: computations by which receives are posted early (see `post_ahead`). `live`: stages of a rank whose
    parameters are whole at a time, 0 for all of them (with ZeRO stage 3: for one). `zero` and `by_layer` as in
    trainer/optim/replicas.py; without replicas nothing is gathered. With `by_layer`, gathering, reducing and freeing go
    on layer by layer inside the computation that these actions surround, and reducing in each backward or, without
    `reduce_each`, in the last one. `sync`, as in `SYNC`, is for stages with replicas in several pipes, which reduce
    once a step, but for ZeRO stage 2; there is no stage 3 of theirs. `work` goes into the bubbles of all that.
    AssertionError when the lists could not be executed: a builder's fault, found here instead of in a job that hangs.
    """
    rank_of, *replicas = layout.places
    ranges = [layout.layers_of(stage, layers) for stage in range(layout.stages)]
    bare = Plan(
        schedule,
        layout.mesh,
        tuple(Layers(r.start, r.stop, rank) for r, rank in zip(ranges, rank_of, strict=True)),
        layout.local_micro_batches,
        tuple(computations),
        tuple(replicas),
    )
    orders = list(computations)
    if layout.pipes > 1:
        orders = _shared_by_pipes(bare, zero, sync)
    elif layout.dp > 1:
        orders = [_shared(order, layout, live, zero, by_layer, reduce_each) for order in orders]
    orders = add_transfers(orders, rank_of, replicas)
    if ahead:
        orders = [post_ahead(order, rank_of, ahead, replicas) for order in orders]
    plan = replace(bare, orders=tuple(_whole_step(bare, rank, order) for rank, order in enumerate(orders)))
    if work is not None:
        plan = fill(plan, second_order(plan, work.rounds), work.duration).plan
    wrong = verify(plan)
    assert not wrong, f"{schedule} on {layout}: {'; '.join(wrong[:3])}"
    return plan


def _shared(order: Order, layout: TrainerLayout, live: int, zero: int, by_layer: bool, reduce_each: bool) -> Order:
    """What replicas do for each other around a rank's computations."""
    if zero == 3 and by_layer:
        return add_reduce(add_unshard_each(order), 1 if reduce_each else layout.local_micro_batches)
    if zero == 3:
        return add_reduce_when_freed(add_unshard(order, live or 1))
    gathered = add_unshard(order, live or layout.chunks) if zero else order
    return add_reduce(gathered, 1 if zero == 2 else layout.local_micro_batches)


def _shared_by_pipes(plan: Plan, zero: int, sync: str) -> list[Order]:
    """What replicas in all pipes, and in dp, do for each other around their ranks' computations."""
    assert zero < 3, "pipes do not gather a stage together in the middle of a step"
    if zero == 2:
        orders = add_reduce_each(plan, simulate(plan, durations(1, 2)))
    else:
        line = simulate(plan, durations(1, 2)) if sync != "end" else None
        orders = add_reduce_once(plan, reduced_early(plan, line, sync == "eager-opt") if line else ())
    return add_unshard_together(plan, orders) if zero else orders


def _whole_step(plan: Plan, rank: int, order: Order) -> Order:
    """Data comes in where inputs or targets are needed; each stage is stepped at the end."""
    held = [(s, pipe) for s in range(len(plan.stages)) for pipe, at in enumerate(plan.ranks_of(s)) if at == rank]
    ends = [(stage, pipe) for stage, pipe in held if stage in (0, len(plan.stages) - 1)]
    loads = [Action(Op.LOAD, stage, pipe=pipe) for stage, pipe in ends[:1]]
    return numbered((*loads, *order, *(Action(Op.STEP, stage, pipe=pipe) for stage, pipe in held)), plan.pipes)
