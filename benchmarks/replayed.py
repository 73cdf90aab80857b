"""What recorded ranks take where each has a core of its own, and links of a cluster between them. Pure.

Computations take what they took of a processor. A message is there after its link's seconds; a link sends one after
another. Collectives go message by message, each member from when it begins: rings in each node and then over nodes
(each device with those of its own place), and all-reduces by halving. So what a collective takes is played, not given,
and a member that comes late makes the others wait as it would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from statistics import median
from typing import NamedTuple

Link = Callable[[int, int], tuple[float, float]]
"""Of two ranks: seconds of latency, and per byte."""


class Kind(StrEnum):
    SEND = "send"
    RECEIVE = "receive"
    """The wait for a message."""
    BEGIN = "begin"
    WAIT = "wait"
    """Of a collective."""
    END = "end"


class Event(NamedTuple):
    computed: float
    """Processor seconds since the event before."""
    kind: Kind
    key: tuple[object, ...]
    """Of a message: from, to, the group's ranks, and which one. Of a collective: what, its ranks, and which one."""
    num_bytes: int


def parsed(rows: Sequence[Sequence[object]]) -> list[Event]:
    """Of a file's JSON."""

    def frozen(value: object) -> object:
        return tuple(frozen(one) for one in value) if isinstance(value, list) else value

    return [Event(float(t), Kind(kind), frozen(key), int(size)) for t, kind, key, size in rows]  # type: ignore[arg-type, call-overload]


def usual(steps: Sequence[Sequence[Event]]) -> list[Event]:
    """One step, in which each computation takes the median of all steps. ValueError if the steps are not of the same
    events."""
    first, *others = steps
    if any([event[1:] for event in one] != [event[1:] for event in first] for one in others):
        raise ValueError("the steps of a rank differ in what they send")
    return [Event(median(one.computed for one in same), *same[0][1:]) for same in zip(*steps, strict=True)]


def replay(ranks: Sequence[Sequence[Event]], link: Link, per_node: int) -> list[float]:
    """When each rank ends. ValueError where all wait for each other."""
    now, at = [0.0] * len(ranks), [0] * len(ranks)
    arrived: dict[tuple[object, ...], float] = {}
    begun: dict[tuple[object, ...], dict[int, float]] = {}
    done: dict[tuple[object, ...], Mapping[int, float]] = {}
    free: dict[tuple[int, int], float] = {}
    """By link: when it may send the next one."""
    behind: dict[tuple[int, tuple[int, ...]], float] = {}
    """By rank and group: when the collective before is over."""
    moves = True
    while moves:
        moves = False
        for rank, events in enumerate(ranks):
            while at[rank] < len(events):
                computed, kind, key, num_bytes = events[at[rank]]
                then = now[rank] + computed
                if kind is Kind.RECEIVE:
                    if key not in arrived:
                        break
                    then = max(then, arrived[key])
                elif kind is Kind.WAIT:
                    if key not in done:
                        break
                    then = max(then, done[key][rank])
                elif kind is Kind.SEND:
                    one, other = int(key[0]), int(key[1])  # type: ignore[call-overload]
                    alpha, beta = link(one, other)
                    free[one, other] = max(then, free.get((one, other), 0.0)) + beta * num_bytes
                    arrived[key] = free[one, other] + alpha
                elif kind is Kind.BEGIN:
                    members: tuple[int, ...] = key[1]  # type: ignore[assignment]
                    begun.setdefault(key, {})[rank] = then
                    if len(begun[key]) == len(members):  # and so it was with the one before
                        begins = {one: max(t, behind.get((one, members), 0.0)) for one, t in begun.pop(key).items()}
                        done[key] = collective(str(key[0]), num_bytes, begins, link, per_node)
                        behind |= {(one, members): over for one, over in done[key].items()}
                now[rank] = then
                at[rank] += 1
                moves = True
    stuck = [rank for rank, events in enumerate(ranks) if at[rank] < len(events)]
    if stuck:
        raise ValueError(f"ranks {stuck} wait for each other")
    return now


def collective(op: str, num_bytes: float, begun: Mapping[int, float], link: Link, per_node: int) -> dict[int, float]:
    """When each member is done, by when each begins."""
    times, members = dict(begun), sorted(begun)
    if op == "all_reduce":
        _halves(times, members, num_bytes, link)
        return times
    nodes = [[one for one in members if one // per_node == node] for node in sorted({r // per_node for r in members})]
    if len({len(one) for one in nodes}) > 1:
        raise ValueError(f"ranks {members} are not as many in each node")
    inner, across = len(nodes[0]), [list(same) for same in zip(*nodes, strict=True)]
    rings = [(nodes, num_bytes), (across, num_bytes / inner)]
    for groups, size in rings if op == "reduce_scatter" else rings[::-1]:
        for group in groups:
            _ring(times, group, size, link)
    return times


def _halves(times: dict[int, float], members: Sequence[int], num_bytes: float, link: Link) -> None:
    """Recursive halving and doubling, the nearest with the largest part."""
    if len(members) & (len(members) - 1):
        raise ValueError(f"{len(members)} ranks are no power of two")
    masks = [1 << bit for bit in range((len(members) - 1).bit_length())]
    parts = [num_bytes / (2 << turn) for turn in range(len(masks))]
    for mask, part in [*zip(masks, parts, strict=True), *zip(masks[::-1], parts[::-1], strict=True)]:
        sent = dict(times)
        for place, one in enumerate(members):
            peer = members[place ^ mask]
            alpha, beta = link(peer, one)
            times[one] = max(sent[one], sent[peer] + alpha + part * beta)


def _ring(times: dict[int, float], members: Sequence[int], num_bytes: float, link: Link) -> None:
    """n - 1 pieces of 1/n go around."""
    for _ in range(len(members) - 1):
        sent = dict(times)
        for place, one in enumerate(members):
            before = members[place - 1]
            alpha, beta = link(before, one)
            times[one] = max(sent[one], sent[before] + alpha + num_bytes / len(members) * beta)
