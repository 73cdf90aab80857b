"""Merak's four lists in virtual time: recompute leaves the critical path step by step. f = 1, b = 2."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.check import in_flight, verify
from holdfast.plan.memory import live
from holdfast.plan.plan import COMPUTE, Op
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.plan.simulate import durations, simulate
from holdfast.trainer.pipeline.job_plan import job_plan
from holdfast.trainer.settings.layout import TrainerLayout

NAMES = ("merak-baseline", "merak-early", "merak-last-kept", "merak")


@pytest.mark.parametrize(
    ("d", "n", "expected"),
    [(4, 8, (44, 41, 39, 38)), (4, 16, (76, 73, 71, 70)), (8, 16, (92, 85, 83, 82))],
)
def test_makespans(d: int, n: int, expected: tuple[int, ...]) -> None:
    path = (n + d - 1) * (2 * 1 + 2)  # everything in the critical path
    assert expected == (path, path - (d - 1), path - (d - 1) - 2, path - (d - 1) - 3)
    found = [simulate(SCHEDULES[name].plan(d, 1, n), durations(1, 2)).makespan for name in NAMES]
    assert tuple(found) == expected


@pytest.mark.parametrize("ahead", [0, 2])
def test_makespans_are_the_same_with_transfers(ahead: int) -> None:
    d, n = 4, 8
    layout = TrainerLayout(d, 1, 1, 1, n)
    plans = [job_plan(layout, name, d, SCHEDULES[name].build(d, 1, n), ahead=ahead) for name in NAMES]
    assert [simulate(plan, durations(1, 2)).makespan for plan in plans] == [44, 41, 39, 38]


@pytest.mark.parametrize("ahead", [1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_posted_ahead_of_the_first_that_waits_for_them(name: str, ahead: int) -> None:
    plan = job_plan(TrainerLayout(4, 1, 1, 1, 8), name, 4, SCHEDULES[name].build(4, 1, 8), ahead=ahead)
    for order in plan.orders:
        computed = [a for a in order if a.op in COMPUTE]
        for i, action in enumerate(order):
            if action.op is Op.RECV_BACKWARD:
                waits = Op.RECOMPUTE if name == "merak-baseline" else Op.BACKWARD
                user = next(n for n, a in enumerate(computed) if (a.op, a.micro_batch) == (waits, action.micro_batch))
                before = sum(a.op in COMPUTE for a in order[:i])
                assert before <= max(0, user - ahead)


def test_only_the_last_stage_keeps_what_the_others_recompute() -> None:
    d, n = 4, 8
    for name in NAMES:
        plan = SCHEDULES[name].plan(d, 1, n)
        stages = {action.stage for _, action in plan.actions() if action.op is Op.RECOMPUTE}
        assert stages == set(range(d if name in ("merak-baseline", "merak-early") else d - 1))
        shifted = name == "merak"
        assert in_flight(plan) == (4, 3, 3 if shifted else 2, 1)
        # One micro-batch's activations at a time; the inputs of all that are in flight.
        assert live(plan) == (1.0,) * d
        inputs = live(plan, activations=lambda a: 0.0, inputs=lambda a: 1.0)
        assert inputs == tuple(float(m) for m in in_flight(plan)[: len(stages)]) + (0.0,) * (d - len(stages))


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    ranks=st.integers(1, 9),
    count=st.integers(1, 17),
    dp=st.sampled_from([1, 2]),
    zero=st.integers(0, 3),
    ahead=st.integers(0, 3),
)
def test_every_plan_is_whole_and_ends(name: str, ranks: int, count: int, dp: int, zero: int, ahead: int) -> None:
    layout = TrainerLayout(ranks, dp, 1, 1, count)
    plan = job_plan(layout, name, ranks, SCHEDULES[name].build(ranks, 1, count), ahead=ahead, zero=zero)
    assert verify(plan) == []
    recomputed = sum(action.op is Op.RECOMPUTE for _, action in plan.actions())
    assert recomputed == count * (ranks if name in ("merak-baseline", "merak-early") else ranks - 1)
    line = simulate(plan, durations(1, 2), latency=0.1)
    assert sum(line.busy) == pytest.approx(3 * ranks * count + recomputed)
