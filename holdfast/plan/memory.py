"""What the ranks of a plan hold while they execute it. Pure.

A rank's computations are done one after the other, in the order of its list: what it holds at a time follows from the
list, whatever the computations take.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction

from holdfast.plan.plan import LAST_BACKWARDS, Action, Op, Order, Plan

Weight = Callable[[Action], float]
"""What the activations (or the input) of a forward or recompute weigh, for all that the action does: bytes, say."""


def in_flight(plan: Plan) -> tuple[int, ...]:
    """By pipeline rank: the most forwards, over all its stages, whose backward has not been done yet.

    In micro-batches: a forward of two counts twice. A part of one counts as one.
    """
    peaks = []
    for order in plan.orders:
        now: Fraction | int = 0
        peak = now
        for action in order:
            if action.op is Op.FORWARD:
                now += _share(action)
            elif action.op in LAST_BACKWARDS:
                now -= _share(action)
            peak = max(peak, now)
        peaks.append(math.ceil(peak))
    return tuple(peaks)


def _share(action: Action) -> Fraction | int:
    """Its `share`; fractions are slow, and rare."""
    return len(action.micro_batches) if action.parts == 1 else action.share


def live(
    plan: Plan, activations: Weight = lambda a: float(_share(a)), inputs: Weight = lambda a: 0.0
) -> tuple[float, ...]:
    """By pipeline rank: the most that is held for backwards to come.

    Of a micro-batch that has a recompute of its own, `inputs` from its forward on and `activations` from the recompute
    on; of every other, `activations`. By default activations are counted in micro-batches, and inputs not at all.
    """
    return tuple(peak(order, activations, inputs) for order in plan.orders)


def replicas(plan: Plan) -> tuple[int, ...]:
    """By pipeline rank: how many stages it holds, replicas of the same model's stages included."""
    held = [0] * len(plan.orders)
    for stage in range(len(plan.stages)):
        for rank in plan.ranks_of(stage):
            held[rank] += 1
    return tuple(held)


def peak(order: Order, activations: Weight, inputs: Weight = lambda a: 0.0) -> float:
    """`live` of one rank's list."""
    recomputed = {(a.stage, m) for a in order if a.op is Op.RECOMPUTE for m in a.micro_batches}
    held: dict[tuple[int, int], float] = defaultdict(float)
    left: dict[tuple[int, int], Fraction | int] = {}
    now = peak = 0.0
    for action in order:
        keys = [(action.stage, m) for m in action.micro_batches]
        if action.op in (Op.FORWARD, Op.RECOMPUTE):
            is_kept = action.op is Op.RECOMPUTE or not recomputed & set(keys)
            weight = activations(action) if is_kept else inputs(action)
            # While a forward runs its activations are there, whatever is kept of them.
            peak = max(peak, now + (weight if is_kept else max(weight, activations(action))))
            for key in keys:
                held[key] += weight / len(keys)
                now += weight / len(keys)
                left.setdefault(key, 1)
        elif action.op in LAST_BACKWARDS:
            for key in keys:
                left[key] = left.get(key, 1) - (1 if action.parts == 1 else Fraction(1, action.parts))
                if left[key] <= 0:  # what several backwards share goes with the last
                    now -= held.pop(key, 0.0)
    return peak
