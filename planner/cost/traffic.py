"""Bytes that a step of a layout puts on the wire, by purpose and by link: the expected traffic of a job. Pure.

Over all ranks, payload alone, each byte where it is sent: M bytes take 2(n-1)M to all-reduce over n ranks and (n-1)M
to gather or to reduce-scatter. As the trainer's own count (trainer/optim/traffic.py), which tests hold this to; rows
that are filled up so that replicas divide them are not counted here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from holdfast.plan.planned_traffic import PlannedTraffic
from holdfast.plan.transformer import Transformer
from holdfast.planner.cluster.cluster import Level
from holdfast.planner.cost.collectives import sent
from holdfast.planner.cost.layers import Parts, Precision, Sends
from holdfast.planner.cost.layers import parts as parts_of
from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.prediction import Wire

Crossing = Mapping[Level, float]


def wire_of(
    model: Transformer, layout: Layout, parts: Parts, precision: Precision, crossing: Mapping[str, Crossing]
) -> Wire:
    """`crossing`: by axis (tp, dp, pp, world) which share of its links is of which level."""
    purposes = {
        "tensor": (_tensor(model, layout, parts, precision), "tp"),
        "pipeline": (_pipeline(model, layout, parts), "pp"),
        "tied": (_tied(model, layout, parts, precision), "ends"),
        "replicas": (_replicas(model, layout, parts, precision), "dp"),
        "world": (2.0 * (layout.world - 1) * 8 * (2 + layout.world), "world"),
    }
    by_link: dict[Level, float] = defaultdict(float)
    for num_bytes, axis in purposes.values():
        for level, share in crossing[axis].items():
            by_link[level] += num_bytes * share
    by_purpose = {name: num_bytes for name, (num_bytes, _) in purposes.items()}
    by_purpose["pipeline"] += by_purpose.pop("tied")
    return Wire(by_purpose, dict(by_link))


def planned_traffic(
    model: Transformer, layout: Layout, parts: Parts, precision: Precision, times: Sequence[tuple[float, float]] = ()
) -> PlannedTraffic:
    """The same bytes as `wire_of` has in all, on the link from each rank that sends them: stages differ in what they
    send. `times`: how often each stage's parameters are gathered and its gradients summed; empty: `reductions`."""
    places, last = layout.places, layout.stages - 1
    lines, copies = layout.local_micro_batches / len(places), layout.replicas
    owners = 1.0 if layout.zero == 0 else 1.0 / copies
    tables = 0 if layout.shard_vocabulary else model.table_parameters
    once = tables if _is_one_table(model, layout) else 0
    tensor, replicas = [0.0] * layout.pp, []
    for stage in range(layout.stages):
        layers = len(layout.layers_of(stage, model.layers))
        ends = [end for end, at in ((parts.first, 0), (parts.last, last)) if at == stage]
        sends = lines * sum(
            count * sent(op, num_bytes, layout.tp)
            for count, one in ((layers, parts.layer), *((1, end) for end in ends))
            for op, num_bytes in (*one.sends_f, *one.sends_b)
        )
        if layout.sequence:
            alike = layers * model.norms * model.norm_parameters
            alike += (stage == 0) * (tables + model.first_parameters - model.table_parameters)
            alike += (stage == last) * (model.norm_parameters + tables - once)
            sends += owners * 2.0 * (layout.tp - 1) * alike * precision.weight
        for pipe in places:
            tensor[pipe[stage]] += sends / layout.tp
        held = layers * parts.layer.params + sum(end.params for end in ends)
        replicas.append(_shared(layout, stage, precision, times) * held)
    return PlannedTraffic(
        tuple(tensor),
        tuple(replicas),
        lines * parts.layer.boundary,
        _tied(model, layout, parts, precision) / (2.0 * layout.dp * layout.tp),
        _totals(layout.world),
    )


