"""A step beside its prediction: what the formulas of the papers say, and the rank where a delay began."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from holdfast.base.errors import NotFound
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.timeline import predicted
from holdfast.diagnostics.timeline.beside import NO_PLAN, beside
from holdfast.plan.dynamic import First, jittered, simulate_ready
from holdfast.plan.plan import Action, Op, Plan
from holdfast.plan.schedules.axonn import default_limit
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.trainer.pipeline.job_plan import job_plan
from holdfast.trainer.settings.layout import TrainerLayout
from holdfast.wire.plans import encode_plan
from tests.diagnostics.support.walked import Row, Walk, table_of, walk

P, M = 4, 8
F, B, SUM = 0.100, 0.200, 0.050
TOOK = {
    Op.FORWARD: F, Op.BACKWARD: B, Op.BACKWARD_INPUT: B / 2, Op.BACKWARD_WEIGHT: B / 2, Op.RECOMPUTE: F,
    Op.REDUCE_GRAD: SUM, Op.SEND_FORWARD: 0.001, Op.SEND_BACKWARD: 0.002,
}  # fmt: skip


def took(action: Action) -> float:
    return TOOK.get(action.op, 0.0) * float(action.share if action.micro_batch >= 0 else 1)


def no_handing_over(action: Action) -> float:
    return 0.0 if action.op in (Op.SEND_FORWARD, Op.SEND_BACKWARD) else took(action)


def plan_of(name: str = "1f1b", dp: int = 1, **more: Any) -> Plan:
    schedule = SCHEDULES[name]
    layout = TrainerLayout(P, dp, 1, schedule.chunks, M, schedule.placement)
    return job_plan(layout, name, layout.stages, schedule.build(P, schedule.chunks, M), ahead=2, **more)


def shape_of(plan: Plan) -> JobShape:
    return JobShape("j1", "train", ("node0",), plan.mesh.world, encode_plan(plan))


def compared(w: Walk, **more: Any) -> dict[str, Any]:
    return beside(table_of([walk(w)]), shape_of(w.plan), **more)


def row_of(found: dict[str, Any], rank: int) -> dict[str, Any]:
    (row,) = (row for row in found["ranks"] if row["rank"] == rank)
    return dict(row)


def test_without_delays_a_step_of_1f1b_is_the_formulas() -> None:
    """PipeDream-Flush (Narayanan et al., 2021): (M + P - 1)(f + b), of which (P - 1) / (M + P - 1) is bubble."""
    found = compared(Walk(plan_of(), no_handing_over))
    for which in ("measured", "predicted"):
        assert found[f"{which}_s"] == pytest.approx((M + P - 1) * (F + B))
        assert found[f"{which}_bubble"] == pytest.approx((P - 1) / (M + P - 1))
    assert [row["late_s"] for row in found["ranks"]] == pytest.approx([0.0] * P, abs=1e-6)
    assert found["own_order"] is False


@pytest.mark.parametrize("name", [n for n, one in SCHEDULES.items() if not one.is_message_driven])
def test_every_schedule_is_predicted_as_it_was_walked(name: str) -> None:
    try:
        plan = plan_of(name)
    except (ValueError, AssertionError) as error:
        pytest.skip(str(error))
    found = compared(Walk(plan, took, message=0.03))
    assert found["own_order"] is False
    assert found["predicted_s"] == pytest.approx(found["measured_s"], abs=1e-6)
    assert found["predicted_bubble"] == pytest.approx(found["measured_bubble"], abs=1e-6)
    for row in found["ranks"]:
        assert (row["late_s"], row["own_s"]) == pytest.approx((0.0, 0.0), abs=1e-6), row


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_replicas_that_share_state_by_stage_are_predicted(zero: int) -> None:
    w = Walk(plan_of("1f1b", dp=2, zero=zero), took, message=0.03, lines=2)
    found = compared(w)
    assert len(found["ranks"]) == 2 * P
    assert max(row["late_s"] for row in found["ranks"]) == pytest.approx(0.0, abs=1e-6)
    assert "reduce_grad" in {found["kinds"][kind] for kind in found["kind"]}


def test_one_late_backward_is_named_and_who_waits_for_it_is_not() -> None:
    found = compared(Walk(plan_of(), took, longer={(0, "2B3"): 0.040}))
    row = row_of(found, 2)
    assert (row["own_id"], row["cause"], row["peer"]) == ("2B3", "longer", -1)
    assert row["own_s"] == pytest.approx(0.040)
    assert row["text"] == "backward of micro-batch 3 on stage 2 took 40.0 ms longer than predicted"
    assert found["text"] == f"rank 2: {row['text']}; 3 other ranks came late after it"
    for other in (0, 1, 3):
        assert row_of(found, other)["own_s"] == pytest.approx(0.0, abs=1e-6)
    # All of 1F1B's steady state hangs on it: the step and the last backward of all are as late.
    assert found["measured_s"] - found["predicted_s"] == pytest.approx(0.040, abs=1e-6)
    assert row_of(found, 0)["late_s"] == pytest.approx(0.040, abs=1e-6)


def test_a_late_message_is_its_senders_and_no_ones_computation() -> None:
    found = compared(Walk(plan_of(), took, message=0.03, later={(0, "1SEND_F2"): 2.0}))
    row = row_of(found, 2)
    assert (row["own_id"], row["cause"], row["peer"]) == ("2F2", "message", 1)
    # Partly hidden: before its message was due, the rank was busy, or waited anyway.
    assert 1.0 < row["own_s"] <= 2.0
    assert found["text"].startswith("rank 2: forward of micro-batch 2 on stage 2 waited ")
    assert "for its message from rank 1" in found["text"]


def test_a_rank_that_did_something_else_is_idle_by_its_plan() -> None:
    found = compared(Walk(plan_of(), took, away={(0, "1B4"): 0.070}))
    row = row_of(found, 1)
    assert (row["own_id"], row["cause"]) == ("1B4", "idle")
    assert row["own_s"] == pytest.approx(0.070)


def test_a_first_forward_that_waits_for_data_is_late_from_the_start() -> None:
    """Lines begin together: that of a line whose first rank came late counts from the step's first computation."""
    found = compared(Walk(plan_of("1f1b", dp=2), took, away={(1, "0F0"): 0.090}, lines=2))
    row = row_of(found, 1)
    assert (row["own_id"], row["cause"]) == ("0F0", "idle")
    assert row["own_s"] == pytest.approx(0.090)


