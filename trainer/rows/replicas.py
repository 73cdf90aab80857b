"""What replicas wait for when sums go on beside computation, simulated; and shares of a backward, counted."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from holdfast.plan.plan import COMPUTE, Op, Plan
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.plan.simulate import Duration, simulate
from holdfast.trainer.pipeline.job_plan import job_plan
from holdfast.trainer.rows.row import Row
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


def partial_backward() -> Iterator[Row]:
    """Backward (k + 1) / 2k; of an all-reduce's bytes 1/2 to add up, and 3/4 with what goes to the others (SPB)."""
    # Needs torch.
    from holdfast.trainer.optim.contributions import Contributions

    for k in (2, 4, 8):
        roles = Contributions(k, k, 2 * k)
        yield Row(f"share of backward, k {k}", (k + 1) / (2 * k), roles.share())
        having = [len(roles.contributors(section, 0)) for section in range(1, k + 1)]
        whole = 2 * (k - 1) * k
        yield Row(f"bytes to add up over an all-reduce's, k {k}", 1 / 2, sum(2 * (c - 1) for c in having) / whole)
        to_others = sum(len(roles.receivers(section, 0)) for section in range(1, k + 1))
        yield Row(f"... and to the others, k {k}", 3 / 4, (sum(2 * (c - 1) for c in having) + to_others) / whole)
    layers = 4
    whole_bytes, _ = _back(layers, 0)
    for role in range(1, layers + 1):
        skipped = layers - role
        held, missing = _back(layers, skipped)
        yield Row(f"bytes saved for backward in role {role} of {layers}, over all", role / layers, held / whole_bytes)
        yield Row(f"layers without gradients in role {role} of {layers}", skipped, missing)


def _back(layers: int, skipped: int) -> tuple[int, int]:
    """Forward and backward of a stage of so many layers: bytes that the layers saved, and layers without gradients."""
    import torch

    from holdfast.trainer.mesh.pretended import rank_of
    from holdfast.trainer.model.model import ModelStage, Moment
    from holdfast.trainer.model.tensor_parallel import Parameters
    from holdfast.trainer.pipeline.recompute import Saved
    from holdfast.trainer.settings.load import load

    settings = {"model.d_model": 32, "model.heads": 4, "data.seq_len": 16, "model.layers": 3 * layers}
    with rank_of(TrainerLayout(1, 1, 1, 1, 1)) as mesh:
        make = Parameters(0, mesh.tp, mesh.device)
        own = range(layers, 2 * layers)  # in the middle: layers alone
        module = ModelStage(load(overrides=[*settings.items()]), 1, own, 256, make, Moment(0))
        module.without_way_back = lambda: skipped
        with Saved(module) as saved:
            output = module(torch.zeros(1, 16, 32), 0)
            held = saved.bytes
        output.sum().backward()
        grads = [any(p.grad is not None for p in layer.parameters()) for layer in module.layers.values()]
    return held, grads.count(False)


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
