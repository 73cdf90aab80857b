"""What a pipeline of unlike stages takes, simulated action by action: the check of a planner's formula. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.plan.plan import Action, Op, Plan
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.plan.simulate import simulate

FORWARD_SHARE = 1 / 3
"""Of a stage's time for a micro-batch: a backward takes twice as long as a forward."""


def simulated(
    times: Sequence[float], micro_batches: int, message: float = 0.0, schedule: str = "1f1b", plan: Plan | None = None
) -> float:
    """Seconds of a step whose stages take `times` for a micro-batch, forward and back; `message`: seconds of each."""
    made = SCHEDULES[schedule].plan(len(times), 1, micro_batches) if plan is None else plan

    def took(action: Action) -> float:
        share = {Op.FORWARD: FORWARD_SHARE, Op.BACKWARD: 1 - FORWARD_SHARE}.get(action.op, 0.0)
        return times[action.stage] * share

    return simulate(made, took, message).makespan
