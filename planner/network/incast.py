"""Many senders into one port of a switch: queue, marks, pauses (PFC), what arrives. Fluid, in steps of 1 us.

Packet by packet, for a whole rack: `holdfast.planner.packets`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from holdfast.planner.network.congestion import MTU, Control, notified
from holdfast.planner.network.errors import NetworkError

STEP_S = 1e-6

Build = Callable[[int, float, float], Control]
"""Flows, bytes/s of a NIC, seconds of an empty round trip: their congestion control."""


@dataclass(frozen=True, slots=True)
class Port:
    """An output port, its queue and what it does when that grows. Bytes, and bytes/s."""

    bytes_per_s: float = 25e9
    """200 Gbit/s."""
    base_s: float = 8e-6
    """A round trip without a queue."""
    mark_from: float = 400e3
    """Kmin: below it nothing is marked."""
    mark_all: float = 1.6e6
    """Kmax: above it everything is."""
    mark_most: float = 0.2
    """Pmax: the share that is marked just below `mark_all`."""
    pause_at: float = 80e3
    """XOFF: bytes of one ingress in the queue at which its sender must pause; goes on at half of it."""

    def __post_init__(self) -> None:
        if not (self.bytes_per_s > 0 and self.base_s > 0):
            raise NetworkError("a port with no bandwidth or a round trip of no time carries nothing")
        if not 0 <= self.mark_from < self.mark_all:
            raise NetworkError(f"marks from {self.mark_from:g} to {self.mark_all:g} bytes: the second must be larger")

    def marks(self, queue: float) -> float:
        """Chance that a packet is marked: 0 below Kmin, 1 above Kmax, Pmax (q - Kmin) / (Kmax - Kmin) between."""
        if queue < self.mark_from:
            return 0.0
        if queue >= self.mark_all:
            return 1.0
        return self.mark_most * (queue - self.mark_from) / (self.mark_all - self.mark_from)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it; all but `pauses` is of the second half, when the beginning is over."""

    pauses: int
    """Pause frames from the beginning on."""
    goodput: float
    """Share of the port's bandwidth that left it."""
    longest_queue: float
    """Bytes."""
    mean_queue: float
    fairness: float
    """Jain's index of what each flow got: 1 is equal, 1/n is one alone."""


def incast(build: Build, port: Port, senders: int, seconds: float, seed: int, apart_s: float = 0.0) -> Outcome:
    """`senders` NICs as fast as the port send into it without end, one after the other begins `apart_s` later.

    A sender learns the queue after half a round trip, as acknowledgements and notifications take that long. A paused
    ingress sends nothing, whatever its rate. Raises NetworkError for fewer than one sender or step.
    """
    if senders < 1 or not seconds >= 100 * STEP_S:
        raise NetworkError(f"{senders} senders for {seconds:g} s: at least one, for {100 * STEP_S:g} s, is needed")
    control = build(senders, port.bytes_per_s, port.base_s)
    rng = np.random.default_rng(seed)
    steps, late = round(seconds / STEP_S), max(1, round(port.base_s / 2 / STEP_S))
    held = np.zeros(senders)
    """Bytes of each ingress in the queue."""
    paused = np.zeros(senders, dtype=bool)
    answered = np.full(senders, -np.inf)
    seen_queue, seen_marks = np.zeros(late), np.zeros((late, senders), dtype=bool)
    arrived, began = np.zeros(senders), np.arange(senders) * apart_s
    pauses, longest, total = 0, 0.0, 0.0
    for step in range(steps):
        now = step * STEP_S
        cut = notified(seen_marks[step % late], answered, now)
        control.step(now, STEP_S, cut, np.full(senders, port.base_s + seen_queue[step % late] / port.bytes_per_s))
        quiet = paused | (began > now)
        sent = np.where(quiet, 0.0, np.minimum(control.rate, port.bytes_per_s)) * STEP_S
        held += sent
        queue = float(held.sum())
        out = held * min(1.0, port.bytes_per_s * STEP_S / queue) if queue else held * 0.0
        held -= out
        queue -= float(out.sum())
        chance = 1 - (1 - port.marks(queue)) ** (sent / MTU)
        seen_marks[step % late] = rng.random(senders) < chance
        seen_queue[step % late] = queue
        stop, go = ~paused & (held > port.pause_at), paused & (held < port.pause_at / 2)
        pauses += int(stop.sum())
        paused = (paused | stop) & ~go
        if step >= steps // 2:
            arrived += out
            longest, total = max(longest, queue), total + queue
    half = steps - steps // 2
    spread = float((arrived**2).sum()) * senders
    return Outcome(
        pauses,
        float(arrived.sum()) / (port.bytes_per_s * half * STEP_S),
        longest,
        total / half,
        float(arrived.sum()) ** 2 / spread if spread else 1.0,
    )
