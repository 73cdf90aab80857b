"""Slot after slot of a rack: what arrives, what leaves, what comes back. Pure.

In each slot acknowledgements reach the senders first, then packets the switch and the receivers, then NICs and the
switch send. A packet finds an empty queue at the switch and leaves in the slot in which it came: an empty round trip is
4 hops. Acknowledgements, notifications and pause frames have no queue and take no bandwidth; they are small, and have
a priority of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.planner.network.congestion import Flags
from holdfast.planner.network.incast import Build
from holdfast.planner.packets.rack import Flap, Flows, Ints, Rack
from holdfast.planner.packets.receivers import Receivers
from holdfast.planner.packets.senders import Senders
from holdfast.planner.packets.switch import Switch
from holdfast.planner.packets.wire import AGAIN, FLOW, MARKED, Wire


class Simulation:
    """A rack with flows from slot 0 on. NetworkError where flows or flaps name ports that the rack lacks.

    `build`: congestion control of all flows together, as for `network.incast`.
    """

    def __init__(self, rack: Rack, flows: Flows, build: Build, seed: int = 0, flaps: Sequence[Flap] = ()) -> None:
        flows.check(rack)
        for flap in flaps:
            flap.check(rack)
        self.rack, self.flows, self.flaps = rack, flows, tuple(flaps)
        control = build(len(flows), rack.port.bytes_per_s, 4 * rack.hop * rack.slot_s)
        self.senders, self.receivers = Senders(rack, flows, control), Receivers(flows)
        self.switch = Switch(rack, flows, seed)
        speed = rack.speed
        lanes = int(speed.max())
        self.up, self.down = (Wire(rack.hop, lanes, MARKED + 1) for _ in range(2))
        self.back = Wire(2 * rack.hop, lanes, AGAIN + 1)
        self.slot, self.lost = 0, 0
        """The next slot; packets that went onto a silent link."""
        self._moves: list[Flags] = [speed > lane for lane in range(lanes)]
        self._paused: Flags = np.zeros((rack.hop, rack.ports), dtype=bool)
        self._silent = self._silent_later = np.zeros(rack.ports, dtype=bool)
        instants = [at for flap in flaps for at in (flap.begin, flap.end)]
        self._turns = {*instants, *(at - rack.hop for at in instants)}
        self._begins = set(flows.begin.tolist())

    def run(self, slots: int) -> None:
        """So many slots more, or until all flows have ended or were given up."""
        until = self.slot + slots
        while self.slot < until:
            self._one()
            if not self.slot % 64 and self.is_over:
                break

    @property
    def is_over(self) -> bool:
        return bool(((self.receivers.done >= 0) | self.senders.given_up).all())

    @property
    def in_flight(self) -> int:
        """Packets on wires and in queues, counted there."""
        return self.up.count + self.down.count + int(self.switch.length.sum())

    def _one(self) -> None:
        slot, hop = self.slot, self.rack.hop
        senders, switch = self.senders, self.switch
        if slot in self._turns or slot == 0:
            self._silent, self._silent_later = self._silent_in(slot), self._silent_in(slot + hop)
        if slot in self._begins:
            senders.begin(slot)
        lanes = range(len(self._moves))
        for lane in lanes:
            senders.acknowledge(self.back.take(slot, lane), slot)
        senders.expire(slot)
        if not slot % senders.every:
            senders.steer(slot)
        senders.earn()
        for lane in lanes:
            switch.admit(self.up.take(slot, lane), slot)
        for lane in lanes:
            self._deliver(lane)
        paused = self._paused[slot % hop]
        for lane, moves in enumerate(self._moves):
            packets = senders.choose(slot, moves & ~paused)
            if len(packets):
                self._put(self.up, lane, self.flows.source, packets)
            packets = switch.release(moves)
            if len(packets):
                self._put(self.down, lane, self.flows.target, packets)
        self._paused[slot % hop] = switch.close_slot()
        self.slot += 1

    def _deliver(self, lane: int) -> None:
        packets = self.down.take(self.slot, lane)
        if not len(packets):
            return
        acks = self.receivers.accept(packets, self.slot)
        if self.flaps:
            source, target = self.flows.source[acks[:, FLOW]], self.flows.target[acks[:, FLOW]]
            acks = acks[~(self._silent[target] | self._silent_later[source])]
        self.back.put(self.slot, lane, acks)

    def _put(self, wire: Wire, lane: int, port: Ints, packets: Ints) -> None:
        """`port`: at whose link each flow's packets are now."""
        if self.flaps:
            heard = ~self._silent[port[packets[:, FLOW]]]
            self.lost += len(packets) - int(heard.sum())
            packets = packets[heard]
        wire.put(self.slot, lane, packets)

    def _silent_in(self, slot: int) -> Flags:
        """Ports whose link is silent in a slot."""
        found: Flags = np.zeros(self.rack.ports, dtype=bool)
        for flap in self.flaps:
            found[flap.port] |= flap.begin <= slot < flap.end
        return found
