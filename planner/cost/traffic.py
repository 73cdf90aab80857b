"""Bytes that a step of a layout puts on the wire, by purpose and by link: the expected traffic of a job. Pure.

Over all ranks, payload alone, each byte where it is sent: M bytes take 2(n-1)M to all-reduce over n ranks and (n-1)M
to gather or to reduce-scatter. As the trainer's own count (trainer/optim/traffic.py), which tests hold this to; rows
that are filled up so that replicas divide them are not counted here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from holdfast.plan.planned_traffic import PlannedTraffic
from holdfast.plan.transformer import Transformer
from holdfast.planner.cluster.cluster import Level
from holdfast.planner.cost.collectives import sent
from holdfast.planner.cost.layers import Parts, Precision, Sends
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
        gathers, sums = times[stage] if times else reductions(layout)
        if layout.zero == 0:  # an all-reduce of whole gradients, and nothing to gather
            gathers, sums = 0, 2 * sums
        each = gathers * precision.weight + sums * precision.gradient
        replicas.append((copies - 1.0) / copies * held * each)
    return PlannedTraffic(
        tuple(tensor),
        tuple(replicas),
        lines * parts.layer.boundary,
        _tied(model, layout, parts, precision) / (2.0 * layout.dp * layout.tp),
        2.0 * (layout.world - 1) * 8 * (2 + layout.world) / layout.world,
    )


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
    return PlannedTraffic((0.0,), (total / replicas,), world=2.0 * (replicas - 1) * 8 * (2 + replicas) / replicas)


def reductions(layout: Layout) -> tuple[int, int]:
    """How often in a step replicas gather a stage's parameters, and reduce its gradients.

    Stages 0 and 1 once; 2 behind each micro-batch; 3 gathers for each forward and each backward too.
    """
    count = layout.local_micro_batches
    return {0: (0, 1), 1: (1, 1), 2: (1, count), 3: (2 * count, count)}[layout.zero]


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
