"""A step as a happens-before graph, in columns: one for each rank with the same place in the pipeline.

An action depends on the one before it on its rank, a receive on its message, a collective on the last of its group
to arrive. Because ranks of one pipeline coordinate share one list of actions, whole columns move along the graph at
once: a step of 12,288 ranks takes as many numpy calls as its plan has actions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.diagnostics.steps.shape import REPLICAS, Meeting, Shape, shape_of
from holdfast.diagnostics.steps.span_table import SpanTable
from holdfast.plan.plan import Mesh, Plan

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass
class Column:
    """The ranks of one pipeline coordinate in one step. Rows go with the shape's boundaries, columns with ranks."""

    ranks: Ints
    present: npt.NDArray[np.bool_]
    """Ranks whose spans are all there; the others' columns hold NaN."""
    shape: Shape
    at: Floats
    """(boundaries, ranks): seconds since the graph's zero."""
    cpu: Floats
    """(spans, ranks): processor seconds of each span; 0 not measured."""
    begin: Floats
    """(ranks,): when the step began: the end of the one before, where that is known."""
    bytes: Ints
    """(spans,): what each moved, as one of the ranks reports; 0 not known."""

    def __post_init__(self) -> None:
        intervals = np.diff(self.at, axis=0)
        owner, segment = self.shape.owner, self.shape.segment
        self.spent = np.vstack([_summed(intervals, owner, int(i)) for i in self.shape.works] or [intervals[:0]])
        """(works, ranks): seconds of each work that are its own, less what lies in it."""
        count = len(self.shape.syncs) + 1
        self.own = np.zeros((count, self.at.shape[1]))
        """(syncs + 1, ranks): seconds of the rank's own before each sync, and after the last."""
        mine = segment >= 0
        firsts = np.flatnonzero(np.diff(segment[mine], prepend=-1))
        self.own[segment[mine][firsts]] = np.add.reduceat(intervals[mine], firsts)
        self.other: Floats = self.at[0] - self.begin + intervals[mine & (owner < 0)].sum(axis=0)
        """(ranks,): seconds outside of all spans."""
        self.own[0] += self.at[0] - self.begin
        edges = {edge: b for b, edge in enumerate(self.shape.edges)}
        self.starts = self.at[[edges[s.span, False] for s in self.shape.syncs]]
        self.ends = self.at[[edges[s.span, True] for s in self.shape.syncs]]

    def cpu_spent(self) -> Floats:
        """(works, ranks): processor seconds of each work's own; NaN where not measured."""
        found = self.cpu[self.shape.works].copy()
        found[found == 0] = np.nan
        place = {int(i): k for k, i in enumerate(self.shape.works)}
        for outer, inner in self.shape.nested:
            found[place[outer]] -= np.nan_to_num(self.cpu[inner])
        return found


@dataclass(frozen=True, slots=True)
class StepNode:
    """One meeting in the order in which they can be worked out: (column, sync) of all that take part, and of those
    they wait for. `axis` is that of the ranks' array along which a collective reduces; None all of them, -1 none."""

    how: Meeting
    members: tuple[tuple[int, int], ...]
    source: tuple[int, int] | None = None
    axis: int | None = -1


@dataclass(slots=True)
class Graph:
    """A step. `sizes` is the shape of a column's ranks along the axes of the mesh but pp."""

    step: int
    columns: list[Column]
    nodes: list[StepNode]
    sizes: tuple[int, ...]
    axes: tuple[str, ...]
    incomplete: list[int]
    """Ranks with spans missing."""

    def reduced(self, values: Floats, axis: int | None) -> Floats:
        """The latest of each group of a collective, at each of its ranks. `values` (..., ranks); NaN is no rank."""
        values = np.where(np.isnan(values), -np.inf, values)
        if axis is None:
            latest = values.max(axis=-1, keepdims=True)
            return np.broadcast_to(latest, values.shape)
        if axis < 0:
            return values
        lead = values.shape[:-1]
        folded = values.reshape(*lead, *self.sizes)
        latest = folded.max(axis=len(lead) + axis, keepdims=True)
        return np.broadcast_to(latest, folded.shape).reshape(*lead, -1)


