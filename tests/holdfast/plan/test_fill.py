"""Work in bubbles: the step takes no longer where they hold it, and only as much longer as they do not."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.check import verify
from holdfast.plan.fill import MARGIN, Filler, fill, second_order
from holdfast.plan.plan import COMPUTE, SECOND_ORDER, Action, Op, Plan
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.plan.simulate import Duration, Timeline, durations, simulate
from holdfast.trainer.pipeline.job_plan import BubbleWork, job_plan
from holdfast.trainer.settings.layout import TrainerLayout

FORWARD, BACKWARD = 1.0, 2.0


def times(factor: float, invert: float) -> Duration:
    base = durations(FORWARD, BACKWARD)
    return lambda action: {Op.FACTOR: factor, Op.INVERT: invert}.get(action.op) or base(action)


def made(schedule: str, ranks: int, count: int, share: float, inverting: float = 0.5) -> tuple[Plan, Plan, Duration]:
    """Without and with second-order work of `share` of each rank's bubble, (D-1)(F+B), `inverting` of it inverting."""
    plan = SCHEDULES[schedule].plan(ranks, 1, count)
    work = share * (ranks - 1) * (FORWARD + BACKWARD)
    duration = times((1 - inverting) * work / (2 * count), inverting * work)
    return plan, fill(plan, second_order(plan), duration).plan, duration


def test_a_stage_has_two_factors_a_micro_batch_and_one_inversion() -> None:
    plan = SCHEDULES["1f1b"].plan(2, 1, 3)
    first, _ = second_order(plan)
    assert [one.action.id for one in first if one.action.op is Op.INVERT] == ["0INVERT"]
    assert {one.action.id: one.after for one in first if one.action.op is Op.FACTOR} == {
        "0FACTOR": ("0F0",), "0FACTOR~1": ("0B0",), "0FACTOR~2": ("0F1",),
        "0FACTOR~3": ("0B1",), "0FACTOR~4": ("0F2",), "0FACTOR~5": ("0B2",),
    }  # fmt: skip
    assert len(first[-1].after) == 6


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("ranks", "count"), [(2, 4), (4, 8), (8, 16)])
@pytest.mark.parametrize("share", [0.2, 0.4, 0.6])
def test_the_step_takes_as_long_as_without(schedule: str, ranks: int, count: int, share: float) -> None:
    plan, filled, duration = made(schedule, ranks, count, share)
    assert verify(filled) == []
    expected = (count + ranks - 1) * (FORWARD + BACKWARD)
    line = simulate(filled, duration)
    assert line.makespan == pytest.approx(expected)
    assert _moved(plan, duration, line) == pytest.approx(0)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_more_than_the_bubble_makes_the_step_longer(schedule: str) -> None:
    """A rank's time is at least what it computes, and no filler waits for another rank's."""
    plan, filled, duration = made(schedule, 4, 8, 1.5)
    took = simulate(filled, duration).makespan
    computing, bubble = 8 * (FORWARD + BACKWARD), 3 * (FORWARD + BACKWARD)
    assert computing + 1.5 * bubble <= took <= computing + bubble + 1.5 * bubble
    assert _moved(plan, duration, simulate(filled, duration)) == pytest.approx(0)


def test_an_inversion_of_what_a_step_saw_last_is_done_in_the_next() -> None:
    """1F1B of two ranks, four micro-batches: rank 0 computes to the end, so its inversion waits for its gap."""
    plan = SCHEDULES["1f1b"].plan(2, 1, 4)
    found = fill(plan, second_order(plan), times(0.01, 1.5))
    order = [action.id for action in found.plan.orders[0]]
    assert "0INVERT" in found.late
    assert order.index("0INVERT") < order.index("0B0")
    # Rank 1 has (D-1) B = 2 behind its last backward: enough in the same step.
    assert "1INVERT" not in found.late
    assert found.plan.orders[1][-1].id == "1INVERT"


def test_a_gap_is_longer_than_its_filler_by_the_margin() -> None:
    """Rank 0 of 1F1B is idle for B = 2 between its second forward and its first backward, and then never so long."""
    plan = SCHEDULES["1f1b"].plan(2, 1, 2)
    for seconds, fits in ((2 / (1 + MARGIN) - 1e-6, True), (2 / (1 + MARGIN) + 1e-6, False)):
        table = {Op.SNAP: seconds, Op.FORWARD: FORWARD, Op.BACKWARD: BACKWARD}
        found = fill(plan, [[Filler(Action(Op.SNAP, 0), ("0F1",))], []], lambda action, of=table: of[action.op])
        order = [action.id for action in found.plan.orders[0]]
        assert order.index("0SNAP") == (2 if fits else 4)
        assert found.late == set()  # it would find no room in the next step either


def test_what_is_done_at_the_end_is_not_late_for_nothing() -> None:
    """Statistics fit into the bubbles, and the inversion into none. Rank 0's last statistics are late, and the
    inversion with them; rank 1's are not."""
    plan = SCHEDULES["1f1b"].plan(2, 1, 4)
    found = fill(plan, second_order(plan), times(0.01, 50))
    assert found.late == {"0FACTOR~7", "0INVERT"}
    assert [order[-1].id for order in found.plan.orders] == ["0INVERT", "1INVERT"]
    assert verify(found.plan) == []


