"""The receiving side of all flows: packets count in their order only, and each answer says which is next. Pure."""

from __future__ import annotations

import numpy as np

from holdfast.planner.network.congestion import Flags
from holdfast.planner.packets.rack import Flows, Ints
from holdfast.planner.packets.wire import AGAIN, FLOW, MARKED, NUMBER, SENT


class Receivers:
    def __init__(self, flows: Flows) -> None:
        self.packets = flows.packets
        self.expected = np.zeros(len(flows), dtype=np.int64)
        """Packets of each flow that have arrived in order."""
        self.asked: Flags = np.zeros(len(flows), dtype=bool)
        """A packet is missing and was asked for: once, until it comes."""
        self.done = np.full(len(flows), -1, dtype=np.int64)
        """The slot in which a flow's last packet came, -1 before."""
        self.arrived, self.discarded = 0, 0

    def accept(self, packets: Ints, slot: int) -> Ints:
        """One packet of each of some flows; returns their acknowledgements.

        One behind a missing packet is discarded, and answered only if it is the first one behind it. One that came
        before is discarded and acknowledged.
        """
        flow, number = packets[:, FLOW], packets[:, NUMBER]
        due = self.expected[flow]
        fits, behind = number == due, number > due
        self.expected[flow] = due + fits
        self.arrived += len(flow)
        self.discarded += len(flow) - int(fits.sum())
        again = behind & ~self.asked[flow]
        self.asked[flow] = ~fits & (self.asked[flow] | again)
        last = fits & (due + 1 == self.packets[flow])
        if np.count_nonzero(last):
            self.done[flow[last]] = slot
        acks = np.empty((len(flow), AGAIN + 1), dtype=np.int64)
        acks[:, FLOW], acks[:, NUMBER], acks[:, AGAIN] = flow, self.expected[flow], again
        acks[:, SENT], acks[:, MARKED] = packets[:, SENT], packets[:, MARKED]
        return acks[~behind | again] if np.count_nonzero(behind) else acks
