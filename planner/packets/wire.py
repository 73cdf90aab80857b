"""Packets on their way: what is put in comes out a fixed number of slots later. Pure."""

from __future__ import annotations

import numpy as np

from holdfast.planner.packets.rack import Ints

FLOW, NUMBER, SENT, MARKED, AGAIN = range(5)
"""Columns of a packet: flow, sequence number, slot in which it was sent, was it marked. Of an acknowledgement: flow, the
number that is expected next, the packet's own slot and mark, and is the sender to send again from that number."""


class Wire:
    """A lane for each packet that a port moves in a slot; a lane has one packet at most in each slot.

    Of each slot a caller takes all lanes out before it puts any in.
    """

    def __init__(self, delay: int, lanes: int, ports: int, columns: int) -> None:
        self.delay, self.lanes = delay, lanes
        self.rows: Ints = np.zeros((delay, lanes, ports, columns), dtype=np.int64)
        self.rows[..., FLOW] = -1

    def take(self, slot: int, lane: int) -> Ints:
        """What was put in `delay` slots ago, shape (packets, columns), in the order of ports."""
        here = self.rows[slot % self.delay, lane]
        there = (here[:, FLOW] >= 0).nonzero()[0]
        found: Ints = here[there]
        here[there, FLOW] = -1
        return found

    def put(self, slot: int, lane: int, ports: Ints, packets: Ints) -> None:
        self.rows[slot % self.delay, lane, ports] = packets

    @property
    def count(self) -> int:
        """Packets on the way."""
        return int((self.rows[..., FLOW] >= 0).sum())
