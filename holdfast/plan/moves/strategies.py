"""Ways to bring one unit from its sender to receivers on other hosts: their messages, and how long they take. Pure.

The model of Zhuang et al. (MLSys 2023): a host has one NIC, which sends one message and receives one at a time; inside
a host, messages take no time. With t = bytes / bandwidth, A receiving hosts and n receivers on them, B a host:

| strategy | time |
|---|---|
| send and receive: a message for each receiver | n t = A B t |
| local all-gather: each host gets the unit once, in B pieces | A t |
| global all-gather: each receiver gets one of n pieces, a ring gathers them | (2 - 1/n) t; t if A = 1 |
| ring: K chunks pass from receiver to receiver | t + (A - 1) t / K |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from holdfast.plan.moves.units import Unit


class Strategy(StrEnum):
    """From the simplest on, which is taken where two take equally long."""

    SEND_RECV = "send_recv"
    LOCAL_ALL_GATHER = "local_all_gather"
    RING = "ring"
    GLOBAL_ALL_GATHER = "global_all_gather"


@dataclass(frozen=True, slots=True)
class Message:
    """Elements [start, stop) of a unit, counted in row-major order, from one rank to another."""

    source: int
    target: int
    start: int
    stop: int
    after: int = -1
    """Index of the message of the unit that brought them to `source`; -1 if it held them from the start."""


def duration(strategy: Strategy, t: float, far: Sequence[Sequence[int]], chunks: int) -> float:
    """How long a unit takes that takes `t` through one NIC. `far`: its receivers by host."""
    hosts, receivers = len(far), sum(map(len, far))
    if not hosts:
        return 0.0
    match strategy:
        case Strategy.SEND_RECV:
            return receivers * t
        case Strategy.LOCAL_ALL_GATHER:
            return hosts * t
        case Strategy.GLOBAL_ALL_GATHER:
            return (2 - 1 / receivers) * t if hosts > 1 else t
        case Strategy.RING:
            return t + (hosts - 1) * t / chunks


def messages(unit: Unit, sender: int, strategy: Strategy, chunks: int, hosts: Sequence[int]) -> list[Message]:
    """All messages of a unit. Ranks that do theirs in this order, and wait for `after` only, cannot deadlock.

    Each receiver that lacks the unit gets each element once.
    """
    far, count = unit.far(hosts), unit.shard.count
    found = [Message(holder, rank, 0, count) for holder, rank in unit.near(hosts)]
    flat = [rank for group in far for rank in group]
    match strategy:
        case Strategy.SEND_RECV:
            found += [Message(sender, rank, 0, count) for rank in flat]
        case Strategy.LOCAL_ALL_GATHER:
            for group in far:
                _scatter_gather(found, sender, group, count)
        case Strategy.GLOBAL_ALL_GATHER:
            _scatter_gather(found, sender, flat, count)
        case Strategy.RING:
            for start, stop in cut(count, chunks):
                for source, target in zip([sender, *flat], flat, strict=False):
                    found.append(Message(source, target, start, stop, -1 if source == sender else len(found) - 1))
    return found


def cut(count: int, parts: int) -> list[tuple[int, int]]:
    """`count` elements in `parts` even pieces, as first and end; empty ones left out."""
    edges = [i * count // parts for i in range(parts + 1)]
    return [(low, high) for low, high in pairwise(edges) if low < high]


def _scatter_gather(found: list[Message], sender: int, group: Sequence[int], count: int) -> None:
    """A piece for each of the group, then a ring all-gather among them: in each step each passes on its newest."""
    if not group:
        return
    pieces = cut(count, len(group))
    newest: list[int | None] = [None] * len(group)  # the message that brought it, by place in the group
    for place, (start, stop) in enumerate(pieces):
        newest[place] = len(found)
        found.append(Message(sender, group[place], start, stop))
    for _ in range(len(group) - 1):
        passed: list[int | None] = [None] * len(group)
        for place, rank in enumerate(group):
            after, next_place = newest[place], (place + 1) % len(group)
            if after is not None:
                passed[next_place] = len(found)
                found.append(Message(rank, group[next_place], found[after].start, found[after].stop, after))
        newest = passed
