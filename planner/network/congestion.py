"""What senders do when a switch fills: DCQCN, Swift, and both. Laws for many flows at once; time is in seconds.

DCQCN (Zhu et al., SIGCOMM 2015): the switch marks packets, the receiver answers with at most one notification (CNP)
in 50 us, the sender cuts its rate and comes back in stages. Swift (Kumar et al., SIGCOMM 2020): the sender steers the
round trip to a target. MegaScale (section 3.6) joins the precision of Swift's round trips with DCQCN's fast answer,
and has not published how: `Hybrid` is ours. A notification cuts at once, the rate never exceeds what Swift's window
allows, and it rises only while the round trip is below its target.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

CNP_S = 50e-6
"""A receiver answers marks of one flow at most once in so long."""
ALPHA_S = 55e-6
"""Without a notification for so long, a sender thinks better of the path."""
MTU = 4096.0


class Control(Protocol):
    """The senders' side of congestion control, for all flows together."""

    @property
    def rate(self) -> Floats:
        """Bytes/s that each flow sends now."""
        ...

    def step(self, now: float, passed: float, notified: Flags, round_trip: Floats) -> None:
        """`passed` seconds have passed; these flows got a notification; each flow's newest round trip in seconds."""
        ...


def notified(marked: Flags, answered: Floats, now: float) -> Flags:
    """Flows that get a notification now: marked, and not answered in the last 50 us. Notes them in `answered`."""
    found = marked & (now - answered >= CNP_S)
    answered[found] = now
    return found


class NoControl:
    """Every NIC sends as fast as it can: only pauses hold it back."""

    def __init__(self, flows: int, line: float) -> None:
        self.rate: Floats = np.full(flows, line)

    def step(self, now: float, passed: float, notified: Flags, round_trip: Floats) -> None:
        pass


class Dcqcn:
    """Quantised congestion notification at the sender, as mlx5 has it."""

    def __init__(
        self, flows: int, line: float, *, g: float = 1 / 256, fast: int = 5, additive: float = 5e6, hyper: float = 50e6
    ) -> None:
        """`line`: bytes/s of a NIC. `additive`, `hyper`: bytes/s that the target rises by in a stage."""
        self.line, self.g, self.fast, self.additive, self.hyper = line, g, fast, additive, hyper
        self.current = np.full(flows, line)
        self.target = np.full(flows, line)
        self.alpha = np.ones(flows)
        self.since_cut = np.zeros(flows)
        """Seconds since a notification or the last stage."""
        self.since_alpha = np.zeros(flows)
        self.stage = np.zeros(flows, dtype=np.int64)

    @property
    def rate(self) -> Floats:
        return self.current

    def step(self, now: float, passed: float, notified: Flags, round_trip: Floats) -> None:
        self.advance(passed, notified, np.ones(len(self.current), dtype=bool))

    def advance(self, passed: float, notified: Flags, may_rise: Flags) -> None:
        calm = ~notified
        self.since_alpha[calm] += passed
        self.since_cut[calm] += passed
        if not calm.all():
            self._cut(notified)
        better = self.since_alpha >= ALPHA_S
        if better.any():
            self.alpha[better] *= 1 - self.g
            self.since_alpha[better] -= ALPHA_S
        over = self.since_cut >= ALPHA_S
        if over.any():
            self._rise(over, over & may_rise)

    def _cut(self, notified: Flags) -> None:
        self.target[notified] = self.current[notified]
        self.current[notified] *= 1 - self.alpha[notified] / 2
        self.alpha[notified] = (1 - self.g) * self.alpha[notified] + self.g
        self.stage[notified] = 0
        self.since_cut[notified] = self.since_alpha[notified] = 0.0

    def _rise(self, over: Flags, rise: Flags) -> None:
        """`over`: since their last stage or notification long enough has passed; `rise`: those of them that may."""
        self.since_cut[over] -= ALPHA_S
        self.stage[rise] += 1
        self.target[rise & (self.stage > self.fast)] += self.additive
        self.target[rise & (self.stage > 2 * self.fast)] += self.hyper - self.additive
        np.minimum(self.target, self.line, out=self.target)
        self.current[rise] = (self.current[rise] + self.target[rise]) / 2


class Swift:
    """A window steered by delay; it may be less than a packet, which is then paced."""

    def __init__(
        self, flows: int, line: float, base: float, *, hops: int = 2, hop: float = 1e-6, scaling: float = 4e-6,
        additive: float = 1.0, beta: float = 0.8, most_cut: float = 0.5
    ) -> None:  # fmt: skip
        """`base`: seconds of a round trip without queues. Windows are in packets of `MTU` bytes."""
        self.line, self.base, self.hops, self.hop, self.scaling = line, base, hops, hop, scaling
        self.additive, self.beta, self.most_cut = additive, beta, most_cut
        self.most = line * base / MTU * 2
        self.window = np.full(flows, line * base / MTU)
        self.round_trip = np.full(flows, base)
        self.since_cut = np.full(flows, np.inf)

    def target(self, window: Floats) -> Floats:
        """Seconds of a round trip: more hops and more flows (smaller windows) are allowed longer queues."""
        flow = np.clip(self.scaling / np.sqrt(np.maximum(window, 1e-3)), 0.0, 4 * self.scaling)
        return self.base + self.hops * self.hop + flow

    @property
    def rate(self) -> Floats:
        found: Floats = np.minimum(self.window * MTU / self.round_trip, self.line)
        return found

    def step(self, now: float, passed: float, notified: Flags, round_trip: Floats) -> None:
        self.round_trip = round_trip
        acked = self.rate * passed / MTU
        target = self.target(self.window)
        below = round_trip < target
        self.since_cut += passed
        self.window[below] += self.additive * acked[below] / np.maximum(self.window[below], 1.0)
        cut = ~below & (self.since_cut >= round_trip)
        over = self.beta * (round_trip[cut] - target[cut]) / round_trip[cut]
        self.window[cut] *= np.maximum(1 - over, 1 - self.most_cut)
        self.since_cut[cut] = 0.0
        np.clip(self.window, 1e-3, self.most, out=self.window)


class Hybrid:
    """min(DCQCN's rate, Swift's window over the round trip); rises only while the round trip is below its target."""

    def __init__(self, flows: int, line: float, base: float) -> None:
        self.dcqcn = Dcqcn(flows, line)
        self.swift = Swift(flows, line, base)

    @property
    def rate(self) -> Floats:
        return np.minimum(self.dcqcn.rate, self.swift.rate)

    def step(self, now: float, passed: float, notified: Flags, round_trip: Floats) -> None:
        self.swift.step(now, passed, notified, round_trip)
        # By what a flow sends, not by what its window would allow: one that was cut may rise while others may not.
        in_flight = self.rate * round_trip / MTU
        self.dcqcn.advance(passed, notified, round_trip < self.swift.target(in_flight))