def test_a_rank_slow_all_the_time_shows_against_the_times_of_an_earlier_step() -> None:
    plan = plan_of()
    slow = {(0, f"2F{m}"): 0.060 for m in range(M)}
    table = table_of([walk(Walk(plan, took)), walk(Walk(plan, took, longer=slow))], first=5)
    own = beside(table, shape_of(plan))
    assert (own["step"], own["times_of"]) == (6, 6)
    assert own["text"].startswith("no action came later than by this step's own medians, which contain what was slow")
    found = beside(table, shape_of(plan), lambda: table.of_steps(5, 5))
    assert (found["step"], found["times_of"]) == (6, 5)
    assert found["text"].startswith("rank 2: forward of micro-batch ")
    assert row_of(found, 2)["own_s"] == pytest.approx(0.060)
    assert found["predicted_s"] < found["measured_s"]


def test_of_replicas_that_add_up_only_the_late_one_is_named() -> None:
    """Its peers wait inside their own sums."""
    w = Walk(plan_of("1f1b", dp=3), took, longer={(1, "3B7"): 0.400}, lines=3)
    found = compared(w)
    assert row_of(found, 3 * 3 + 1)["own_s"] == pytest.approx(0.400)
    for rank in set(range(12)) - {10}:
        assert row_of(found, rank)["own_s"] == pytest.approx(0.0, abs=1e-6), rank
    assert row_of(found, 9)["late_s"] == pytest.approx(0.400, abs=1e-6), "it waits in its sum"
    assert row_of(found, 9)["late"] == "reduce grad of stage 3"


