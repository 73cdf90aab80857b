"""Where steps take longer than their plan says: each kind of action as quick as planned, and the steps played again.

What a kind takes is the median over the ranks of one pipeline coordinate, so that a single slow rank, which blame
names, is no excess of all. Only what makes the step longer counts: what other work hides is none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from holdfast.diagnostics.blame.suspects.peers import nanmedian
from holdfast.diagnostics.blame.whatif import part_of
from holdfast.diagnostics.steps.graph import Column, Graph
from holdfast.diagnostics.steps.replay import Measured, Variant, measured, replay
from holdfast.diagnostics.steps.shape import REPLICAS, Meeting, Sync
from holdfast.plan.plan import SPANS, Op, Plan
from holdfast.plan.planned_step import PlannedStep

Floats = npt.NDArray[np.float64]

OPTIMIZER, DATA, TENSOR, EXCHANGE, REST = "optimizer", "data", "tensor", "replicas", "rest"
_TEXTS = {
    OPTIMIZER: "the optimizer",
    DATA: "waiting for data",
    TENSOR: "collectives of tensor parallelism",
    EXCHANGE: "gathering and reducing over replicas",
    REST: "what is no action of the plan",
}
_BACK = {SPANS[op] for op in (Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT, Op.RECOMPUTE)}
_OF_WORK = {
    **dict.fromkeys((SPANS[op] for op in (Op.STEP, Op.FACTOR, Op.INVERT, Op.PRECOND)), OPTIMIZER),
    **dict.fromkeys((SPANS[Op.LOAD], "data"), DATA),
    **dict.fromkeys((SPANS[Op.UNSHARD], SPANS[Op.REDUCE_GRAD]), EXCHANGE),
}
"""Kinds by the first word of a role; forward and backward are kinds by themselves, all else is `REST`."""


@dataclass(frozen=True, slots=True)
class Excess:
    """Of one kind of action, seconds of a step on the rank coordinate where it exceeds its plan by the most."""

    kind: str
    """"forward 1", "backward 0", "messages 0-1", tensor, replicas, optimizer, data or rest."""
    measured_s: float
    planned_s: float
    exposed_s: float
    """By how much a step would be shorter with all of this kind as planned."""

    @property
    def what(self) -> str:
        """In words."""
        name, _, number = self.kind.partition(" ")
        if name == "messages":
            return f"messages between stages {number.replace('-', ' and ')}"
        return f"{name} of stage {number}" if number else _TEXTS[self.kind]


@dataclass(slots=True)
class _Change:
    """What makes one kind as quick as planned."""

    own: dict[int, Floats] = field(default_factory=dict)
    transfers: dict[int, Floats] = field(default_factory=dict)
    takes: list[tuple[float, float]] = field(default_factory=list)
    """(measured, planned) of each coordinate."""


def excesses(graphs: Sequence[Graph], plan: Plan, planned: PlannedStep, most: int = 8) -> list[Excess]:
    """The kinds that exceed their plan, the most exposed first. `most`: steps that are played again, evenly chosen."""
    if not graphs:
        return []
    chosen = np.unique(np.linspace(0, len(graphs) - 1, min(most, len(graphs))).round().astype(int)).tolist()
    counts = _counts(plan)
    exposed: dict[str, list[float]] = defaultdict(list)
    takes: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for i in chosen:
        graph = graphs[i]
        if len(graph.columns) != len(counts):
            continue
        seen = measured(graph)
        changes = _changes(graph, seen, counts, planned)
        names = list(changes)
        variants = [Variant({}, {}, {}), *(Variant(c.own, c.transfers, {}) for c in changes.values())]
        spans = replay(graph, seen, variants).makespan()
        for name, span in zip(names, spans[1:], strict=True):
            exposed[name].append(float(spans[0] - span))
            takes[name].append(max(changes[name].takes, key=lambda both: both[0] - both[1]))
    steps = len(chosen)
    found = []
    for name, saved in exposed.items():
        took, wanted = np.mean(np.array(takes[name]), axis=0)
        found.append(Excess(name, float(took), float(wanted), max(0.0, sum(saved) / steps)))
    return sorted((one for one in found if one.exposed_s > 0), key=lambda one: -one.exposed_s)


def _counts(plan: Plan) -> list[dict[int, float]]:
    """By pipeline rank: how many micro-batches go forward through each of its stages in a step."""
    found: list[dict[int, float]] = []
    for order in plan.orders:
        counts: dict[int, float] = defaultdict(float)
        for action in order:
            if action.op is Op.FORWARD:
                counts[action.stage] += float(action.share)
        found.append(dict(counts))
    return found


def _changes(
    graph: Graph, seen: Measured, counts: Sequence[dict[int, float]], planned: PlannedStep
) -> dict[str, _Change]:
    """By kind, of those that exceed their plan on some coordinate."""
    found: dict[str, _Change] = defaultdict(_Change)
    for c, column in enumerate(graph.columns):
        wanted = _wanted(planned, counts[c], c)
        works: dict[str, list[int]] = defaultdict(list, {REST: [-1]})
        for i, role in zip(column.shape.works.tolist(), column.shape.roles, strict=False):
            works[_kind_of_work(role)].append(i)
        syncs: dict[str, list[int]] = defaultdict(list)
        for k, sync in enumerate(column.shape.syncs):
            syncs[_kind_of_meeting(sync)].append(k)
        for kind in {*works, *syncs}:
            if kind.startswith("messages"):
                _spare_messages(found[kind], seen, c, syncs[kind], planned.message)
            else:
                _spare(found[kind], column, seen, c, (works[kind], syncs[kind]), wanted.get(kind, 0.0))
    return {kind: change for kind, change in found.items() if change.own or change.transfers}


def _wanted(planned: PlannedStep, counts: dict[int, float], rank: int) -> dict[str, float]:
    """Planned seconds of a step on one pipeline rank, by kind."""

    def at(values: Sequence[float], place: int) -> float:
        return values[place] if place < len(values) else 0.0

    found = {OPTIMIZER: at(planned.optimizer, rank), EXCHANGE: at(planned.replicas, rank), TENSOR: 0.0}
    for stage, count in counts.items():
        found[f"forward {stage}"] = count * at(planned.forward, stage)
        found[f"backward {stage}"] = count * at(planned.backward, stage)
        found[TENSOR] += count * at(planned.tensor, stage)
    return found


def _kind_of_work(role: str) -> str:
    name, _, stage = role.partition(" ")
    if name in _BACK:
        return f"backward {stage}"
    return role if name == SPANS[Op.FORWARD] else _OF_WORK.get(name, REST)


def _kind_of_meeting(sync: Sync) -> str:
    if sync.how is not Meeting.COLLECTIVE:
        kind, stage = sync.key[:2]
        other = stage + 1 if kind == SPANS[Op.SEND_FORWARD] else stage - 1
        is_message = kind in (SPANS[Op.SEND_FORWARD], SPANS[Op.SEND_BACKWARD])
        return f"messages {min(stage, other)}-{max(stage, other)}" if is_message else REST
    if sync.group == "tp":
        return TENSOR
    if sync.group == "world":
        return OPTIMIZER
    return EXCHANGE if sync.group in ("dp", "pp") or sync.group.startswith(REPLICAS) else REST


def _spare(
    change: _Change, column: Column, seen: Measured, c: int, parts: tuple[list[int], list[int]], wanted: float
) -> None:
    """`parts`: spans of the kind's own work, and its meetings. All of them take the same share of their time."""
    spans, syncs = parts
    own = part_of(column, spans)
    moved = np.zeros_like(seen.transfers[c])
    moved[syncs] = np.maximum(seen.transfers[c][syncs], 0.0)
    took = float(nanmedian((own.sum(axis=0) + moved.sum(axis=0))[None], axis=1)[0])
    change.takes.append((took, wanted))
    if took > wanted:
        share = 1 - wanted / took
        change.own[c], change.transfers[c] = -share * own, -share * moved


def _spare_messages(change: _Change, seen: Measured, c: int, syncs: list[int], each: float) -> None:
    """`each`: what one message is planned to take."""
    took = np.maximum(seen.transfers[c][syncs], 0.0)
    more = np.maximum(nanmedian(took, axis=1) - each, 0.0)
    whole = float(nanmedian(took, axis=1).sum())
    change.takes.append((whole, whole - float(more.sum())))
    if more.any():
        change.transfers[c] = np.zeros_like(seen.transfers[c])
        change.transfers[c][syncs] = -np.minimum(more[:, None], took)