def unlike_traffic(
    model: Transformer,
    layout: Layout,
    tps: Sequence[int],
    precision: Precision,
    times: Sequence[tuple[float, float]] = (),
) -> PlannedTraffic:
    """As `planned_traffic`, of pipeline ranks of different `tps`, which `layout` has otherwise. One pipe.

    A stage sends what it does where all are of its tp. Between stages goes the whole of b s h numbers, once for each
    tp rank that receives it, or once in all with sequence parallelism. The copies of a tied table are added up by all
    n ranks of both ends: 2 (n - 1) / n of it from each.
    """
    (pipe,) = layout.places
    alike = {}
    for tp in set(tps):
        one = replace(layout, tp=tp)
        alike[tp] = planned_traffic(model, one, parts_of(model, one, precision), precision, times)
    tied, ends = 0.0, (tps[pipe[0]], tps[pipe[-1]])
    if model.tied and pipe[0] != pipe[-1]:
        tied = alike[ends[0]].tied
        if ends[0] != ends[1]:
            owners = 1.0 if layout.zero == 0 else 1.0 / layout.replicas
            tied = 2.0 * (sum(ends) - 1) / sum(ends) * model.table_parameters * precision.weight * owners
    whole = layout.local_micro_batches * layout.micro_batch_size * model.length * model.width * precision.weight
    return PlannedTraffic(
        tuple(alike[tp].tensor[place] for place, tp in enumerate(tps)),
        tuple(alike[tps[place]].replicas[stage] for stage, place in enumerate(pipe)),
        tied=tied,
        world=_totals(layout.dp * sum(tps)),
        messages=(float(whole),) * (layout.stages - 1),
        split=layout.sequence,
    )


def module_traffic(
    layout: Layout,
    held: Sequence[int],
    crossing: Sequence[int],
    tied: int,
    precision: Precision,
    times: Sequence[tuple[float, float]],
) -> PlannedTraffic:
    """As `planned_traffic`, of a module of which sizes alone are known, without tp.

    `held`: parameters that each stage trains. `crossing`: bytes of a micro-batch over each boundary. `tied`: elements
    of a parameter that both ends have, 0: none.
    """
    places = layout.places
    lines = layout.local_micro_batches / len(places)
    messages = tuple(lines * num_bytes for num_bytes in crossing)
    is_apart = len(places) == 1 and places[0][0] != places[0][-1]
    owners = 1.0 if layout.zero == 0 else 1.0 / layout.replicas
    return PlannedTraffic(
        (0.0,) * layout.pp,
        tuple(_shared(layout, stage, precision, times) * count for stage, count in enumerate(held)),
        # For readers that do not know of `messages`: what they expect is about right.
        sum(messages) / max(1, len(messages)),
        is_apart * tied * precision.weight * owners,
        _totals(layout.world),
        messages,
    )


def with_curvature(
    found: PlannedTraffic, model: Transformer, layout: Layout, precision: Precision, largest: int, is_clipped: bool
) -> PlannedTraffic:
    """With what DP-KFAC sends (arXiv 2206.15143): of P replicas the owner of a matrix sends its preconditioned gradient
    to the P - 1 others, in the mean over owners (P - 1) / P of all matrices from each to the next.

    `largest`: the longest side of a matrix that has an owner; tables of rows have none. `is_clipped`: pipeline ranks
    add up one number of 8 bytes, here over all ranks.
    """
    replicas = list(found.replicas)
    for stage in range(layout.stages):
        shapes = model.layer_matrices * len(layout.layers_of(stage, model.layers))
        if stage == layout.stages - 1 and not model.tied:
            shapes += ((model.vocab, model.width),)
        count = sum(rows * columns for rows, columns in shapes if max(rows, columns) <= largest)
        replicas[stage] += (layout.dp - 1.0) / layout.dp * count * precision.gradient
    clip = 2.0 * (layout.pp - 1) * 8 / layout.pp if is_clipped else 0.0
    return replace(found, replicas=tuple(replicas), world=found.world + clip)


