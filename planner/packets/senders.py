"""The sending side of all flows: who may send, at which pace, what is sent again. Pure.

A NIC takes the flow that has waited longest of those that may send. Retransmission is go-back-N, as RDMA NICs do it
in hardware: a receiver that misses a packet asks once, and what has no acknowledgement goes out again at each timeout.
"""

from __future__ import annotations

import numpy as np

from holdfast.planner.network.congestion import Control, Flags, notified
from holdfast.planner.packets.rack import Flows, Ints, Rack
from holdfast.planner.packets.wire import AGAIN, FLOW, MARKED, NUMBER, SENT

STEER_S = 1e-6
"""Congestion control takes a step this often, as in the fluid model."""
_NEVER = np.iinfo(np.int64).max // 2


class Senders:
    def __init__(self, rack: Rack, flows: Flows, control: Control) -> None:
        count = len(flows)
        self.flows, self.control = flows, control
        self.window, self.slot_s = rack.window, rack.slot_s
        self.line = rack.port.bytes_per_s
        self.every = max(1, round(STEER_S / rack.slot_s))
        """Slots from one step of congestion control to the next."""
        self.next, self.acked = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        """The number that is sent next; all numbers below `acked` have arrived."""
        self.limit = np.full(count, -1, dtype=np.int64)
        """Numbers below it may be sent: by the window, by what there is, none before the beginning."""
        self.pace, self.credit = np.ones(count), np.ones(count)
        """Packets a slot, and what has come together of it."""
        self.last = np.full(count, -1, dtype=np.int64)
        self.round_trip = np.full(count, 4 * rack.hop * rack.slot_s)
        self.marked: Flags = np.zeros(count, dtype=bool)
        self.answered = np.full(count, -np.inf)
        self.waits = rack.waits
        self.tolerance = int(self.waits[-1]) * max(rack.ib_retries, 1)
        self.since, self.progress, self.tried = (np.zeros(count, dtype=np.int64) for _ in range(3))
        """Slots: the timer's start, the last acknowledgement with news (or first packet), the last attempt."""
        self.attempt = np.zeros(count, dtype=np.int64)
        self.given_up: Flags = np.zeros(count, dtype=bool)
        self.sent, self.timeouts = 0, 0
        self._soonest = _NEVER  # no timer ends before this slot
        self._of_port = flows.source.argsort(kind="stable")
        ports, self._first = np.unique(flows.source[self._of_port], return_index=True)
        self._ports: Ints = ports
        self._alone = len(ports) == count

    def begin(self, slot: int) -> None:
        """Flows that begin in this slot."""
        new = self.flows.begin == slot
        self.limit[new] = np.minimum(self.flows.packets[new], self.window)

    def choose(self, slot: int, may: Flags) -> Ints:
        """A packet of each port that `may` send, of the flow that has waited longest there. It counts as sent."""
        ready = (self.credit >= 1.0) & (self.next < self.limit)
        if self._alone:
            flow = (ready & may[self.flows.source]).nonzero()[0]
        else:
            count = len(ready)
            turn = np.where(ready, self.last * count + np.arange(count), _NEVER)[self._of_port]
            best = np.minimum.reduceat(turn, self._first)
            flow = best[(best < _NEVER) & may[self._ports]] % count
        if not len(flow):
            return np.empty((0, MARKED + 1), dtype=np.int64)
        number = self.next[flow]
        idle = flow[number == self.acked[flow]]
        if len(idle):
            self._start(idle, slot)
        self.next[flow] = number + 1
        self.credit[flow] -= 1.0
        self.last[flow] = slot
        self.sent += len(flow)
        packets = np.zeros((len(flow), MARKED + 1), dtype=np.int64)
        packets[:, FLOW], packets[:, NUMBER], packets[:, SENT] = flow, number, slot
        return packets

    def _start(self, flow: Ints, slot: int) -> None:
        """Timers of flows that send and have nothing else under way."""
        self.since[flow] = slot
        first = flow[self.attempt[flow] == 0]
        self.progress[first] = self.tried[first] = slot
        self._soonest = min(self._soonest, slot + int(self.waits[0]))

    def earn(self) -> None:
        """A slot's credit. What is not used is kept up to one packet more, so that a pace is kept on average."""
        self.credit += self.pace
        np.minimum(self.credit, 2.0, out=self.credit)

    def acknowledge(self, acks: Ints, slot: int) -> None:
        """One acknowledgement of each of these flows."""
        if not len(acks):
            return
        flow, number = acks[:, FLOW], acks[:, NUMBER]
        self.round_trip[flow] = (slot - acks[:, SENT]) * self.slot_s
        self.marked[flow] |= acks[:, MARKED] > 0
        news = number > self.acked[flow]
        fresh, upto = (flow, number) if np.count_nonzero(news) == len(flow) else (flow[news], number[news])
        self.acked[fresh] = upto
        self.next[fresh] = np.maximum(self.next[fresh], upto)
        going = ~self.given_up[fresh]
        self.limit[fresh] = np.where(going, np.minimum(self.flows.packets[fresh], upto + self.window), -1)
        if np.count_nonzero(self.attempt[fresh]):
            self.attempt[fresh] = 0
            self._soonest = min(self._soonest, slot + int(self.waits[0]))
        self.since[fresh] = self.progress[fresh] = self.tried[fresh] = slot
        if np.count_nonzero(acks[:, AGAIN]):
            again = flow[acks[:, AGAIN] > 0]
            self.next[again] = self.acked[again]

    def expire(self, slot: int) -> None:
        """Go back where a timer has ended; give up where the attempt before was behind what a connection survives."""
        if slot < self._soonest:
            return
        ends = self.since + self.waits[np.minimum(self.attempt, len(self.waits) - 1)]
        ends[self.next <= self.acked] = _NEVER
        late = ends <= slot
        lost = late & (self.tried - self.progress >= self.tolerance)
        self.given_up |= lost
        self.limit[lost] = -1
        self.next[late] = self.acked[late]
        self.attempt[late] += 1
        self.tried[late] = slot
        self.timeouts += int(late.sum())
        self._soonest = int(ends[~late].min(initial=_NEVER))

    def steer(self, slot: int) -> None:
        """A step of congestion control, by the marks and round trips that came back since the last one."""
        now = slot * self.slot_s
        cut = notified(self.marked, self.answered, now)
        self.control.step(now, self.every * self.slot_s, cut, self.round_trip.copy())
        self.marked[:] = False
        np.minimum(self.control.rate / self.line, 1.0, out=self.pace)
