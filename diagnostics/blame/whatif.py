"""A step as it might have been: with a suspect as fast as its peers, with all ranks so, with less and less to do."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from holdfast.diagnostics.blame.model import BlameSuspect, Bursts, Slowness
from holdfast.diagnostics.blame.suspects.peers import nanmedian
from holdfast.diagnostics.blame.suspects.places import works_of
from holdfast.diagnostics.blame.suspects.samples import computes
from holdfast.diagnostics.steps.graph import Column, Graph
from holdfast.diagnostics.steps.replay import Measured, Variant
from holdfast.diagnostics.steps.shape import OTHER

Floats = npt.NDArray[np.float64]


def without_suspect(graph: Graph, seen: Measured, s: BlameSuspect) -> Variant:
    """The suspect takes no longer than its peers."""
    column = graph.columns[s.column]
    shape = column.shape
    if s.kind is Slowness.LINK:
        moved: dict[int, Floats] = {}
        for move in s.moves:
            syncs = graph.columns[move.column].shape.syncs
            change = moved.setdefault(move.column, np.zeros(seen.transfers[move.column].shape))
            rows = [k for k, sync in enumerate(syncs) if sync.key[0] == move.name]
            place = np.ix_(np.array(rows), np.array(move.lanes))
            change[place] -= np.array(move.shares) * seen.transfers[move.column][place]
        return Variant({}, moved, {})
    if s.whole:
        own = column.own[:, s.lane]
        share = min(s.self_s / max(float(own.sum()), 1e-12), 0.99)
        return Variant({s.column: -share * own}, {}, {s.column: s.lane})
    works = s.works if s.bursts is None else _share_in(graph.step, column, s.lane, s.bursts)
    share_of = {int(i): works.get(role, 0.0) for i, role in zip(shape.works, shape.roles, strict=False)}
    share_of[-1] = works.get(OTHER, 0.0)
    spared = np.diff(column.at[:, s.lane]) * np.array([share_of.get(int(i), 0.0) for i in shape.owner])
    change = np.zeros(len(shape.syncs) + 1)
    mine = shape.segment >= 0
    np.subtract.at(change, shape.segment[mine], spared[mine])
    change[0] -= (column.at[0, s.lane] - column.begin[s.lane]) * share_of[-1]
    return Variant({s.column: change}, {}, {s.column: s.lane})


def _share_in(step: int, column: Column, lane: int, bursts: Bursts) -> dict[str, float]:
    """Of the role's time in this step."""
    took = float(works_of(column).get(bursts.role, column.other)[lane])
    beyond = bursts.seconds.get(step, 0.0)
    return {bursts.role: min(beyond / took, 0.99)} if beyond > 0 and took > 0 else {}


def joined(graph: Graph, seen: Measured, variants: Sequence[Variant]) -> Variant:
    """All of them at once. What two of them spare, they spare together at most once."""
    lanes: dict[tuple[int, int], Floats] = {}
    moved: dict[int, Floats] = {}
    for variant in variants:
        for c, change in variant.own.items():
            place = (c, variant.rank[c])
            lanes[place] = lanes.get(place, 0.0) + change
        for c, change in variant.transfers.items():
            moved[c] = moved.get(c, 0.0) + change
    for (c, lane), change in lanes.items():
        lanes[c, lane] = np.clip(change, -graph.columns[c].own[:, lane], 0.0)
    for c, change in moved.items():
        moved[c] = np.clip(change, -np.maximum(seen.transfers[c], 0.0), 0.0)
    return Variant({}, moved, {}, tuple(Variant({c: change}, {}, {c: lane}) for (c, lane), change in lanes.items()))


def stripped(
    graph: Graph, seen: Measured, culprits: Sequence[Variant], around: Sequence[frozenset[int]]
) -> tuple[list[Variant], Floats]:
    """The step with less and less: no rank and no transfer slower than the median of its peers; that with all stages
    alike; that with transfers that take no time; and without what lies `around` the model's work, too (by column,
    spans). Then (columns,): the computation of each, seconds."""
    without = joined(graph, seen, culprits)
    own = [column.own.copy() for column in graph.columns]
    for lane in without.more:
        for c, change in lane.own.items():
            own[c][:, lane.rank[c]] += change
    alike, quick = [], []
    for c, column in enumerate(graph.columns):
        took = seen.transfers[c] + without.transfers.get(c, 0.0)
        alike.append(np.minimum(own[c], nanmedian(column.own, axis=1)[:, None]))
        quick.append(np.minimum(took, nanmedian(seen.transfers[c], axis=1)[:, None]))
    works = np.array([float(nanmedian(part_of(column, _computing(column)).sum(axis=0))) for column in graph.columns])
    even, bare = [], []
    for c, column in enumerate(graph.columns):
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.where(column.own > 0, alike[c] / column.own, 0.0)
        more = works.mean() / works[c] - 1 if works[c] > 0 else 0.0
        even.append(alike[c] + part_of(column, _computing(column)) * rate * more)
        bare.append(np.clip(alike[c] - part_of(column, around[c]) * rate, 0.0, None))

    def changed(works: Sequence[Floats], transfers: Sequence[Floats]) -> Variant:
        return Variant(
            {c: new - column.own for c, (new, column) in enumerate(zip(works, graph.columns, strict=True))},
            {c: new - moved for c, (new, moved) in enumerate(zip(transfers, seen.transfers, strict=True))},
            {},
        )

    none = [np.minimum(moved, 0.0) for moved in quick]
    return [changed(alike, quick), changed(even, quick), changed(alike, none), changed(bare, none)], works


def part_of(column: Column, spans: Collection[int]) -> Floats:
    """(syncs + 1, ranks): as `own`, the seconds that are of these spans; of -1 what lies outside of all."""
    found = np.zeros_like(column.own)
    shape = column.shape
    mine = (shape.segment >= 0) & np.isin(shape.owner, list(spans))
    np.add.at(found, shape.segment[mine], np.diff(column.at, axis=0)[mine])
    if -1 in spans:
        found[0] += column.at[0] - column.begin
    return found


def _computing(column: Column) -> frozenset[int]:
    shape = column.shape
    return frozenset(int(i) for i, role in zip(shape.works, shape.roles, strict=False) if computes(role))
