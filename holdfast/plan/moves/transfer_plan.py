"""A whole transfer as data: its units in order, each with its sender and its strategy. Pure.

All ranks make the same plan from the same layouts, so no rank needs to send it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.plan.moves.order import Algorithm, Task, arrange
from holdfast.plan.moves.strategies import Message, Strategy, duration, messages
from holdfast.plan.moves.units import Unit

CHUNKS = 64
"""Of a ring: at 4 hosts it then takes 1.047 of what one host takes. More make more messages, and no more speed."""


@dataclass(frozen=True, slots=True)
class Move:
    """One unit, and how it goes."""

    unit: Unit
    sender: int
    strategy: Strategy

    def taking_part(self, hosts: Sequence[int]) -> list[int]:
        """Hosts whose NIC it needs: none if all receivers have a holder beside them."""
        far = self.unit.far(hosts)
        return [hosts[self.sender], *(hosts[group[0]] for group in far)] if far else []


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """What all ranks do, in this order, each its part."""

    moves: tuple[Move, ...]
    hosts: tuple[int, ...]
    """Host of each rank: ranks on one host share a NIC."""
    chunks: int = CHUNKS

    def messages(self, move: Move) -> list[Message]:
        """The messages of one of its moves."""
        return messages(move.unit, move.sender, move.strategy, self.chunks, self.hosts)


def make_plan(
    units: Sequence[Unit],
    hosts: Sequence[int],
    strategy: Strategy | None = None,
    chunks: int = CHUNKS,
    algorithm: Algorithm | None = None,
    seed: int = 0,
) -> TransferPlan:
    """Sender, strategy and place of every unit. None: the fastest strategy of each unit; the best order of all.

    The same arguments give the same plan. NICs are taken to be equally fast.
    """
    chosen, tasks, crossing = [], [], []
    for number, unit in enumerate(units):
        far = unit.far(hosts)
        chunked = min(chunks, unit.shard.count)
        times = {way: duration(way, unit.num_bytes, far, chunked) for way in Strategy}
        # An all-gather takes as long as its formula says only if every receiver gets a piece.
        divisible = unit.shard.count >= sum(map(len, far))
        possible = Strategy if divisible else (Strategy.SEND_RECV, Strategy.RING)
        way = strategy or min(possible, key=times.__getitem__)
        chosen.append(way)
        if far:
            crossing.append(number)
            senders = tuple(dict.fromkeys(hosts[rank] for rank in unit.senders))
            tasks.append(Task(times[way], senders, tuple(hosts[group[0]] for group in far)))
    inside = set(range(len(units))) - set(crossing)
    moves = [Move(units[number], units[number].senders[0], chosen[number]) for number in sorted(inside)]
    for task, host in arrange(tasks, algorithm, seed):
        unit = units[crossing[task]]
        sender = next(rank for rank in unit.senders if hosts[rank] == host)
        moves.append(Move(unit, sender, chosen[crossing[task]]))
    return TransferPlan(tuple(moves), tuple(hosts), chunks)