def test_times_are_the_medians_by_kind_and_stage() -> None:
    longer = {(0, f"1F{m}"): extra for m, extra in enumerate([0.9, 0.01, 0.02, 0.03, 0.0, 0.0, 0.04, 0.05])}
    found = compared(Walk(plan_of(), took, message=0.03, longer=longer))
    times = {(one["kind"], one["stage"]): one for one in found["times"]}
    # Sorted extras: 0 0 10 20 | 30 40 50 900 ms.
    assert times["forward", 1]["seconds"] == pytest.approx(F + 0.025)
    assert times["forward", 1]["samples"] == M
    assert times["forward", 2]["seconds"] == pytest.approx(F)
    assert times["send_backward (handing over)", 2]["seconds"] == pytest.approx(0.002)
    assert times["message of gradients", 0]["seconds"] == pytest.approx(0.03)
    assert times["message of activations", 3]["seconds"] == pytest.approx(0.03)


def test_a_message_that_nobody_waited_for_says_nothing_of_the_link() -> None:
    """A forward of stage 3 finds its input there whenever the rank was busy; only the waits are samples."""
    found = compared(Walk(plan_of(), took, message=0.03))
    times = {(one["kind"], one["stage"]): one for one in found["times"]}
    counted = [times["message of activations", stage]["samples"] for stage in (1, 2, 3)]
    assert all(0 < count <= M for count in counted)
    assert min(counted) < M, "1F1B's inner ranks have inputs ahead"


def axonn_walk() -> tuple[Plan, list[Row]]:
    """A step in which messages came in another order than the plan's list has."""
    bare = SCHEDULES["axonn"].plan(P, 1, M)
    done = simulate_ready(bare, took, default_limit(P), jittered(0, 0.3, 3), first=First.BACKWARD)
    layout = TrainerLayout(P, 1, 1, 1, M, SCHEDULES["axonn"].placement)
    plan = job_plan(layout, "axonn", P, SCHEDULES["axonn"].build(P, 1, M), ahead=2)
    taken = job_plan(layout, "axonn", P, list(done.plan.orders), ahead=2)
    assert taken.orders != plan.orders
    # As the trainer does it: receives are posted long before.
    ahead = tuple(
        tuple(sorted(order, key=lambda a: a.op not in (Op.RECV_FORWARD, Op.RECV_BACKWARD))) for order in taken.orders
    )
    return plan, walk(Walk(replace(taken, orders=ahead), took, message=0.02, longer={(0, "1B2"): 0.050}))


def test_a_message_driven_step_is_predicted_in_the_order_that_it_took() -> None:
    plan, rows = axonn_walk()
    found = beside(table_of([rows]), shape_of(plan))
    assert found["own_order"] is True
    row = row_of(found, 1)
    assert (row["own_id"], row["cause"]) == ("1B2", "longer")
    assert row["own_s"] == pytest.approx(0.050, abs=1e-6)
    assert sorted(found["start"]) != found["start"], "a lane for each rank"


def test_lanes_hold_the_predicted_computations_in_order() -> None:
    found = compared(Walk(plan_of(), took, longer={(0, "2B3"): 0.040}), ranks=[1, 2])
    assert [row["rank"] for row in found["ranks"]] == [1, 2]
    assert [row["lane"] for row in found["ranks"]] == [0, 1]
    assert len(found["lane"]) == 2 * 2 * M
    lane, start, length = (np.array(found[name]) for name in ("lane", "start", "took"))
    for each in (0, 1):
        assert (np.diff(start[lane == each]) > 0).all()
        assert (start[lane == each][1:] >= (start + length)[lane == each][:-1] - 1).all()
    forwards = [i for i, kind in enumerate(found["kind"]) if found["kinds"][kind] == "forward"]
    assert length[forwards].tolist() == [round(F * 1e6)] * 2 * M
    assert found["stage"] == [1] * 2 * M + [2] * 2 * M


def test_zero_is_the_first_computation_on_the_controllers_clock() -> None:
    plan = plan_of()
    table = table_of([walk(Walk(plan, took))])
    assert beside(table, shape_of(plan))["zero"] == pytest.approx(100.0)


def test_a_rank_without_spans_has_no_difference_and_the_others_do() -> None:
    plan = plan_of("1f1b", dp=2)
    table = table_of([walk(Walk(plan, took, lines=2))])
    found = beside(table.take(table.rank != 5), shape_of(plan))
    assert row_of(found, 5)["late_s"] is None
    assert row_of(found, 5)["text"] == "none of its spans is there"
    assert row_of(found, 4)["late_s"] == pytest.approx(0.0, abs=1e-6)


