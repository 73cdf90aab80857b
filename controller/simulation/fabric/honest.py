"""What looks like a fault of the network and is none: nothing is to be done about it."""

from __future__ import annotations

import random
from dataclasses import replace
from enum import StrEnum

import numpy as np

from holdfast.controller.simulation.breaks import Breaks
from holdfast.controller.simulation.fabric.conditions import Flow
from holdfast.controller.simulation.fabric.layout import NIC_BYTES_PER_S
from holdfast.controller.simulation.hosts import SimulatedHost
from holdfast.controller.simulation.pauses import PauseKind

_MINUTE = 60.0


class Honest(StrEnum):
    NOTHING = "nothing"
    UPLOAD = "checkpoint upload"
    """A host sends for a minute to storage, with a tenth of its network."""
    BURST = "burst of another job"
    """For some seconds, over the same uplinks."""
    LOADING = "data loading"
    """A host receives for a minute from storage."""
    SLOW_COMPUTE = "slow compute"
    """A host computes 1.3 times as long; its bytes are the same."""
    LONGER = "longer steps"
    """All hosts compute 1.5 times as long: longer sequences."""
    SHORTER = "shorter steps"
    EVALUATION = "evaluation"
    """No step and no all-reduce for up to a minute."""
    COMPILE = "compilation"
    """One rank computes, the others wait."""
    SAVE = "blocking save"
    """One rank writes, the others wait."""
    REHASH = "rebalanced hash"
    """Switches hash flows another way."""
    RESET = "counters reset"
    """Of a host's NICs, as after a reload of its driver."""
    PORT_RESET = "one port reset"
    """Down for a second, once, on purpose."""
    BIT_ERRORS = "rare bit errors"
    """One packet in a thousand million, on all links of a host."""


def begin(event: Honest, breaks: Breaks, host: SimulatedHost, rng: random.Random) -> None:
    """Now, at a host of the job. The world's network must be looked at."""
    w, faults = breaks.w, breaks.links
    links = faults.links
    first = links.numbers[host.name] * links.clos.rails
    own = range(first, first + links.clos.rails)
    storage = [number * links.clos.rails for number in faults.outside()[:1]]
    match event:
        case Honest.NOTHING:
            pass
        case Honest.UPLOAD:
            flows = tuple(Flow(nic, there + nic - first, NIC_BYTES_PER_S / 10) for nic in own for there in storage)
            faults.add(_MINUTE, others=flows)
        case Honest.LOADING:
            flows = tuple(Flow(there + nic - first, nic, NIC_BYTES_PER_S / 10) for nic in own for there in storage)
            faults.add(_MINUTE, others=flows)
        case Honest.BURST:
            faults.add(rng.uniform(3, 15), others=faults.neighbours(first, NIC_BYTES_PER_S))
        case Honest.SLOW_COMPUTE | Honest.LONGER | Honest.SHORTER:
            w.report_steps()
            for one in [host] if event is Honest.SLOW_COMPUTE else w.job_hosts():
                one.slow = {Honest.SLOW_COMPUTE: 1.3, Honest.LONGER: 1.5, Honest.SHORTER: 0.6}[event]
            links.repace()
        case Honest.EVALUATION:
            breaks.pause(host, PauseKind.EVALUATION, rng)
        case Honest.COMPILE:
            breaks.pause(host, PauseKind.BUSY, rng)
        case Honest.SAVE:
            breaks.pause(host, PauseKind.IO, rng)
        case Honest.REHASH:
            links.change(replace(links.conditions, seed=links.conditions.seed + 1))
        case Honest.RESET:
            links.advance()
            links.meter.reset(np.array(own))
        case Honest.PORT_RESET:
            faults.port_down(host, first, 1.0)
        case Honest.BIT_ERRORS:
            lossy = frozenset((link, 1e-9) for nic in own for link in (nic, links.clos.nics + nic))
            faults.add(w.shape.step * 1e6, lossy=lossy)
