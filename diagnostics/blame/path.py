"""The critical path of a step: from its end back through whatever was waited for."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from holdfast.diagnostics.steps.graph import Column, Graph, StepNode
from holdfast.diagnostics.steps.replay import Measured
from holdfast.diagnostics.steps.shape import Meeting


@dataclass(frozen=True, slots=True)
class PathPart:
    """Seconds of the critical path that one rank spent on one thing; of a transfer `peer` is its other end, or -1."""

    rank: int
    what: str
    seconds: float
    peer: int = -1


def critical_path(graph: Graph, seen: Measured) -> list[PathPart]:
    """The longest part first; together they are the step."""
    columns = graph.columns
    nodes: dict[tuple[int, int], StepNode] = {place: node for node in graph.nodes for place in node.members}
    spent: defaultdict[tuple[int, str, int], float] = defaultdict(float)
    ends = [np.where(c.present, np.nan_to_num(c.at[-1], nan=-np.inf), -np.inf) for c in columns]
    c = int(np.argmax([end.max() for end in ends]))
    lane = int(ends[c].argmax())
    k = len(columns[c].shape.syncs)
    for _ in range(sum(len(column.shape.syncs) for column in columns) * 2 + 2):
        _add_work(columns[c], lane, k, spent)
        if k == 0:
            break
        k -= 1
        column, node = columns[c], nodes[c, k]
        rank = int(column.ranks[lane])
        took, arrival = float(seen.transfers[c][k, lane]), seen.arrivals[c][k, lane]
        span = column.shape.syncs[k]
        what = span.key[0]
        if not seen.waits[c][k, lane] > 0:
            spent[rank, what, -1] += took
            continue
        if node.how is Meeting.RECEIVE and node.source is not None:
            peer = int(columns[node.source[0]].ranks[lane])
            spent[rank, what, peer] += took
            c, k = node.source
            continue
        for d, j in node.members:
            at = np.flatnonzero(columns[d].starts[j] == arrival)
            if len(at):
                break
        else:
            spent[rank, what, -1] += took
            continue
        peer_lane = int(at[0])
        spent[rank, what, int(columns[d].ranks[peer_lane])] += took
        c, k, lane = d, j, peer_lane
    parts = [PathPart(rank, what, seconds, peer) for (rank, what, peer), seconds in spent.items() if seconds > 0]
    return sorted(parts, key=lambda part: -part.seconds)


def _add_work(column: Column, lane: int, k: int, spent: defaultdict[tuple[int, str, int], float]) -> None:
    """The rank's own seconds between its meetings k - 1 and k."""
    shape = column.shape
    rank = int(column.ranks[lane])
    at = column.at[:, lane]
    roles = {int(i): role for i, role in zip(shape.works, shape.roles, strict=False)}
    for b in np.flatnonzero(shape.segment == k):
        spent[rank, roles.get(int(shape.owner[b]), shape.roles[-1]), -1] += float(at[b + 1] - at[b])
    if k == 0:
        spent[rank, shape.roles[-1], -1] += float(at[0] - column.begin[lane])
