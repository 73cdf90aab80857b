"""The shape of a rank's step: which spans lie in which, and where it meets other ranks.

Ranks with the same place in the pipeline do the same things in the same order, step after step. So this is worked out
once for each such list, from one rank's spans, and holds for the columns of all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from holdfast.plan.plan import SENDS, SPANS, Op

Ints = npt.NDArray[np.int64]

OTHER = "other"
"""What a rank does outside of all spans."""
REPLICAS = "replicas"
"""Group, with the number of a stage behind it: the ranks that hold replicas of it in several pipes."""
OWN_SENDS = "pp:send"
"""Waiting until what this rank has sent is gone: with no peer to meet."""
_FROM = {
    SPANS[Op.RECV_FORWARD]: (SPANS[Op.SEND_FORWARD], -1),
    SPANS[Op.RECV_BACKWARD]: (SPANS[Op.SEND_BACKWARD], 1),
}
"""What sends the data that is waited for, and how far from the stage that waits."""
_SENDS = {SPANS[op] for op in SENDS}


class Meeting(Enum):
    """How a rank depends on others at a point of its list."""

    COLLECTIVE = "collective"
    RECEIVE = "receive"
    SEND = "send"
    """Not a wait: the moment from which the receiver can have the data."""


@dataclass(frozen=True, slots=True)
class Sync:
    """A point where ranks meet."""

    how: Meeting
    span: int
    """Index into the spans of the list, in order of their start."""
    group: str
    """Of a collective."""
    turn: int
    """Which of the group's collectives in this step."""
    key: tuple[str, int, int, int]
    """Of a message: the span that sends it, its stage, its first micro-batch, and which part of it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """`edges[b]` says which span begins or ends at boundary b: its index, and whether it ends there. Between two
    boundaries lies an interval, which belongs to the innermost span that is open: `owner`, -1 for none."""

    edges: tuple[tuple[int, bool], ...]
    owner: Ints
    syncs: tuple[Sync, ...]
    segment: Ints
    """For each interval: how many syncs of the list have ended by then, or -1 for one that lies in a sync."""
    works: Ints
    """Spans that are work: neither meetings nor in one."""
    roles: tuple[str, ...]
    """What each work is, e.g. "forward 1" of stage 1; and at the end, for -1, `OTHER`."""
    nested: tuple[tuple[int, int], ...]
    """(outer, inner) of works that lie directly in one another."""


def shape_of(
    kinds: list[str],
    groups: list[str],
    stages: list[int],
    micro_batches: list[int],
    parts: list[int],
    starts: Ints,
    ends: Ints,
) -> Shape:
    """From the spans of one rank and step, in order of their start, the outer before the inner.

    `parts`: the spans' turns, which tell parts of a micro-batch from each other.
    """
    n = len(kinds)
    edges: list[tuple[int, bool]] = []
    open_: list[int] = []
    inside = [False] * n
    nested = []
    for i in range(n):
        while open_ and ends[open_[-1]] <= starts[i]:
            edges.append((open_.pop(), True))
        if open_ and _meets(kinds[open_[-1]], groups[open_[-1]]):
            inside[i] = True  # part of that meeting
            continue
        if open_:
            nested.append((open_[-1], i))
        open_.append(i)
        edges.append((i, False))
    edges += [(i, True) for i in reversed(open_)]
    is_meeting = [_meets(kinds[i], groups[i]) for i in range(n)]
    syncs, turns = [], dict[str, int]()
    for i in range(n):
        if is_meeting[i] and not inside[i]:
            syncs.append(_sync(i, kinds[i], groups[i], (stages[i], micro_batches[i], parts[i]), turns))
    owner = np.full(len(edges), -1, np.int64)
    segment = np.zeros(len(edges), np.int64)
    stack: list[int] = []
    done = 0
    for b, (i, is_end) in enumerate(edges):
        if is_end:
            stack.pop()
            done += is_meeting[i]
        else:
            stack.append(i)
        owner[b] = stack[-1] if stack else -1
        segment[b] = -1 if stack and is_meeting[stack[-1]] else done
    works = [i for i in range(n) if not is_meeting[i] and not inside[i]]
    roles = [f"{kinds[i]} {stages[i]}" if stages[i] >= 0 else kinds[i] for i in works]
    inner = [(a, b) for a, b in nested if not is_meeting[a] and not is_meeting[b]]
    return Shape(
        tuple(edges), owner[:-1], tuple(syncs), segment[:-1], np.array(works, np.int64), (*roles, OTHER), tuple(inner)
    )


def _meets(kind: str, group: str) -> bool:
    return bool(group) or kind in _FROM or kind in _SENDS


def _sync(i: int, kind: str, group: str, what: tuple[int, int, int], turns: dict[str, int]) -> Sync:
    stage, micro_batch, part = what
    if kind in _FROM:
        source, ahead = _FROM[kind]
        return Sync(Meeting.RECEIVE, i, "", 0, (source, stage + ahead, micro_batch, part))
    if not group or kind == OWN_SENDS:
        return Sync(Meeting.SEND, i, "", 0, (kind, stage, micro_batch, part))
    turn = turns.get(group, 0)
    turns[group] = turn + 1
    return Sync(Meeting.COLLECTIVE, i, group, turn, (kind, stage, micro_batch, part))
