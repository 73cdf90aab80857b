"""The way of each message of a restore from host to host, and the order of all of them. Pure, the same on all workers.

`reading.read_plan` says which worker reads what, and for which others. Here the planner of transfers between meshes
(`holdfast.plan.moves`, after Zhuang et al., MLSys 2023) says how it goes on: to hosts in a chain, in pieces that each
host passes on when they come, or along a binary tree where a message is too short to be cut; and in which order, so
that hosts do not wait for one another while others are idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from holdfast.checkpoint.restore.reading import ByteSpan
from holdfast.plan.moves.order import Task, by_load, by_rounds, makespan
from holdfast.plan.moves.strategies import Strategy, cut, duration

PIECE_BYTES = 512 << 10
"""Of a message in a chain. Shorter ones reach the last host earlier, and cost more messages."""


@dataclass(frozen=True, slots=True)
class Route:
    """How one message gets from the first of a line of workers to all others, each on a host of its own."""

    line: tuple[int, ...]
    is_chain: bool
    """Each worker sends to the next one; else to two, as in a binary heap."""
    pieces: tuple[tuple[int, int], ...]
    """First byte and end of each, in the order in which they are sent."""

    def targets(self, worker: int) -> Sequence[int]:
        """The workers to which this one sends each piece."""
        at = self.line.index(worker)
        return self.line[at + 1 : at + 2] if self.is_chain else self.line[2 * at + 1 : 2 * at + 3]

    def source(self, worker: int) -> int:
        """The worker that sends each piece to this one, which is not the first."""
        at = self.line.index(worker)
        return self.line[at - 1 if self.is_chain else (at - 1) // 2]


def line_of(reader: int, targets: Sequence[int], hosts: Sequence[str]) -> list[int]:
    """The reader, and for each other host of `targets` the lowest of them there, in the order of a ring of workers.

    `hosts`: of all workers; none: each on its own. The line begins behind the reader, so that the last ones of many
    lines, which pass nothing on, are not always the same.
    """
    first: dict[str | int, int] = {hosts[reader] if hosts else reader: reader}
    for target in sorted(targets):
        first.setdefault(hosts[target] if hosts else target, target)
    others = sorted(one for one in first.values() if one != reader)
    return [reader, *(one for one in others if one > reader), *(one for one in others if one < reader)]


def route(line: Sequence[int], num_bytes: int) -> Route:
    """The faster way for a message of `num_bytes`. With one receiver both are one message."""
    chunks = max(num_bytes // PIECE_BYTES, 1)
    if _chain_time(len(line) - 1, chunks) < tree_time(len(line) - 1):
        return Route(tuple(line), True, tuple(cut(num_bytes, chunks)))
    return Route(tuple(line), False, ((0, num_bytes),))


def route_time(receivers: int, num_bytes: int) -> float:
    """How long `route` takes, in bytes through one NIC."""
    return num_bytes * min(_chain_time(receivers, max(num_bytes // PIECE_BYTES, 1)), tree_time(receivers))


@cache
def _chain_time(receivers: int, chunks: int) -> float:
    return duration(Strategy.RING, 1.0, [[host] for host in range(receivers)], chunks)


@cache
def tree_time(receivers: int) -> float:
    """When the last of a binary tree of hosts has a message, in times that one NIC needs to send it once.

    A host sends to its second child when it is done with the first: T(2i+1) = T(i) + 1, T(2i+2) = T(i) + 2, T(0) = 0.
    """
    at = [0]
    for place in range(1, receivers + 1):
        at.append(at[(place - 1) // 2] + 2 - place % 2)
    return float(max(at))


def arranged(plan: Sequence[ByteSpan], hosts: Sequence[str]) -> list[ByteSpan]:
    """The plan in an order in which hosts wait less for one another. `hosts`: as of `line_of`.

    Readers still take turns, so that all of them read all the time; the order within a turn is the better one of the
    given one and the planner's rounds.
    """
    turns: list[list[ByteSpan]] = []
    read: dict[int, int] = {}
    for span in plan:
        turn = read[span.reader] = read.get(span.reader, -1) + 1
        if turn == len(turns):
            turns.append([])
        turns[turn].append(span)
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    place = [numbers[host] for host in hosts]
    return [span for turn in turns for span in _in_turn(turn, hosts, place)]


def _in_turn(spans: Sequence[ByteSpan], hosts: Sequence[str], place: Sequence[int]) -> list[ByteSpan]:
    tasks = [_task(span, hosts, place) for span in spans]
    best = min((by_load(tasks), by_rounds(tasks)), key=lambda choice: makespan(tasks, choice))
    return [spans[number] for number, _ in best]


def _task(span: ByteSpan, hosts: Sequence[str], place: Sequence[int]) -> Task:
    """A span as the planner sees it: its reader's host sends, the others receive."""
    seconds, receivers = 0.0, set[int]()
    for targets, deliveries in span.groups():
        line = line_of(span.reader, targets, hosts)
        if len(line) > 1:
            seconds += route_time(len(line) - 1, sum(d.num_bytes for d in deliveries))
            receivers.update(line[1:])
    if not hosts:
        return Task(seconds, (span.reader,), tuple(sorted(receivers)))
    return Task(seconds, (place[span.reader],), tuple(sorted({place[one] for one in receivers})))