def contributed(model: Transformer, parts: Parts, precision: Precision, replicas: int, roles: int) -> PlannedTraffic:
    """Of replicas that go back through a share of the layers each (SPB, DistributedML'21), on one rank each: the mean
    over the steps in which each replica has each role once.

    Section q of k, from the output, has c = d (k - q + 1) / k contributors: 2(c - 1) P to add its P gradients up, and
    (d - c) P of means to the others. Of k equal sections on k replicas, three quarters of an all-reduce.
    """
    total = 0.0
    for section in range(1, roles + 1):
        layers = model.layers * section // roles - model.layers * (section - 1) // roles
        ends = parts.last.params * (section == 1) + parts.first.params * (section == roles)
        having = replicas * (roles - section + 1) // roles
        total += (2 * (having - 1) + replicas - having) * (layers * parts.layer.params + ends) * precision.gradient
    return PlannedTraffic((0.0,), (total / replicas,), world=_totals(replicas))


def reductions(layout: Layout) -> tuple[int, int]:
    """How often in a step replicas gather a stage's parameters, and reduce its gradients.

    Stages 0 and 1 once; 2 behind each micro-batch; 3 gathers for each forward and each backward too.
    """
    count = layout.local_micro_batches
    return {0: (0, 1), 1: (1, 1), 2: (1, count), 3: (2 * count, count)}[layout.zero]


def _shared(layout: Layout, stage: int, precision: Precision, times: Sequence[tuple[float, float]]) -> float:
    """Bytes from each replica to the next for each parameter that it has of a stage."""
    gathers, sums = times[stage] if times else reductions(layout)
    if layout.zero == 0:  # an all-reduce of whole gradients, and nothing to gather
        gathers, sums = 0, 2 * sums
    return (layout.replicas - 1.0) / layout.replicas * (gathers * precision.weight + sums * precision.gradient)


def _totals(world: int) -> float:
    """From each rank to the next of all: loss, norm and a flag of each rank."""
    return 2.0 * (world - 1) * 8 * (2 + world) / world


def _tensor(model: Transformer, layout: Layout, parts: Parts, precision: Precision) -> float:
    """Inside layers; and gradients of what tp ranks hold alike, with sequence parallelism."""

    def of(sends: Sends) -> float:
        return sum(sent(op, num_bytes, layout.tp) for op, num_bytes in sends)

    lines = layout.micro_batches
    each = model.layers * (of(parts.layer.sends_f) + of(parts.layer.sends_b))
    ends = sum(of(sends) for one in (parts.first, parts.last) for sends in (one.sends_f, one.sends_b))
    found = lines * (each + ends)
    if layout.sequence:
        copies = layout.replicas if layout.zero == 0 else 1
        tables = 0 if layout.shard_vocabulary else model.table_parameters * (1 if _is_one_table(model, layout) else 2)
        learned = model.first_parameters - model.table_parameters
        alike = (model.layers * model.norms + 1) * model.norm_parameters + tables + learned
        found += 2.0 * (layout.tp - 1) * alike * precision.weight * copies
    return found


def _is_one_table(model: Transformer, layout: Layout) -> bool:
    return model.tied and layout.stages == 1


def _pipeline(model: Transformer, layout: Layout, parts: Parts) -> float:
    """Activations forward, and their gradients back, between stages on unlike ranks."""
    places = layout.places[0]
    moved = sum(a != b for a, b in pairwise(places))
    return 2.0 * moved * layout.micro_batches * parts.layer.boundary * layout.tp


def _tied(model: Transformer, layout: Layout, parts: Parts, precision: Precision) -> float:
    """The two copies of a tied table are added up."""
    if not model.tied or len(layout.places) > 1 or layout.places[0][0] == layout.places[0][-1]:
        return 0.0
    copies = layout.replicas if layout.zero == 0 else 1
    ranks = 1 if layout.shard_vocabulary else layout.tp
    return 2.0 * model.table_parameters * precision.weight * ranks * copies


def _replicas(model: Transformer, layout: Layout, parts: Parts, precision: Precision) -> float:
    if layout.replicas == 1:
        return 0.0
    held = parts.first.params + model.layers * parts.layer.params + parts.last.params
    gathers, sums = reductions(layout)
    of_sums = sums * precision.gradient * (2 if layout.zero == 0 else 1)
    return (layout.replicas - 1.0) * layout.tp * held * (gathers * precision.weight + of_sums)
