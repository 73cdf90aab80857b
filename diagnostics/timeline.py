"""All ranks on one clock, in the trace format that Perfetto and Chrome open: a process is a node, a thread a rank.

Arrows lead from a message's sending to the wait for it, and from the last to arrive at a collective to those that
waited. Format: docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU ("Trace Event Format").
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple, TextIO

import numpy as np

from holdfast.diagnostics import step_graph
from holdfast.diagnostics.blame_report import GARBAGE, world_of
from holdfast.diagnostics.job_shape import JobShape
from holdfast.diagnostics.span_table import SpanTable
from holdfast.diagnostics.step_graph import Graph
from holdfast.diagnostics.step_replay import measured
from holdfast.diagnostics.step_shape import Meeting
from holdfast.errors import UsageError

Json = dict[str, Any]

MESSAGE, LAST = "message", "last to arrive"
"""What arrows are called."""


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
    if not len(table):
        raise UsageError("no spans of these steps")
    zero = int(table.start.min())
    world = world_of(table, shape)
    # An arrow belongs to the slice that began last before it, so the outer of two that begin together comes first.
    table = table.take(np.lexsort((-table.end, table.start)))
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
        start = int(table.start[i])
        yield {
            "ph": "X", "name": kind, "cat": group or "work", "pid": _node(rank, shape), "tid": rank + lanes[i] * world,
            "ts": _us(start - zero), "dur": _us(int(table.end[i]) - start), "args": args,
        }  # fmt: skip
    is_garbage = np.isin(table.kind, [i for i, kind in enumerate(table.kinds) if kind == GARBAGE])
    regular = table.take(~is_garbage)
    first = int(regular.start.min()) - zero if len(regular) else 0
    starts = zip(table.rank.tolist(), (table.start - zero).tolist(), lanes, strict=True)
    beside = {(rank, start): lane for rank, start, lane in starts if lane}
    number = 0
    for graph in step_graph.graphs(regular, shape.decoded(), world):
        for arrow in arrows(graph):
            sent, began, came = (first + round(at * 1e9) for at in (arrow.sent, arrow.began, arrow.came))
            seen = max(came - 1, began)
            if seen < sent:
                continue  # by clocks that do not agree it came before it was sent
            number += 1
            base = {"cat": "arrow", "name": arrow.name, "id": number}
            tid = arrow.source + beside.get((arrow.source, sent), 0) * world
            yield base | {"ph": "s", "pid": _node(arrow.source, shape), "tid": tid, "ts": _us(sent)}
            tid = arrow.target + beside.get((arrow.target, began), 0) * world
            # "e": binds to the slice around it, which is the wait.
            yield base | {"ph": "f", "bp": "e", "pid": _node(arrow.target, shape), "tid": tid, "ts": _us(seen)}


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


def arrows(graph: Graph, wanted: frozenset[int] | None = None) -> Iterator[Arrow]:
    """All of a step; only those between `wanted` ranks, if given."""
    seen = measured(graph)
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
