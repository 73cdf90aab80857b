"""What a step waits for its replicas when gatherings and sums go on beside computation: simulated, in milliseconds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from holdfast.plan.plan import COMPUTE, Op, Plan
from holdfast.plan.simulate import Duration, simulate
from holdfast.trainer.pipeline.job_plan import job_plan
from holdfast.trainer.rows.row import Row
from holdfast.trainer.schedules.table import SCHEDULES
from holdfast.trainer.settings.layout import TrainerLayout

GATHERING = SUMS = 400.0
"""Of all of a rank's stages together."""
STAGE = 250.0
"""A stage's forward, and half of its backward: more than its gathering or its sum takes."""
D = 2
N = 8


def beside() -> Iterator[Row]:
    """Exposed: GATHERING / V less what reading data takes, and SUMS / V (MegaScale, 3.2: data parallelism)."""
    for schedule, zero, stages in (("interleaved", 1, (4, 2)), ("bfs", 3, (4,))):
        for v in stages:
            plan = _plan(schedule, zero, v)
            for load in (0.0, 50.0, 150.0):
                expected = max(0.0, GATHERING / v - load) + SUMS / v
                case = f"{schedule}, ZeRO {zero}, V {v}, data in {load:g} ms"
                yield Row(f"exposed ms of {GATHERING + SUMS:g}, {case}", expected, _exposed(plan, v, load))
    for schedule, zero in (("interleaved", 1), ("bfs", 3)):
        plan = _plan(schedule, zero, 4)
        for rank in range(D):
            found = _out_of_turn(plan, rank)
            yield Row(f"gatherings in another order than their first uses, {schedule}, rank {rank}", 0, found)


def _plan(schedule: str, zero: int, v: int) -> Plan:
    chosen = SCHEDULES[schedule]
    # All stages of a rank stay whole: what is gathered again on the way back is another row's (C3).
    layout = TrainerLayout(D, 2, 1, v, N, chosen.placement)
    return job_plan(layout, schedule, layout.stages, chosen.build(D, v, N), zero=zero, live=v)


def _exposed(plan: Plan, v: int, load: float) -> float:
    """How much longer a step takes than over links that take no time."""
    took = [simulate(plan, _times(v, load, share), by_resource=True).makespan for share in (1.0, 0.0)]
    return took[0] - took[1]


def _times(v: int, load: float, share: float) -> Duration:
    table = {
        Op.FORWARD: STAGE, Op.BACKWARD: 2 * STAGE, Op.LOAD: load,
        Op.UNSHARD: share * GATHERING / v, Op.REDUCE_GRAD: share * SUMS / v,
    }  # fmt: skip
    return lambda action: table.get(action.op, 0.0)


def _out_of_turn(plan: Plan, rank: int) -> int:
    """Gatherings of a rank whose stage is used before that of one gathered earlier."""
    order = plan.order_of(rank)
    gathered = [action.stage for action in order if action.op is Op.UNSHARD]
    used = list(dict.fromkeys(action.stage for action in order if action.op in COMPUTE))
    return sum(one != other for one, other in zip_longest(gathered, used))
