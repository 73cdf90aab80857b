"""Packets on their way: what is put in comes out a fixed number of slots later. Pure."""

from __future__ import annotations

import numpy as np

from holdfast.planner.packets.rack import Ints

FLOW, NUMBER, SENT, MARKED, AGAIN = range(5)
"""Columns of a packet: flow, sequence number, slot in which it was sent, was it marked. Of an acknowledgement: flow,
the number that is expected next, the packet's own slot and mark, and is the sender to go back to that number."""


class Wire:
    """A port puts one packet a slot on a lane at most. Of each slot a caller takes all lanes before it puts any."""

    def __init__(self, delay: int, lanes: int, columns: int) -> None:
        self._nothing: Ints = np.empty((0, columns), dtype=np.int64)
        self._slots = [[self._nothing] * lanes for _ in range(delay)]

    def take(self, slot: int, lane: int) -> Ints:
        """What was put in `delay` slots ago, shape (packets, columns), in the order in which it was put."""
        here = self._slots[slot % len(self._slots)]
        found, here[lane] = here[lane], self._nothing
        return found

    def put(self, slot: int, lane: int, packets: Ints) -> None:
        self._slots[slot % len(self._slots)][lane] = packets

    @property
    def count(self) -> int:
        """Packets on the way."""
        return sum(len(packets) for lanes in self._slots for packets in lanes)