def graphs(table: SpanTable, plan: Plan | None, world: int) -> Iterator[Graph]:
    """The steps of a table in order. Ranks below `world`; where there is no plan, all are replicas of one another.

    None where pipeline ranks differ in tp: columns of unlike length have no rank of the same place beside each other.
    """
    if not len(table) or (plan is not None and plan.mesh.tps):
        return
    mesh = plan.mesh if plan is not None else Mesh.of(dp=world)
    names = [name for name, _ in mesh.axes]
    line = [name for name in names if name != "pp"]
    members = np.arange(mesh.world).reshape([size for _, size in mesh.axes])
    members = np.moveaxis(members, names.index("pp"), 0) if "pp" in names else members[None]
    sizes = members.shape[1:]
    places = members.reshape(len(members), -1)
    rows = _Rows(table.take(table.rank < mesh.world), mesh.world)
    shapes: dict[tuple[int, ...], Shape] = {}
    orders: dict[tuple[int, ...], list[StepNode]] = {}
    before = np.full(mesh.world, np.nan)
    for step in rows.steps:
        made = [rows.column(step, ranks, before, shapes) for ranks in places]
        end = rows.ends(step)
        before = np.where(np.isnan(end), before, end)
        columns = [column for column in made if column is not None]
        if len(columns) < len(made) or not columns:
            continue  # a whole stage is missing: what it did to the others cannot be said
        key = tuple(id(column.shape) for column in columns)
        if key not in orders:
            orders[key] = list(_ordered(columns, line))
        incomplete = [int(r) for c in columns for r in c.ranks[~c.present]]
        yield Graph(int(step), columns, orders[key], sizes, tuple(line), incomplete)


class _Rows:
    """A table's spans by step and rank, in order of their start."""

    def __init__(self, table: SpanTable, world: int) -> None:
        self.steps = np.unique(table.step)
        number = np.searchsorted(self.steps, table.step)
        block = number.astype(np.int64) * world + table.rank
        # Outer spans end later and so come later: the sort keeps ties in the order of the reversed table.
        order = np.arange(len(table))[::-1]
        order = order[np.lexsort((table.start[order], block[order]))]
        self.table, self.world = table.take(order), world
        block = block[order]
        self.first = np.flatnonzero(np.diff(block, prepend=-1))
        self.count = np.diff(np.append(self.first, len(block)))
        self.block = block[self.first]
        self.zero = int(self.table.start.min())
        self.start = _seconds(self.table.start - self.zero)
        self.end = _seconds(self.table.end - self.zero)
        self.cpu = _seconds(self.table.cpu)
        self.sign = self._signatures()

    def _signatures(self) -> npt.NDArray[np.uint64]:
        """One number for each block: the same where the same spans follow each other."""
        t = self.table
        with np.errstate(over="ignore"):
            mixed = t.kind.astype(np.uint64)
            for column in (t.stage, t.micro_batch, t.turn, t.group):
                mixed = mixed * np.uint64(0x9E3779B97F4A7C15) + (column.astype(np.int64) + 2).astype(np.uint64)
            mixed ^= mixed >> np.uint64(29)
            place = np.arange(len(t)) - np.repeat(self.first, self.count)
            powers = np.cumprod(np.full(int(self.count.max()) + 1, 0xD1342543DE82EF95, np.uint64))
            return np.add.reduceat(mixed * powers[place], self.first)

    def _blocks(self, step: int, ranks: Ints) -> Ints:
        """The block of each rank in a step, -1 where there is none."""
        wanted = np.searchsorted(self.steps, step) * self.world + ranks
        at = np.minimum(np.searchsorted(self.block, wanted), len(self.block) - 1)
        return np.where(self.block[at] == wanted, at, -1)

    def ends(self, step: int) -> Floats:
        """When each rank's last span of a step ended."""
        blocks = self._blocks(step, np.arange(self.world))
        lasts: Floats = np.maximum.reduceat(self.end, self.first)
        return np.where(blocks >= 0, lasts[blocks], np.nan)

    def column(self, step: int, ranks: Ints, before: Floats, shapes: dict[tuple[int, ...], Shape]) -> Column | None:
        blocks = self._blocks(step, ranks)
        known = blocks >= 0
        if not known.any():
            return None
        signs, votes = np.unique(self.sign[blocks[known]], return_counts=True)
        usual = signs[votes.argmax()]
        present = known & (np.where(known, self.sign[blocks], 0) == usual)
        model = int(blocks[present][0])
        rows = slice(int(self.first[model]), int(self.first[model] + self.count[model]))
        key = (int(usual), int(self.count[model]))
        if key not in shapes:
            shapes[key] = self._shape(rows)
        shape = shapes[key]
        index = self.first[np.where(present, blocks, model)][None, :] + np.arange(self.count[model])[:, None]
        spans = np.array([span for span, _ in shape.edges])
        is_end = np.array([is_end for _, is_end in shape.edges])
        at: Floats = np.where(is_end[:, None], self.end[index[spans]], self.start[index[spans]])
        at = np.maximum.accumulate(at, axis=0)
        at[:, ~present] = np.nan
        begin: Floats = np.fmin(before[ranks], at[0])  # at[0] where nothing came before
        return Column(ranks, present, shape, at, self.cpu[index], begin, self.table.bytes[rows])

    def _shape(self, rows: slice) -> Shape:
        t = self.table
        return shape_of(
            [t.kinds[k] for k in t.kind[rows]],
            [t.groups[g] for g in t.group[rows]],
            t.stage[rows].tolist(),
            t.micro_batch[rows].tolist(),
            t.turn[rows].tolist(),
            t.start[rows],
            t.end[rows],
        )


