"""The switch: a queue for each port out, a buffer that all share, pauses by port in, marks by queue. Pure.

A queue is first in, first out, for all ports in: what waits behind a packet to a busy port waits with it only in the
same queue. Head-of-line blocking comes from pauses, which stop all that a NIC sends.
"""

from __future__ import annotations

import numpy as np

from holdfast.planner.network.congestion import Flags
from holdfast.planner.packets.rack import WIRE, Flows, Ints, Rack
from holdfast.planner.packets.wire import FLOW, MARKED


class Switch:
    def __init__(self, rack: Rack, flows: Flows, seed: int) -> None:
        self.source, self.target = flows.source, flows.target
        self.ports, self.capacity = rack.ports, rack.buffer_packets
        self.queue: Ints = np.zeros((self.ports, self.capacity, MARKED + 1), dtype=np.int64)
        self.head, self.length = np.zeros(self.ports, dtype=np.int64), np.zeros(self.ports, dtype=np.int64)
        self.held = np.zeros(self.ports, dtype=np.int64)
        """Packets in the buffer by the port that they came in at."""
        self.occupied = 0
        self.can_pause, self.xoff, self.xon = rack.pfc, rack.port.pause_at / WIRE, rack.xon / WIRE
        self.pausing: Flags = np.zeros(self.ports, dtype=bool)
        self.pauses = np.zeros(self.ports, dtype=np.int64)
        """Pause frames to each port in."""
        self.dropped = 0
        self.longest = np.zeros(self.ports, dtype=np.int64)
        """Packets in each queue at the end of a slot, at most."""
        self.waited = np.zeros(self.ports, dtype=np.int64)
        """Sum over slots of the packets in each queue."""
        self.chance = np.ones(self.capacity + 1)
        """Of a mark, by the packets that are left behind in the queue."""
        partly = int(min(self.capacity, rack.port.mark_all // WIRE)) + 1
        self.chance[:partly] = [rack.port.marks(count * WIRE) for count in range(partly)]
        self.random = np.random.default_rng(seed)

    def admit(self, packets: Ints, turn: int) -> None:
        """Packets that arrive at once, one of each port in. Which port is first goes round with `turn`."""
        if not len(packets):
            return
        first = turn % len(packets)
        if first:
            packets = np.concatenate([packets[first:], packets[:first]])
        room = self.capacity - self.occupied
        if len(packets) > room:
            self.dropped += len(packets) - room
            packets = packets[:room]
        target = self.target[packets[:, FLOW]]
        if len(packets) > 1:
            order = target.argsort(kind="stable")
            target, packets = target[order], packets[order]
        # Those to one port stand side by side now: each is as many places behind the queue's end as it is behind the
        # first of them.
        behind = np.arange(len(target)) - target.searchsorted(target)
        self.queue[target, (self.head[target] + self.length[target] + behind) % self.capacity] = packets
        self.length += np.bincount(target, minlength=self.ports)
        self.held += np.bincount(self.source[packets[:, FLOW]], minlength=self.ports)
        self.occupied += len(packets)

    def release(self, may: Flags) -> Ints:
        """The first packet of each queue that `may` send one."""
        ports = ((self.length > 0) & may).nonzero()[0]
        packets: Ints = self.queue[ports, self.head[ports]]
        if not len(ports):
            return packets
        self.head[ports] = (self.head[ports] + 1) % self.capacity
        self.length[ports] -= 1
        chance = self.chance[self.length[ports]]
        if np.count_nonzero(chance):
            packets[:, MARKED] = self.random.random(len(ports)) < chance
        self.held -= np.bincount(self.source[packets[:, FLOW]], minlength=self.ports)
        self.occupied -= len(ports)
        return packets

    def close_slot(self) -> Flags:
        """Ports in that must pause from now on, once all has arrived and left. Counts pauses and queues."""
        np.maximum(self.longest, self.length, out=self.longest)
        self.waited += self.length
        if self.can_pause:
            before = self.pausing
            # Between the thresholds it stays as it is.
            self.pausing = (self.held > self.xoff) | (before & (self.held >= self.xon))
            self.pauses += self.pausing & ~before
        return self.pausing
