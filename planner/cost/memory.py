"""Bytes that ranks hold: states by the ZeRO paper's stages, activations by the plan's own lists. Pure.

A rank is at its fullest when it holds the most activations, or behind the last backward, when gradients go to replicas
and the optimizer steps. Kinds and rules are the trainer's (docs/memory.md), which tests hold this to.

`least_memory` is a bound in closed form, for which no plan is built. Its states are the same. Of activations it counts
what lies on a rank when its first backward ends, which the schedule knows by a formula (`Schedule.ahead`); where it
knows none, what any schedule holds: the loss of a micro-batch needs all stages, so a rank with stages of one pipe holds
that micro-batch in each. The bound is never above the prediction (tests/planner/cost/test_bound.py), and equals it for
1F1B.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from holdfast.plan.memory import peak
from holdfast.plan.plan import Action, Op, Order, Plan
from holdfast.plan.schedules.ahead import Instants
from holdfast.plan.schedules.table import SCHEDULES, Placement
from holdfast.plan.transformer import Transformer
from holdfast.planner.cost.host import Moved, in_chunks, moved
from holdfast.planner.cost.layers import Parts, Precision
from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.prediction import Memory

BUCKET = float(25 << 20)
"""Bytes of gradients that replicas add up at a time."""
NOT_MOVED = Moved(0.0, 0.0, 0.0, 0.0)
"""Of activations that all stay on the device."""
ROOM = 2
"""Messages for which a rank has room: one that comes, one that goes."""


def model_states(parameters: float, replicas: int, zero: int, precision: Precision) -> tuple[float, float, float]:
    """Bytes of weights, gradients and optimizer states of one rank between steps (Rajbhandari et al. 2020, 5).

    What is sharded counts 1 / replicas: the optimizer from stage 1 on, gradients from 2, weights in 3.
    """
    share = [1 / replicas if zero >= least else 1.0 for least in (3, 2, 1)]
    return (precision.weight * parameters * share[0], precision.gradient * parameters * share[1],
            precision.optimizer * parameters * share[2])  # fmt: skip


@dataclass(frozen=True, slots=True)
class States:
    weights: float
    gradients: float
    optimizer: float
    gathered: float
    beside: float
    """While micro-batches are under way..."""
    at_end: float
    """... and behind the last one."""
    host: float = 0.0


@dataclass(frozen=True, slots=True)
class Fullness:
    """Of one rank, before it is known when it is at its fullest: its buffers depend on its activations."""

    beside: Memory
    """All kinds but activations and buffers."""
    activations: float
    under_way: float
    """Buffers while the most activations are there..."""
    at_end: float
    """... and what is needed behind the last backward, when none are."""
    moved: float = 0.0
    """Bytes of activations that go to the host in a step, or come back, whichever are more..."""
    host: float = 0.0
    """... and what of the rank is in host memory at most."""
    updated_on_host: float = 0.0
    """Bytes of states that the host itself updates."""

    @property
    def memory(self) -> Memory:
        buffers = max(self.under_way, self.at_end - self.activations)
        return replace(self.beside, activations=self.activations, buffers=buffers)


def memory_of(
    model: Transformer, layout: Layout, parts: Parts, precision: Precision, plan: Plan
) -> tuple[tuple[Fullness, ...], float]:
    """By pipeline rank, and the bytes in host memory on the rank with the most."""
    stages = [stage_bytes(model, layout, parts, number) for number in range(layout.stages)]
    found = []
    for rank, order in enumerate(plan.orders):
        # Also stages of pipes that have no micro-batch.
        own = sorted(stage for pipe in layout.held(rank) for stage in pipe)
        if layout.device_bytes:
            found.append(_in_chunks(model, layout, parts, precision, stages))
        else:
            mine = [stages[number] for number in own]
            several = sum(a.op is Op.FORWARD for a in order) > len(mine)
            states = states_of(layout, precision, mine, several=several)
            found.append(_memory(states, layout, parts, stages, own, order))
    return tuple(found), max(one.host for one in found)


class StageBytes:
    """What a stage of so many layers holds. `kind`: what is recomputed, as LayerProfile has it."""

    def __init__(self, layers: int, parts: Parts, kind: str, *, is_first: bool, is_last: bool) -> None:
        self.is_first, self.is_last = is_first, is_last
        self.units = [parts.layer.params] * layers
        self.units += [parts.first.params] * self.is_first + [parts.last.params] * self.is_last
        self.params = float(sum(self.units))
        self.held = layers * parts.layer.held[kind] + (parts.first.held[kind] if self.is_first else 0.0)
        # The head's normalisation keeps what the last layer made, which is counted there.
        self.held += parts.last.held[kind] if self.is_last else 0.0
        # What comes in is this rank's own copy; what goes out lies until it has left.
        self.held += 0.0 if self.is_first else parts.layer.boundary
        ends = (not self.is_first) + (not self.is_last)
        self.moves = self.held - ends * parts.layer.boundary
        """Of what is held: what may go to the host, which is not what comes in or goes out."""
        self.stays = ends * parts.layer.boundary
        self.passing = max(parts.layer.passing[kind], parts.last.passing[kind] if self.is_last else 0.0)


def kind_of(layout: Layout) -> str:
    """What a layout recomputes within a stage, as LayerProfile has it."""
    return layout.recompute if layout.recompute in ("selective", "full") else "none"


def stage_bytes(model: Transformer, layout: Layout, parts: Parts, number: int) -> StageBytes:
    """Of a stage of a layout."""
    layers = len(layout.layers_of(number, model.layers))
    is_last = number == layout.stages - 1
    return StageBytes(layers, parts, kind_of(layout), is_first=number == 0, is_last=is_last)


def _memory(
    states: States, layout: Layout, parts: Parts, stages: Sequence[StageBytes], own: Sequence[int], order: Order
) -> Fullness:
    boundary = parts.layer.boundary

    def activations(action: Action) -> float:
        return stages[action.stage].held * len(action.micro_batches) / action.parts

    def stays(action: Action) -> float:
        return stages[action.stage].stays * len(action.micro_batches) / action.parts

    def inputs(action: Action) -> float:
        return boundary * len(action.micro_batches) / action.parts * (action.stage > 0)

    copies = NOT_MOVED
    if layout.activation_blocks:
        capacity = layout.activation_blocks * max(stage.moves for stage in stages)
        copies = moved(order, lambda stage: stages[stage].moves, capacity)
        held = peak(order, stays, inputs) + copies.device
    else:
        held = peak(order, activations, inputs)
    return fullness(states, layout, parts, [stages[number] for number in own], held, copies)


def fullness(
    states: States, layout: Layout, parts: Parts, own: Sequence[StageBytes], held: float, copies: Moved
) -> Fullness:
    """Of a rank with these stages that holds `held` bytes of activations at most."""
    messages = ROOM * parts.layer.boundary * (layout.pp > 1)
    under_way = max(stage.passing for stage in own) + states.beside + messages
    beside = Memory(states.weights, states.gradients, states.optimizer, 0.0, states.gathered, 0.0)
    return Fullness(beside, held, under_way, states.at_end, max(copies.out, copies.back), states.host + copies.host)


def _in_chunks(
    model: Transformer, layout: Layout, parts: Parts, precision: Precision, stages: Sequence[StageBytes]
) -> Fullness:
    """Of the one stage whose model data is in chunks: what chunks may take follows from the rest."""
    (one,) = stages
    held = one.held * layout.local_micro_batches
    found = in_chunks(model, layout, parts, precision, held + one.passing)
    weights = found.here - found.lists_here
    beside = Memory(weights, found.gradient, found.lists_here, 0.0, found.gathered, 0.0)
    return Fullness(beside, held, one.passing, 0.0, found.copied, found.host, found.updated_on_host)


def states_of(layout: Layout, precision: Precision, stages: Sequence[StageBytes], *, several: bool) -> States:
    """Of these stages on one rank. `zero` as the trainer does it: whole copies wait where the paper counts none.
    `several`: whether some stage goes forward more than once in a step."""
    whole = sum(stage.params for stage in stages)
    replicas = layout.replicas
    zero = layout.zero if replicas > 1 else 0
    shard = whole / replicas if zero else whole
    largest, unit = max(stage.params for stage in stages), max(max(stage.units) for stage in stages)
    step = 4.0 * shard * precision.is_coarse
    optimizer, host = precision.optimizer * shard, 0.0
    if layout.is_on_host:
        room = precision.optimizer + 4 * precision.is_coarse
        optimizer, step, host = room * min(float(layout.bucket), shard), 0.0, optimizer
    weights, fine = precision.weight * shard, precision.gradient
    if not zero:
        bucket = 0.0
        if replicas > 1:
            bucket = 4.0 * whole if precision.is_coarse else min(BUCKET, precision.weight * largest)
        return States(weights, precision.weight * whole, optimizer, 0.0, 0.0, max(bucket, step), host)
    reduced = (precision.weight + (fine if precision.is_coarse and zero >= 2 else 0)) * shard
    if zero == 3:
        return States(weights, reduced, optimizer, 2.0 * precision.weight * unit,
                       (precision.weight + 2.0 * fine) * unit, max(step, 2.0 * fine * unit), host)  # fmt: skip
    gathered, at_end = precision.weight * whole, max(step, 2.0 * fine * largest)
    if zero == 1:
        beside = precision.weight * largest if precision.is_coarse else 0.0
        return States(weights, fine * whole, optimizer, gathered, beside, at_end, host)
    if several:
        waiting = fine * largest + reduced
    else:
        waiting = max(fine * s.params + reduced * sum(t.params for t in stages[k + 1 :]) / whole
                      for k, s in enumerate(stages))  # fmt: skip
    return States(weights, waiting, optimizer, gathered, 2.0 * fine * largest, at_end, host)


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