def _seconds(ns: Ints) -> Floats:
    return ns.astype(np.float64) * 1e-9


def _summed(intervals: Floats, owner: Ints, span: int) -> Floats:
    found: Floats = intervals[owner == span].sum(axis=0)
    return found


def _ordered(columns: list[Column], axes: list[str]) -> Iterator[StepNode]:
    """All meetings, each after those that it depends on."""
    senders = {
        s.key: (c, k)
        for c, column in enumerate(columns)
        for k, s in enumerate(column.shape.syncs)
        if s.how is Meeting.SEND
    }
    parties: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for c, column in enumerate(columns):
        for k, s in enumerate(column.shape.syncs):
            if s.how is Meeting.COLLECTIVE and s.group not in axes:
                parties.setdefault((s.group, s.turn), []).append((c, k))
    at = [0] * len(columns)
    met: set[tuple[str, int]] = set()
    moving = True
    while moving:
        moving = False
        for c, column in enumerate(columns):
            while at[c] < len(column.shape.syncs):
                s, here = column.shape.syncs[at[c]], (c, at[c])
                if s.how is Meeting.SEND:
                    yield StepNode(s.how, (here,))
                elif s.how is Meeting.RECEIVE:
                    source = senders.get(s.key)
                    if source is not None and at[source[0]] <= source[1]:
                        break
                    yield StepNode(s.how, (here,), source)
                elif s.group in axes:
                    yield StepNode(s.how, (here,), None, axes.index(s.group))
                elif (s.group, s.turn) not in met:
                    everybody = parties[s.group, s.turn]
                    if any(at[d] < k for d, k in everybody):
                        break
                    met.add((s.group, s.turn))
                    yield StepNode(s.how, tuple(everybody), None, _axis(s.group, axes))
                at[c] += 1
                moving = True


def _axis(group: str, axes: list[str]) -> int | None:
    """Along which axis ranks of several columns meet besides: "pp" pairs the same place in each, others are all."""
    if group.startswith(REPLICAS):
        return axes.index("dp") if "dp" in axes else -1
    return -1 if group == "pp" else None
