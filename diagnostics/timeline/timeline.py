"""All ranks on one clock, in the trace format that Perfetto and Chrome open: a process is a node, a thread a rank.

Arrows lead from a message's sending to its receiver, and from the last to arrive at a collective to those that waited.
Perfetto lets an arrow lead from the slice that began first to the other; so what a wait ends with, the transfer of what
it was for, is a slice of its own in it. Format ("Trace Event Format"):
docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU ("Trace Event Format").
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple, TextIO

import numpy as np

from holdfast.base.errors import UsageError
from holdfast.diagnostics.blame.report import GARBAGE, world_of
from holdfast.diagnostics.steps import graph as step_graph
from holdfast.diagnostics.steps.graph import Graph
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.replay import Measured, measured
from holdfast.diagnostics.steps.shape import Meeting
from holdfast.diagnostics.steps.span_table import SpanTable, concatenated
from holdfast.wire.span_rows import THREAD

Json = dict[str, Any]

MESSAGE, LAST = "message", "last to arrive"
"""What arrows are called."""
TRANSFER = "transfer "
"""Before the name of the wait that it ends."""


def write(table: SpanTable, shape: JobShape, out: TextIO) -> int:
    """Write a trace; how many events. UsageError when there are no spans."""
    out.write('{"displayTimeUnit":"ms","otherData":' + json.dumps({"job": shape.job, "name": shape.name}))
    out.write(',"traceEvents":[\n')
    count = 0
    for count, event in enumerate(events(table, shape), 1):
        out.write((",\n" if count > 1 else "") + json.dumps(event, separators=(",", ":")))
    out.write("\n]}\n")
    return count


def events(table: SpanTable, shape: JobShape) -> Iterator[Json]:
    """Names first, then spans, then arrows. Times in microseconds from the first span."""
    table = table.without(THREAD)
    if not len(table):
        raise UsageError("no spans of these steps")
    zero = int(table.start.min())
    world = world_of(table, shape)
    drawn = _drawn(table, shape, world)
    table = _in_order(concatenated([table, _transfers(_in_order(table), drawn)]))
    lanes = _lanes(table)
    yield from _names(table, lanes, world, shape)
    numbers, ids = table.actions()
    for i in range(len(table)):
        rank, kind, group = int(table.rank[i]), table.kinds[table.kind[i]], table.groups[table.group[i]]
        args: Json = {"rank": rank, "step": int(table.step[i])}
        if action := ids[numbers[i]]:
            args["action"] = action
        for name in ("stage", "micro_batch", "seq"):
            if (value := int(getattr(table, name)[i])) >= 0:
                args[name] = value
        if group:
            args["group"] = group
        if table.bytes[i]:
            args["bytes"] = int(table.bytes[i])
        if table.cpu[i]:
            args["cpu_ms"] = round(int(table.cpu[i]) * 1e-6, 4)
        if kind.startswith(TRANSFER):
            kind, args["of"] = TRANSFER.strip(), kind.removeprefix(TRANSFER)
        start = int(table.start[i])
        yield {
            "ph": "X", "name": kind, "cat": group or "work", "pid": _node(rank, shape), "tid": rank + lanes[i] * world,
            "ts": _us(start - zero), "dur": _us(int(table.end[i]) - start), "args": args,
        }  # fmt: skip
    starts = zip(table.rank.tolist(), table.start.tolist(), lanes, strict=True)
    beside = {(rank, start): lane for rank, start, lane in starts if lane}
    for number, arrow in enumerate(drawn, 1):
        base = {"cat": "arrow", "name": arrow.name, "id": number}
        for rank, begin, at, more in (
            (arrow.source, arrow.sent, arrow.sent, {"ph": "s"}),
            # "e": binds to the slice around it, which is the wait, or the transfer in it.
            (arrow.target, max(arrow.sent, arrow.began), max(arrow.came - 1, arrow.began), {"ph": "f", "bp": "e"}),
        ):
            tid = rank + beside.get((rank, begin), 0) * world
            yield base | more | {"pid": _node(rank, shape), "tid": tid, "ts": _us(at - zero)}


def _in_order(table: SpanTable) -> SpanTable:
    """An arrow belongs to the slice that began last before it, so the outer of two that begin together comes first."""
    return table.take(np.lexsort((-table.end, table.start)))


class _Drawn(NamedTuple):
    """An arrow in the table's nanoseconds."""

    name: str
    source: int
    sent: int
    target: int
    began: int
    came: int


