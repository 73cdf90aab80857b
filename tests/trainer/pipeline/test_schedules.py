"""Schedules in virtual time: what the papers' formulas say of makespan, bubble, latency and memory holds exactly."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import NAMES, SINGLE, plan_of

from holdfast.plan.check import in_flight, verify
from holdfast.plan.plan import Op
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.plan.simulate import durations, simulate
from holdfast.trainer.pipeline.job_plan import job_plan
from holdfast.trainer.pipeline.sharding import add_unshard
from holdfast.trainer.settings.layout import TrainerLayout

# Whole numbers, so that a sum is exact. V divides them for every V below.
F, B = 600, 1200
CASES = [(d, n) for d in (2, 4, 8) for n in (2 * d, 4 * d)]


def chunks_of(name: str) -> tuple[int, ...]:
    return (1,) if name in SINGLE else (2, 3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("d", "n"), CASES)
def test_makespan_and_bubble(name: str, d: int, n: int) -> None:
    for v in chunks_of(name):
        line = simulate(plan_of(name, d, n, v), durations(F, B, v))
        assert line.makespan == n * (F + B) + (d - 1) * (F + B) // v
        # (D-1)/(N+D-1) for V = 1, ((D-1)/V)/(N+(D-1)/V) in general
        assert line.bubble == pytest.approx([(d - 1) / v / (n + (d - 1) / v)] * d)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("d", "n"), CASES)
def test_latency_shows_as_often_as_it_must(name: str, d: int, n: int) -> None:
    for v, ahead in itertools.product(chunks_of(name), (None, 2)):
        plan = plan_of(name, d, n, v, ahead)
        shown = simulate(plan, durations(F, B, v), latency=1).makespan - simulate(plan, durations(F, B, v)).makespan
        expected = {
            "gpipe": 2 * (d - 1),
            "1f1b": 2 * n * (d - 1) // d + 2 * (d - 2),
            "eager-1f1b": 2 * (d - 1),
            "interleaved": 2 * (d * v - 1),
            "bfs": 2 * (d - 1),
        }
        assert shown == expected[name]


def test_receives_posted_late_cost_what_posting_them_ahead_saves() -> None:
    # In one order for both directions, a list of forwards posts each receive just before it is used.
    late, early = (simulate(plan_of("gpipe", 4, 16, ahead=n), durations(F, B), latency=1).makespan for n in (0, 1))
    assert (late - 19 * (F + B), early - 19 * (F + B)) == (36, 6)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("d", "n"), [(2, 2), *CASES])
def test_micro_batches_in_flight(name: str, d: int, n: int) -> None:
    for v in chunks_of(name):
        expected = {
            "gpipe": [n] * d,
            "1f1b": [min(n, d - r) for r in range(d)],
            "eager-1f1b": [min(n, 2 * (d - r) - 1) for r in range(d)],
            "interleaved": [min(n * v, 2 * (d - r - 1) + (v - 1) * d + 1) for r in range(d)],
            "bfs": [n * v] * d,
        }
        assert list(in_flight(plan_of(name, d, n, v))) == expected[name]


def test_decoupled_transfers_against_transfers_that_occupy_the_rank() -> None:
    """Table M5 of the notes: D=4, V=2, N=16, a message takes a tenth of a forward."""
    plan = plan_of("interleaved", 4, 16, 2, ahead=2)
    assert simulate(plan, durations(1, 2, 2)).makespan == pytest.approx(52.5)
    # A chunk's forward is half of the unit, the latency of 0.1 is not: 2(DV-1) times it shows.
    assert simulate(plan, durations(1, 2, 2), latency=0.1).makespan == pytest.approx(53.9)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    pp=st.integers(1, 8),
    dp=st.sampled_from([1, 2]),
    chunks=st.integers(1, 3),
    count=st.integers(1, 12),
    ahead=st.integers(0, 3),
)
def test_every_plan_is_whole_and_ends(name: str, pp: int, dp: int, chunks: int, count: int, ahead: int) -> None:
    schedule = SCHEDULES[name]
    chunks = chunks if schedule.takes_chunks else schedule.chunks
    if schedule.whole_rounds and count % max(1, count // pp):
        with pytest.raises(ValueError, match="do not fill"):
            schedule.build(pp, chunks, count)
        return
    layout = TrainerLayout(pp, dp, 1, chunks, count, schedule.placement)
    layers = layout.stages + 1
    for live in range(1, chunks + 1):
        plan = job_plan(layout, name, layers, schedule.build(pp, chunks, count), ahead=ahead, live=live)
        assert verify(plan) == []
        line = simulate(plan, durations(F, B, chunks), latency=1)
        assert sum(line.busy) == pytest.approx(pp * count * (F + B))


@pytest.mark.parametrize("n", [8, 16, 32])
def test_breadth_first_gathers_do_not_grow_with_micro_batches(n: int) -> None:
    def gathers(name: str, live: int) -> list[int]:
        orders = [add_unshard(order, live) for order in plan_of(name, 4, n, 2).orders]
        return [sum(action.op is Op.UNSHARD for action in order) for order in orders]

    assert gathers("bfs", live=1) == [3] * 4
    assert gathers("interleaved", live=1)[0] == 3 * n // 2 - 1
    assert min(gathers("interleaved", live=1)) == n // 2 + 1
    assert gathers("bfs", live=2) == gathers("interleaved", live=2) == [2] * 4


def test_zero_3_by_stage_keeps_one_stage_whole_where_nothing_else_is_set() -> None:
    layout = TrainerLayout(4, 2, 1, 2, 8, SCHEDULES["bfs"].placement)
    orders = SCHEDULES["bfs"].build(4, 2, 8)
    for zero, gathers in ((3, 2 * 2 - 1), (1, 2)):  # of 2 stages a rank: 2V - 1, and each once
        plan = job_plan(layout, "bfs", layout.stages, orders, zero=zero)
        assert [sum(action.op is Op.UNSHARD for action in order) for order in plan.orders] == [gathers] * 4
