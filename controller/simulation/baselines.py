"""The same faults under other ways of running a job: by hand, and with a launcher that restarts. Arithmetic
on the trace, no controller. Figures are those that ByteRobust reports of the time before it (SOSP'25, 2.2), and
torchrun's and torch.distributed's defaults."""

import random
from collections.abc import Callable, Mapping, Sequence

from holdfast.controller.simulation.faults import STOPS, How, SimulatedFault
from holdfast.controller.simulation.hosts import ClusterShape

_SEEN = 60.0  # until an operator, or a script, sees that a job is over
_FOUND = (120.0, 900.0)  # finding the node by hand
_HANG_BY_HAND = 5400.0
_REQUEUED = 600.0  # restarting a job of 10,000 GPUs
_GROUP_TIMEOUT = 1800.0  # torch.distributed's, for gloo; NCCL's is 600
_IMPORTS = 30.0  # interpreters that start cold
_TRIES = 3

Pause = Callable[[SimulatedFault, random.Random, ClusterShape], float]


def _by_hand(fault: SimulatedFault, rng: random.Random, shape: ClusterShape) -> float:
    """Operators are called, find the node, take another and start again."""
    search = _HANG_BY_HAND if fault.how in (How.HANG, How.SILENT) else _SEEN + rng.uniform(*_FOUND)
    return search + _REQUEUED + shape.start + shape.restore


def _like_torchrun(fault: SimulatedFault, rng: random.Random, shape: ClusterShape) -> float:
    """Crashes are restarted in place at once, hangs at the collective's time-out; a faulty node is never evicted."""
    again = _IMPORTS + shape.start + shape.restore
    match fault.how:
        case How.HANG | How.SWITCH:
            return _GROUP_TIMEOUT + again
        case How.DEAD | How.SILENT | How.PLANNED:
            return _SEEN + rng.uniform(*_FOUND) + _REQUEUED + again  # it waits for a node that operators must add
        case How.GPU | How.CRASH if rng.random() < 0.6:
            return _TRIES * (again + rng.uniform(20, 900)) + _by_hand(fault, rng, shape)
    return again


BASELINES: Mapping[str, Pause] = {"by hand": _by_hand, "torchrun-like": _like_torchrun}


def goodput(shape: ClusterShape, faults: Sequence[SimulatedFault], seconds: float, pause: Pause) -> float:
    """Share of the run in steps that were kept. Work since the last checkpoint in the store is done again."""
    useful, trains_at = 0.0, shape.start
    saved_at = trains_at
    for fault in faults:
        if fault.how not in STOPS or fault.at < trains_at:
            continue
        age = (fault.at - saved_at) % shape.checkpoint
        useful += fault.at - trains_at - min(age, fault.at - trains_at)
        trains_at = saved_at = fault.at + pause(fault, random.Random(fault.rng), shape)
    return max(0.0, useful + max(0.0, seconds - trains_at)) / seconds
