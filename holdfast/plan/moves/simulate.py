"""How long a transfer plan takes, message by message, with one NIC a host. Pure, in virtual time.

A host takes part in one unit at a time. Its NIC sends one message and receives one at a time; a message inside a host
takes no time.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from holdfast.plan.moves.transfer_plan import Move, TransferPlan


@dataclass(frozen=True, slots=True)
class TransferTimeline:
    """When each unit began and ended, in the plan's order, and the bytes that crossed from host to host."""

    start: tuple[float, ...]
    end: tuple[float, ...]
    crossed_bytes: int

    @property
    def makespan(self) -> float:
        return max(self.end, default=0.0)


def simulate(plan: TransferPlan, bytes_per_s: float) -> TransferTimeline:
    """Run a plan. `bytes_per_s`: of each NIC, in each direction."""
    free: dict[int, float] = defaultdict(float)
    start, end, crossed = [], [], 0
    for move in plan.moves:
        taking_part = move.taking_part(plan.hosts)
        begun = max((free[host] for host in taking_part), default=0.0)
        took, num_bytes = _unit(plan, move, bytes_per_s)
        for host in taking_part:
            free[host] = begun + took
        start.append(begun)
        end.append(begun + took)
        crossed += num_bytes
    return TransferTimeline(tuple(start), tuple(end), crossed)


def _unit(plan: TransferPlan, move: Move, bytes_per_s: float) -> tuple[float, int]:
    """Seconds of one unit, and its bytes from host to host."""
    sent: dict[int, float] = defaultdict(float)
    received: dict[int, float] = defaultdict(float)
    there: list[float] = []
    crossed = 0
    for message in plan.messages(move):
        source, target = plan.hosts[message.source], plan.hosts[message.target]
        ready = there[message.after] if message.after >= 0 else 0.0
        if source != target:
            num_bytes = (message.stop - message.start) * move.unit.item_bytes
            ready = max(ready, sent[source], received[target]) + num_bytes / bytes_per_s
            sent[source] = received[target] = ready
            crossed += num_bytes
        there.append(ready)
    return max(there, default=0.0), crossed