def _drawn(table: SpanTable, shape: JobShape, world: int) -> list[_Drawn]:
    regular = table.without(GARBAGE)
    found = []
    for graph in step_graph.graphs(regular, shape.decoded(), world):
        first = int(regular.start.min())
        for arrow in arrows(graph):
            sent, began, came = (first + round(at * 1e9) for at in (arrow.sent, arrow.began, arrow.came))
            if max(came - 1, began) >= sent:  # else, by clocks that do not agree, it came before it was sent
                found.append(_Drawn(arrow.name, arrow.source, sent, arrow.target, began, came))
    return found


def _transfers(table: SpanTable, drawn: list[_Drawn]) -> SpanTable:
    """For each arrow to a wait that began before it: the end of the wait, when what it was for was on its way."""
    rows = {place: row for row, place in enumerate(zip(table.rank.tolist(), table.start.tolist(), strict=True))}
    waits = [(arrow, rows[arrow.target, arrow.began]) for arrow in drawn if arrow.sent > arrow.began]
    spans = table.take(np.array([row for _, row in waits], np.int64))
    spans.start[:] = [arrow.sent for arrow, _ in waits]
    spans.end[:] = [arrow.came for arrow, _ in waits]
    spans.bytes[:] = spans.cpu[:] = 0
    return replace(spans, kinds=tuple(TRANSFER + kind for kind in table.kinds))


def _us(ns: int) -> float:
    # The fraction of a nanosecond is for readers that cut off what they multiply by 1000 and for those that round.
    return (ns + 0.25) / 1e3


def _lanes(table: SpanTable) -> list[int]:
    """For each span (in order of their start, the outer first) the row of its rank that it goes to: slices of one row
    lie in one another or side by side, or they are not shown. What a GPU does can lie across what its host does."""
    open_: dict[int, list[list[int]]] = {}
    lanes = []
    for rank, start, end in zip(table.rank.tolist(), table.start.tolist(), table.end.tolist(), strict=True):
        rows = open_.setdefault(rank, [])
        for ends in rows:
            while ends and ends[-1] <= start:
                ends.pop()
        lane = next((i for i, ends in enumerate(rows) if not ends or end <= ends[-1]), len(rows))
        if lane == len(rows):
            rows.append([])
        rows[lane].append(end)
        lanes.append(lane)
    return lanes


class Arrow(NamedTuple):
    """From the start of a span of `source` to the end of one of `target`. Seconds since the graph's zero."""

    name: str
    source: int
    sent: float
    target: int
    began: float
    came: float


def arrows(graph: Graph, wanted: frozenset[int] | None = None, seen: Measured | None = None) -> Iterator[Arrow]:
    """All of a step; only those between `wanted` ranks, if given."""
    seen = seen or measured(graph)
    ours = [c.present if wanted is None else np.isin(c.ranks, list(wanted)) for c in graph.columns]
    for node in graph.nodes:
        if node.how is Meeting.RECEIVE and node.source is not None:
            (c, k), (d, j) = node.members[0], node.source
            column, source = graph.columns[c], graph.columns[d]
            for lane in np.flatnonzero(column.present & source.present & ours[c] & ours[d]).tolist():
                target = int(column.ranks[lane]), float(column.starts[k, lane]), float(column.ends[k, lane])
                yield Arrow(MESSAGE, int(source.ranks[lane]), float(source.starts[j, lane]), *target)
        elif node.how is Meeting.COLLECTIVE:
            came = {
                float(graph.columns[c].starts[k, lane]): int(graph.columns[c].ranks[lane])
                for c, k in node.members
                for lane in np.flatnonzero(graph.columns[c].present).tolist()
            }
            for c, k in node.members:
                column = graph.columns[c]
                for lane in np.flatnonzero((seen.waits[c][k] > 0) & ours[c]).tolist():
                    at = float(seen.arrivals[c][k, lane])
                    if wanted is not None and came[at] not in wanted:
                        continue
                    target = int(column.ranks[lane]), float(column.starts[k, lane]), float(column.ends[k, lane])
                    yield Arrow(LAST, came[at], at, *target)


def _names(table: SpanTable, lanes: list[int], world: int, shape: JobShape) -> Iterator[Json]:
    rows = sorted({(rank, lane) for rank, lane in zip(table.rank.tolist(), lanes, strict=True)})
    for pid in sorted({_node(rank, shape) for rank, _ in rows}):
        name = shape.nodes[pid] if pid < len(shape.nodes) else f"node {pid}"
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
    for place, (rank, lane) in enumerate(rows):
        where = {"pid": _node(rank, shape), "tid": rank + lane * world}
        name = f"rank {rank}" + (f" ({lane + 1})" if lane else "")
        yield {"ph": "M", "name": "thread_name", **where, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", **where, "args": {"sort_index": place}}


def _node(rank: int, shape: JobShape) -> int:
    return rank // max(shape.nproc, 1)
