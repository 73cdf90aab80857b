"""The critical path of a step: from its end back through whatever was waited for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
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
    """In the order of time; together they are the step. What follows on the same of the same rank is one part."""
    columns = graph.columns
    nodes: dict[tuple[int, int], StepNode] = {place: node for node in graph.nodes for place in node.members}
    back: list[PathPart] = []  # from the end of the step
    ends = [np.where(c.present, np.nan_to_num(c.at[-1], nan=-np.inf), -np.inf) for c in columns]
    c = int(np.argmax([end.max() for end in ends]))
    lane = int(ends[c].argmax())
    k = len(columns[c].shape.syncs)
    for _ in range(sum(len(column.shape.syncs) for column in columns) * 2 + 2):
        back += _work(columns[c], lane, k)
        if k == 0:
            break
        k -= 1
        column, node = columns[c], nodes[c, k]
        rank = int(column.ranks[lane])
        took, arrival = float(seen.transfers[c][k, lane]), seen.arrivals[c][k, lane]
        span = column.shape.syncs[k]
        what = span.key[0]
        if not seen.waits[c][k, lane] > 0:
            back.append(PathPart(rank, what, took))
            continue
        if node.how is Meeting.RECEIVE and node.source is not None:
            peer = int(columns[node.source[0]].ranks[lane])
            back.append(PathPart(rank, what, took, peer))
            c, k = node.source
            continue
        for d, j in node.members:
            at = np.flatnonzero(columns[d].starts[j] == arrival)
            if len(at):
                break
        else:
            back.append(PathPart(rank, what, took))
            continue
        peer_lane = int(at[0])
        back.append(PathPart(rank, what, took, int(columns[d].ranks[peer_lane])))
        c, k, lane = d, j, peer_lane
    return _merged(reversed(back))


def longest_first(path: Iterable[PathPart]) -> list[PathPart]:
    """The path by rank and what it did, wherever in the step."""
    spent: defaultdict[tuple[int, str, int], float] = defaultdict(float)
    for part in path:
        spent[part.rank, part.what, part.peer] += part.seconds
    parts = [PathPart(rank, what, seconds, peer) for (rank, what, peer), seconds in spent.items()]
    return sorted(parts, key=lambda part: -part.seconds)


def _work(column: Column, lane: int, k: int) -> list[PathPart]:
    """The rank's own seconds between its meetings k - 1 and k, the last first."""
    shape = column.shape
    rank = int(column.ranks[lane])
    at = column.at[:, lane]
    roles = {int(i): role for i, role in zip(shape.works, shape.roles, strict=False)}
    parts = [
        PathPart(rank, roles.get(int(shape.owner[b]), shape.roles[-1]), float(at[b + 1] - at[b]))
        for b in np.flatnonzero(shape.segment == k)[::-1]
    ]
    if k == 0:
        parts.append(PathPart(rank, shape.roles[-1], float(at[0] - column.begin[lane])))
    return parts


def _merged(parts: Iterable[PathPart]) -> list[PathPart]:
    found: list[PathPart] = []
    for part in parts:
        if not part.seconds > 0:
            continue
        last = found[-1] if found else None
        if last is not None and (last.rank, last.what, last.peer) == (part.rank, part.what, part.peer):
            found[-1] = PathPart(part.rank, part.what, last.seconds + part.seconds, part.peer)
        else:
            found.append(part)
    return found