def test_statistics_that_fit_into_no_bubble_are_of_their_own_step() -> None:
    plan = SCHEDULES["1f1b"].plan(2, 1, 4)
    assert fill(plan, second_order(plan), times(5, 0.1)).late == set()


@pytest.mark.parametrize(
    "schedule", ["1f1b", "gpipe", "interleaved", "zbv", "chimera", "chimera-doubling", "chimera-halving"]
)
@pytest.mark.parametrize("dp", [1, 2])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_jobs_plan_takes_as_long_as_without(schedule: str, dp: int, share: float) -> None:
    """In it are messages, reductions and steps too. A step's work is a share of the least bubble of any rank."""
    chosen, ranks, count = SCHEDULES[schedule], 4, 8
    layout = TrainerLayout(ranks, dp, 1, chosen.chunks, count, chosen.placement)
    orders, base = chosen.build(ranks, chosen.chunks, count), durations(FORWARD, BACKWARD)
    bare = job_plan(layout, schedule, layout.stages, orders, ahead=2, zero=0)
    line = simulate(bare, base)
    idle = min(line.bubble) * line.makespan
    stages, rounds = layout.stages * layout.pipes // ranks, 8
    factor, invert = share * idle / 2 / (2 * count * chosen.chunks), share * idle / 2 / (stages * rounds)

    def duration(action: Action) -> float:
        return {Op.FACTOR: factor, Op.INVERT: invert}.get(action.op) or base(action)

    work = BubbleWork(duration, dict.fromkeys(range(layout.stages), rounds))
    filled = job_plan(layout, schedule, layout.stages, orders, ahead=2, zero=0, work=work)
    assert simulate(filled, duration).makespan == pytest.approx(line.makespan)
    for order, own in zip(filled.orders, bare.orders, strict=True):
        assert [action for action in order if action.op not in SECOND_ORDER] == list(own)
        done = Counter(action.op for action in order)
        assert done[Op.INVERT] == stages * rounds
        # A step ends with what the optimizer needs.
        assert all(action.op is Op.STEP for action in order[-stages:])
    micro_batches = {(a.stage, a.turn) for _, a in filled.actions() if a.op is Op.FACTOR}
    assert micro_batches == {(s, turn) for s in range(layout.stages) for turn in range(2 * count)}


def test_a_plan_is_refused_whose_work_lies_where_it_cannot_be_done() -> None:
    plan = SCHEDULES["1f1b"].plan(2, 1, 2)
    found = fill(plan, second_order(plan), times(0.01, 0.01)).plan
    assert verify(found) == []
    for name, at in (("0FACTOR~1", 0), ("0FACTOR", 0), ("1INVERT", 0)):
        rank = int(name[0])
        order = [replace(action, late=False) for action in found.orders[rank]]
        (one,) = (action for action in order if action.id == name)
        order.remove(one)
        order.insert(at, one)
        orders = [tuple(order) if r == rank else own for r, own in enumerate(found.orders)]
        assert "wait for each other for ever" in verify(replace(found, orders=tuple(orders)))[0]
    unknown = replace(found, orders=((Action(Op.FACTOR, 0, turn=99), *found.orders[0]), found.orders[1]))
    assert verify(unknown) == ["actions wait for what is not in the plan: 0B49"]


@settings(deadline=None, max_examples=40)
@given(
    schedule=st.sampled_from(["1f1b", "gpipe", "zbv", "interleaved"]),
    ranks=st.integers(2, 4),
    rounds=st.integers(1, 2),
    factor=st.floats(0.01, 1),
    invert=st.floats(0.01, 6),
)
def test_every_filler_is_done_once_after_what_it_needs(
    schedule: str, ranks: int, rounds: int, factor: float, invert: float
) -> None:
    plan = SCHEDULES[schedule].plan(ranks, SCHEDULES[schedule].chunks, rounds * ranks)
    fillers, duration = second_order(plan), times(factor, invert)
    found = fill(plan, fillers, duration)
    assert verify(found.plan) == []
    line = simulate(found.plan, duration)
    for order, own in zip(found.plan.orders, fillers, strict=True):
        ids = [action.id for action in order]
        assert all(ids.count(one.action.id) == 1 for one in own)
        for one in own:
            for need in one.after:
                # What is late is of the step before; what it needs of its own rank is late too, or was done in that.
                if one.action.id not in found.late:
                    assert need not in found.late
                    assert line.end[need] <= line.start[one.action.id] + 1e-9
                elif need in found.late:
                    assert ids.index(need) < ids.index(one.action.id)
    assert _moved(plan, duration, line) == pytest.approx(0)


def _moved(plan: Plan, duration: Duration, line: Timeline) -> float:
    """How much later a computation begins than in the plan without fillers, at most."""
    bare = simulate(plan, duration)
    starts = {a.id: bare.start[a.id] for _, a in plan.actions() if a.op in COMPUTE}
    return max(line.start[name] - start for name, start in starts.items())
