"""What a layout holds at least, in closed form: no plan is built, nothing is simulated. Pure.

Weights, gradients and optimizer shards are those of memory.py. Of activations it counts what lies on a rank when its
first backward ends, which the schedule knows by a formula (`Schedule.ahead`); where it knows none, what any schedule
holds: the loss of a micro-batch needs all stages, so a rank with stages of one pipe holds that micro-batch in each.
The bound is never above the prediction (tests/planner/cost/test_bound.py), and equals it for 1F1B.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from holdfast.plan.schedules.ahead import Instants
from holdfast.plan.schedules.table import SCHEDULES, Placement
from holdfast.plan.transformer import Transformer
from holdfast.planner.cost.layers import Parts, Precision
from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.memory import NOT_MOVED, StageBytes, fullness, kind_of, stage_bytes, states_of


def least_memory(model: Transformer, layout: Layout, parts: Parts, precision: Precision) -> float:
    """Bytes that the fullest rank holds at least.

    Only the ranks that can be the fullest are looked at: the first, with the most layers and the most micro-batches
    under way, and the last, with the logits; with layers that are not even, also the rank of the largest stage.
    """
    if layout.device_bytes:
        return least_of_family(model, layout, parts, precision, ("chunks",))
    ranks = {0, layout.pp - 1}
    if layout.stage_layers:
        largest = max(range(layout.stages), key=lambda stage: layout.stage_layers[stage])
        ranks |= {pipe[largest] for pipe in layout.places}
    return max(_of_rank(model, layout, parts, precision, rank) for rank in ranks)


def _of_rank(model: Transformer, layout: Layout, parts: Parts, precision: Precision, rank: int) -> float:
    pipes = layout.held(rank)
    stages = [stage for pipe in pipes for stage in pipe]
    own = [stage_bytes(model, layout, parts, stage) for stage in stages]
    first = len(pipes[0])  # the pipe that has a micro-batch if there is one
    if layout.activation_blocks:
        weights, there = [one.stays for one in own], max(one.moves for one in own[:first])
    else:
        weights, there = [one.held for one in own], 0.0
    held = there + max(
        sum(count * weight for count, weight in zip(counts, weights, strict=True))
        for counts in _instants(layout, rank, first, len(own))
    )
    ordered = [one for _, one in sorted(zip(stages, own, strict=True), key=lambda pair: pair[0])]
    both_ways = SCHEDULES[layout.schedule].placement is Placement.BOTH_WAYS
    return min(
        fullness(
            states_of(layout, precision, ordered, several=several), layout, parts, own, held, NOT_MOVED
        ).memory.total
        for several in ({False, True} if both_ways else {layout.local_micro_batches > 1})
    )


def _instants(layout: Layout, rank: int, first: int, stages: int) -> Instants:
    """Of each stage of the rank, micro-batches whose activations are there at the same time; of several instants.
    `first`: so many of its stages are of the first pipe."""
    schedule = SCHEDULES[layout.schedule]
    if not schedule.recomputes and layout.recompute != "cell":
        if schedule.ahead is not None:
            return schedule.ahead(rank, layout.pp, layout.stages_per_rank, layout.local_micro_batches)
        if schedule.placement is not Placement.BOTH_WAYS:
            return [(1,) * stages]
    # While a forward runs its activations are there, whatever is kept of them.
    return [tuple(int(one == stage) for one in range(stages)) for stage in range(first)]


def least_of_family(
    model: Transformer, base: Layout, parts: Parts, precision: Precision, policies: Collection[str]
) -> float:
    """Bytes that the fullest rank holds at least, of all layouts with the axes, micro-batch and recompute of `base`,
    and its ZeRO stage or a lower one. `policies`: of MEMORY, those that they may have.

    Some rank has its share of the first pipe's layers or more, and one micro-batch's activations of them. Where
    replicas in other pipes share its states too, it has as many more.
    """
    layer, kind = parts.layer, kind_of(base)
    layers = -(-model.layers // base.pp)
    if base.device_bytes:  # a layer, and what all of them made
        return layer.params * precision.weight + layers * layer.held[kind]
    at_once = base.recompute == "cell" or any("activations" in policy for policy in policies)
    held = (1 if at_once else layers) * layer.held[kind]
    # A stage for each layer: of equally many layers, more and smaller stages take the least room.
    own = [StageBytes(1, parts, kind, is_first=False, is_last=False)] * layers
    on_host = any("states" in policy for policy in policies)
    members = [replace(base, zero=zero, is_on_host=on_host, bucket=1) for zero in range(base.zero + 1)]
    return min(
        fullness(states_of(one, precision, own, several=several), one, parts, own, held, NOT_MOVED).memory.total
        for one in members
        for several in (False, True)
    )
