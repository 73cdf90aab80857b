"""Durations on a schedule: closed forms of makespans, long plans from short ones, ranks that share cores."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.planner.cost import schedule
from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.schedule import StageTimes, plan_of, run
from holdfast.planner.cost.shared_cores import simulate_shared

F, B = (2.0, 0.0, 1.0, 0.0), (4.0, 0.5, 1.0, 0.5)


def times(stages: int) -> list[StageTimes]:
    return [StageTimes(F, B)] * stages


def test_one_f_one_b() -> None:
    """(m + p - 1)(f + b) with f = 3 and b = 6, and each kind counted m times."""
    layout = Layout(pp=4, micro_batches=8)
    ranks = run(layout, times(4), 0.0)
    assert max(one.end for one in ranks) == (8 + 3) * 9
    assert ranks[0].kinds == (8 * 6.0, 8 * 0.5, 8 * 2.0, 8 * 0.5)


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "interleaved", "bfs", "zbv", "eager-1f1b", "chimera"])
def test_a_long_plan_from_two_short_ones(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(pp=4, micro_batches=64 if name != "chimera" else 32, schedule=name)
    stages = times(layout.stages)
    whole = run(layout, stages, 0.25)
    monkeypatch.setattr(schedule, "MOST_ACTIONS", 10)
    assert schedule.samples_of(layout) is not None
    for own, expected in zip(run(layout, stages, 0.25), whole, strict=True):
        assert own.end == pytest.approx(expected.end, rel=1e-9)
        assert own.kinds == pytest.approx(expected.kinds, rel=1e-9)


def test_recompute_of_a_whole_stage_is_an_action() -> None:
    layout = Layout(pp=2, micro_batches=4, recompute="cell")
    stages = [StageTimes(F, (4.0, 0.0, 0.0, 0.0), again=(0.0, 2.0, 0.0, 0.0))] * 2
    assert run(layout, stages, 0.0)[0].kinds[1] == 4 * 2.0


def test_shared_cores_by_hand() -> None:
    """One core: every second of work takes turns, whatever the order. Two: two ranks at a time."""
    layout = Layout(pp=4, micro_batches=4)
    plan = plan_of(layout)
    work = 4 * 4 * (1 + 2)
    assert max(simulate_shared(plan, lambda a: 1.0 if a.op == "F" else 2.0, 1).values()) == pytest.approx(work)
    # As many cores as ranks: the plan by itself, (m + p - 1)(f + b).
    alone = simulate_shared(plan, lambda a: 1.0 if a.op == "F" else 2.0, 4)
    assert max(alone.values()) == pytest.approx((4 + 3) * 3)
    # Three ranks for each action on two cores: even one action has only two thirds of a core for each.
    assert max(simulate_shared(plan, lambda a: 1.0, 2, ranks=3).values()) == pytest.approx(4 * 4 * 2 * 3 / 2)


def test_messages_take_as_long_on_both_ways() -> None:
    """One micro-batch, F of 1 s and B of 2 s: half a second to the second rank, none on it, and half a second back."""
    plan = plan_of(Layout(pp=2, micro_batches=1))
    ends = simulate_shared(plan, lambda a: 1.0 if a.op == "F" else 2.0, 2, latency=0.5)
    assert sorted(ends.values()) == pytest.approx([1.0, 2.5, 4.5, 7.0])


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 4), st.integers(1, 6), st.floats(0.5, 8), st.floats(0, 1))
def test_what_shared_cores_must_hold(pp: int, micro_batches: int, cores: float, latency: float) -> None:
    plan = plan_of(Layout(pp=pp, micro_batches=micro_batches))
    work = len(plan.places) * 1.0
    found = max(simulate_shared(plan, lambda a: 1.0, cores, 1, latency).values())
    assert found >= max(work / cores, max(simulate_shared(plan, lambda a: 1.0, 1e9, 1, latency).values())) - 1e-9
    assert found <= max(simulate_shared(plan, lambda a: 1.0, cores / 2, 1, latency).values()) + 1e-9


def test_layouts_of_unlike_schedules_are_kept_apart() -> None:
    one = Layout(pp=2, micro_batches=4)
    assert plan_of(one) is plan_of(replace(one, zero=3))
    assert plan_of(one) is not plan_of(replace(one, recompute="cell"))
