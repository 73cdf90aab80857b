"""All ranks on one clock, in the trace format that Perfetto and Chrome open: a process is a node, a thread a rank.

Arrows lead from a message's sending to the wait for it, and from the last to arrive at a collective to those that
waited. Format: docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU ("Trace Event Format").
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TextIO

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
    yield from _names(table, shape)
    numbers, ids = table.actions()
    for i in range(len(table)):
        rank, kind, group = int(table.rank[i]), table.kinds[table.kind[i]], table.groups[table.group[i]]
        args: Json = {"step": int(table.step[i])}
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
            "ph": "X", "name": kind, "cat": group or "work", "pid": _node(rank, shape), "tid": rank,
            "ts": (start - zero) / 1e3, "dur": (int(table.end[i]) - start) / 1e3, "args": args,
        }  # fmt: skip
    is_garbage = np.isin(table.kind, [i for i, kind in enumerate(table.kinds) if kind == GARBAGE])
    regular = table.take(~is_garbage)
    first = (int(regular.start.min()) - zero) * 1e-9 if len(regular) else 0.0
    number = 0
    for graph in step_graph.graphs(regular, shape.decoded(), world_of(table, shape)):
        for name, (source, sent), (target, seen) in _arrows(graph):
            number += 1
            base = {"cat": "arrow", "name": name, "id": number}
            yield base | {"ph": "s", "pid": _node(source, shape), "tid": source, "ts": (first + sent) * 1e6}
            # "e": binds to the slice around it, which is the wait.
            end = {"ph": "f", "bp": "e", "pid": _node(target, shape), "tid": target, "ts": (first + seen) * 1e6}
            yield base | end


def _arrows(graph: Graph) -> Iterator[tuple[str, tuple[int, float], tuple[int, float]]]:
    """Name, then rank and second of both ends, each just inside of its span."""
    seen = measured(graph)
    inside = 1e-7
    for node in graph.nodes:
        if node.how is Meeting.RECEIVE and node.source is not None:
            (c, k), (d, j) = node.members[0], node.source
            column, source = graph.columns[c], graph.columns[d]
            for lane in np.flatnonzero(column.present & source.present).tolist():
                ends = (int(source.ranks[lane]), float(source.starts[j, lane]) + inside)
                yield "message", ends, (int(column.ranks[lane]), float(column.ends[k, lane]) - inside)
        elif node.how is Meeting.COLLECTIVE:
            came = {
                float(graph.columns[c].starts[k, lane]): int(graph.columns[c].ranks[lane])
                for c, k in node.members
                for lane in np.flatnonzero(graph.columns[c].present).tolist()
            }
            for c, k in node.members:
                column = graph.columns[c]
                for lane in np.flatnonzero(seen.waits[c][k] > 0).tolist():
                    at = float(seen.arrivals[c][k, lane])
                    ends = (came[at], at + inside)
                    yield "last to arrive", ends, (int(column.ranks[lane]), float(column.ends[k, lane]) - inside)


def _names(table: SpanTable, shape: JobShape) -> Iterator[Json]:
    ranks = np.unique(table.rank).tolist()
    for pid in sorted({_node(rank, shape) for rank in ranks}):
        name = shape.nodes[pid] if pid < len(shape.nodes) else f"node {pid}"
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
    for rank in ranks:
        where = {"pid": _node(rank, shape), "tid": rank}
        yield {"ph": "M", "name": "thread_name", **where, "args": {"name": f"rank {rank}"}}
        yield {"ph": "M", "name": "thread_sort_index", **where, "args": {"sort_index": rank}}


def _node(rank: int, shape: JobShape) -> int:
    return rank // max(shape.nproc, 1)
