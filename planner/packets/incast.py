"""Many senders into one NIC of a rack, packet by packet, under several congestion controls at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from holdfast.planner.network.congestion import Control, Dcqcn, Flags, Floats, Hybrid, NoControl, Swift
from holdfast.planner.network.errors import NetworkError
from holdfast.planner.network.incast import Build, Outcome, Port
from holdfast.planner.packets.rack import ENDLESS, MAX_HOSTS, RACK_PORT, WIRE, Flows, Rack
from holdfast.planner.packets.simulation import Simulation

CONTROLS: Mapping[str, Build] = {
    "none": lambda flows, line, base: NoControl(flows, line),
    "dcqcn": lambda flows, line, base: Dcqcn(flows, line),
    "swift": Swift,
    "both": Hybrid,
}


@dataclass(frozen=True, slots=True)
class Meeting:
    """What came of it under one control. Goodput is a share of what headers leave of the NIC."""

    outcome: Outcome
    victim: float
    """What a flow from the first sender to an idle NIC got, as a share of its NIC: 1 - 1/senders would be fair."""


class Beside:
    """Several controls, each for as many flows as the others, in their order."""

    def __init__(self, controls: Sequence[Control]) -> None:
        self.controls = controls

    @property
    def rate(self) -> Floats:
        return np.concatenate([control.rate for control in self.controls])

    def step(self, now: float, passed: float, notified: Flags, round_trip: Floats) -> None:
        parts = (np.split(values, len(self.controls)) for values in (notified, round_trip))
        for control, marked, trip in zip(self.controls, *parts, strict=True):
            control.step(now, passed, marked, trip)


def incasts(
    senders: int,
    slots: int,
    controls: Mapping[str, Build] = CONTROLS,
    port: Port = RACK_PORT,
    seed: int = 0,
    apart: int = 0,
) -> dict[str, Meeting]:
    """What each control makes of `senders` NICs that send to one without end; sender i begins in slot i * `apart`.

    Each has hosts of its own in one rack, whose buffer is large enough for all: a slot costs little more with several.
    Raises NetworkError for more hosts than a rack has.
    """
    each, count = senders + 2, len(controls)
    if senders < 1 or each * count > MAX_HOSTS or slots < 2:
        raise NetworkError(
            f"{senders:,} senders for {slots} slots: 1 to {MAX_HOSTS // count - 2} for 2 slots or more are possible"
        )
    flows = [
        (first + sender, first + target, ENDLESS, sender * apart)
        for first in range(0, each * count, each)
        for sender, target in [*((one, senders) for one in range(senders)), (0, senders + 1)]
    ]
    rack = Rack(each * count, port)
    rack = replace(rack, buffer=rack.lossless_bytes)
    run = Simulation(
        rack,
        Flows.of(*flows),
        lambda n, line, base: Beside([build(n // count, line, base) for build in controls.values()]),
        seed,
    )
    run.run(slots // 2)
    before, waited = run.receivers.expected.copy(), run.switch.waited.copy()
    run.switch.longest[:] = 0
    half = slots - slots // 2
    run.run(half)
    got = (run.receivers.expected - before).reshape(count, senders + 1)
    longest, mean = (
        values.reshape(count, each)[:, senders] * WIRE
        for values in (run.switch.longest, (run.switch.waited - waited) / half)
    )
    pauses = run.switch.pauses.reshape(count, each).sum(axis=1)
    return {
        name: Meeting(
            Outcome(
                int(pauses[row]),
                float(got[row, :senders].sum() / half),
                float(longest[row]),
                float(mean[row]),
                _fairness(got[row, :senders].astype(float)),
            ),
            float(got[row, senders] / half),
        )
        for row, name in enumerate(controls)
    }


def _fairness(got: Floats) -> float:
    """Jain's index."""
    spread = float((got**2).sum()) * len(got)
    return float(got.sum()) ** 2 / spread if spread else 1.0
