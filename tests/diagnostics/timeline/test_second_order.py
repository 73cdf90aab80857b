"""An optimizer's work in bubbles: a step is predicted with it, and timeline and blame name what is slow in it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.controller.simulation.step_spans import Culprit, Timing, spans_of
from holdfast.diagnostics.blame.blame import analyse
from holdfast.diagnostics.steps.graph import graphs
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.timeline.beside import beside
from holdfast.plan.plan import Action, Op, Plan
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.trainer.pipeline.job_plan import BubbleWork, job_plan
from holdfast.trainer.settings.layout import TrainerLayout
from holdfast.wire.plans import decode_plan, encode_plan
from tests.diagnostics.support.walked import Walk, table_of, walk

P, M = 4, 8
F, B = 0.100, 0.200
TOOK = {Op.FORWARD: F, Op.BACKWARD: B, Op.BACKWARD_INPUT: B / 2, Op.BACKWARD_WEIGHT: B / 2}


def took(action: Action) -> float:
    """Statistics of gradients take longer than those of inputs, and the second inversion than the first."""
    if action.op is Op.FACTOR:
        return 0.012 if action.turn % 2 else 0.008
    if action.op is Op.INVERT:
        return 0.040 if action.turn else 0.030
    return TOOK.get(action.op, 0.0)


def plan_of(name: str, dp: int = 1, ahead: int = 2) -> Plan:
    schedule = SCHEDULES[name]
    layout = TrainerLayout(P, dp, 1, schedule.chunks, M, schedule.placement)
    work = BubbleWork(took, dict.fromkeys(range(layout.stages), 2))
    orders = schedule.build(P, schedule.chunks, M)
    return job_plan(layout, name, layout.stages, orders, ahead=ahead, zero=0, work=work)


def compared(plan: Plan, **more: Any) -> dict[str, Any]:
    """With the times of a step in which nothing is longer."""
    shape = JobShape("j1", "train", ("node0",), plan.mesh.world, encode_plan(plan))
    return beside(table_of([walk(Walk(plan, took, **more))]), shape, lambda: table_of([walk(Walk(plan, took))]))


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "interleaved", "zbv"])
def test_a_step_is_predicted_with_what_is_in_its_bubbles(name: str) -> None:
    found = compared(plan_of(name))
    assert found["predicted_s"] == pytest.approx(found["measured_s"], abs=1e-6)
    kinds = {found["kinds"][kind] for kind in found["kind"]}
    assert {"factor", "invert"} <= kinds
    assert max(row["late_s"] for row in found["ranks"]) == pytest.approx(0.0, abs=1e-6)
    if name in ("1f1b", "gpipe"):  # PipeDream-Flush and GPipe: (M + P - 1)(f + b), with or without
        assert found["predicted_s"] == pytest.approx((M + P - 1) * (F + B))


def test_an_inversion_that_takes_too_long_is_named() -> None:
    found = compared(plan_of("1f1b"), longer={(0, "2INVERT"): 0.5})
    (row,) = (row for row in found["ranks"] if row["rank"] == 2)
    assert (row["own_id"], row["cause"]) == ("2INVERT", "longer")
    assert found["text"].startswith("rank 2: invert of stage 2 took ")


def test_blame_names_the_rank_whose_statistics_are_slow() -> None:
    plan = decode_plan(encode_plan(plan_of("1f1b", dp=2, ahead=0)))
    table = spans_of(Timing(P, 2, 1, M), plan, [Culprit(5, "factor", 2.0)], 5)
    assert set(table.actions()[1]) - {""} == set(plan.places)
    blame = analyse(iter(list(graphs(table, plan, 2 * P))), JobShape("j1", "train", ("n0",), 2 * P))
    assert blame is not None
    assert [(one.rank, one.what) for one in blame.culprits][:1] == [(5, "factor of stage 2")]