def test_only_the_newest_generation_of_a_step_counts() -> None:
    plan = plan_of()
    old = table_of([walk(Walk(plan, took, longer={(0, "1F1"): 0.7}))])
    new = table_of([walk(Walk(plan, took))])
    new.generation[:] = 2
    from holdfast.diagnostics.steps.span_table import concatenated

    assert beside(concatenated([old, new]), shape_of(plan))["text"].startswith("no action came later than by")
    assert beside(old, shape_of(plan), lambda: new)["text"].startswith("rank 1: ")
    assert beside(new, shape_of(plan), lambda: new)["text"] == "no action came later than predicted"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda table, shape: (table, replace(shape, plan=b"")), NO_PLAN),
        (lambda table, shape: (table, replace(shape, plan=b"\xff")), "a newer version"),
        (lambda table, shape: (table.take(table.rank != 2), shape), "step 0 has no span of forward on stage 2"),
        (lambda table, shape: (table.take(table.stage < 0), shape), "no spans of this step"),
        (lambda table, shape: (table.take(table.is_of("send_forward")), shape), "no span of a computation"),
    ],
)
def test_what_cannot_be_predicted_is_one_clear_line(change: Any, says: str) -> None:
    plan = plan_of()
    table, shape = change(table_of([walk(Walk(plan, took))]), shape_of(plan))
    with pytest.raises(NotFound, match=says.replace("(", r"\(").replace(")", r"\)")) as raised:
        beside(table, shape)
    assert "\n" not in str(raised.value)


def test_ranks_that_are_not_the_jobs_are_one_clear_line() -> None:
    with pytest.raises(NotFound, match="ranks 0 to 3"):
        compared(Walk(plan_of(), took), ranks=[9])


def test_a_step_that_was_cut_off_is_not_called_clean() -> None:
    """Rank 2 hung in a backward: no rank has a span that began later. The step before it is whole."""
    plan = plan_of()
    rows = walk(Walk(plan, took))
    (hung,) = (start for rank, action, start, _ in rows if (rank, action.id) == (2, "2B3"))
    cut = [row for row in rows if row[3] <= hung]
    found = beside(table_of([cut]), shape_of(plan))
    assert found["incomplete"] == [0, 1, 2, 3]
    assert found["text"].startswith("step 0 is incomplete, and its length says nothing: 4 ranks lack spans")
    whole = beside(table_of([rows, cut]), shape_of(plan))
    assert (whole["step"], whole["incomplete"]) == (0, [])


def test_a_delay_of_two_causes_is_not_given_to_one() -> None:
    found = compared(Walk(plan_of(), took, away={(0, "1B4"): 0.040}, longer={(0, "1B4"): 0.060}))
    row = row_of(found, 1)
    assert row["own_s"] == pytest.approx(0.100)
    assert row["text"] == (
        "backward of micro-batch 4 on stage 1 ended 100.0 ms late, of which it took 60.0 ms longer than predicted"
    )


def test_each_time_has_the_spans_behind_it() -> None:
    """A sum after every micro-batch (ZeRO 2) is one row of all sums of its stage."""
    found = compared(Walk(plan_of("1f1b", dp=2, zero=2), took, lines=2))
    sums = [one for one in found["times"] if one["kind"] == "reduce_grad"]
    assert [(one["stage"], one["samples"]) for one in sums] == [(stage, 2 * M) for stage in range(P)]


def test_only_so_many_orders_are_predicted_and_those_of_the_ranks_asked_for_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(predicted, "MOST_ORDERS", 1)
    alone, moved = axonn_walk()
    layout = TrainerLayout(P, 2, 1, 1, M, SCHEDULES["axonn"].placement)
    plan = job_plan(layout, "axonn", P, SCHEDULES["axonn"].build(P, 1, M), ahead=2)
    kept = walk(Walk(alone, took, message=0.02))
    rows = [(2 * rank + line, *rest) for line, each in enumerate((moved, kept)) for rank, *rest in each]
    for rank in (0, 1):
        found = beside(table_of([rows]), shape_of(plan), ranks=[rank])
        assert ([row["rank"] for row in found["ranks"]], found["left_out"]) == ([rank], P)
        assert found["own_order"] is (rank == 0)
