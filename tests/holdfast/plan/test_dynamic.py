"""What is ready runs: makespans of the dynamic order, its limit, and what jitter does to it and to fixed orders."""

from __future__ import annotations

from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.check import in_flight, verify
from holdfast.plan.dynamic import First, jittered, simulate_ready
from holdfast.plan.plan import Plan, from_csv
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.plan.simulate import durations, simulate

CHIMERA = ("chimera", "chimera-doubling", "chimera-halving")
WORK = durations(1, 2)


def plan_of(ranks: int, count: int, name: str = "1f1b", chunks: int = 1) -> Plan:
    return SCHEDULES[name].plan(ranks, chunks, count)


@pytest.mark.parametrize(("d", "n"), [(4, 8), (4, 16), (8, 16), (8, 32)])
def test_without_jitter_it_takes_what_1f1b_does(d: int, n: int) -> None:
    # 33, 57, 69, 117
    done = simulate_ready(plan_of(d, n), WORK, limit=d)
    assert done.timeline.makespan == (n + d - 1) * (1 + 2)
    assert max(in_flight(done.plan)) == d
    assert verify(done.plan) == []
    # The order that came out of it is a plan, and takes as long when it is fixed.
    assert simulate(done.plan, WORK).makespan == done.timeline.makespan
    # Which of two comes first makes it slower when nobody chooses.
    assert simulate_ready(plan_of(d, n), WORK, d, first=First.ARRIVAL).timeline.makespan > done.timeline.makespan


@pytest.mark.parametrize(
    ("d", "n", "static", "capped", "free"), [(4, 16, 64.7, 67.4, 58.4), (8, 32, 136.7, 146.0, 120.4)]
)
def test_jitter(d: int, n: int, static: float, capped: float, free: float) -> None:
    """Means of 30 seeds, messages of 0 to half a forward. The cap of D starves it, 2D wins over a fixed order."""
    found: dict[str, list[float]] = {"static": [], "eager": [], "capped": [], "free": []}
    plan, eager = plan_of(d, n), plan_of(d, n, "eager-1f1b")
    for seed in range(30):
        late = jittered(0, 0.5, seed)
        found["static"].append(simulate(plan, WORK, late).makespan)
        found["eager"].append(simulate(eager, WORK, late).makespan)
        found["capped"].append(simulate_ready(plan, WORK, d, late).timeline.makespan)
        found["free"].append(simulate_ready(plan, WORK, 2 * d, late).timeline.makespan)
    assert mean(found["static"]) == pytest.approx(static, rel=0.01)
    assert mean(found["capped"]) == pytest.approx(capped, rel=0.01)
    assert mean(found["free"]) == pytest.approx(free, rel=0.01)
    assert mean(found["eager"]) == pytest.approx(free, rel=0.01)
    assert all(one < other for one, other in zip(found["free"], found["static"], strict=True))
    assert mean(found["capped"]) > mean(found["static"])


def test_a_seed_is_the_same_jitter_again() -> None:
    plan = plan_of(4, 8)
    once, again, other = (simulate_ready(plan, WORK, 8, jittered(0, 1, seed)).timeline for seed in (1, 1, 2))
    assert once == again
    assert once.end != other.end


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(["1f1b", "gpipe", "interleaved", "bfs", *CHIMERA, "merak"]),
    ranks=st.sampled_from([2, 4, 6]),
    rounds=st.integers(1, 3),
    limit=st.integers(1, 9),
    seed=st.integers(0, 99),
    first=st.sampled_from(First),
)
def test_any_plan_s_computations_run_whole_and_within_the_limit(
    name: str, ranks: int, rounds: int, limit: int, seed: int, first: First
) -> None:
    plan = plan_of(ranks, rounds * ranks, name, SCHEDULES[name].chunks)
    done = simulate_ready(plan, WORK, limit, jittered(0, 2, seed), first=first)
    assert verify(done.plan) == []
    assert {a.id for _, a in done.plan.actions()} == {a.id for _, a in plan.actions()}
    stages = len(plan.stages) // ranks
    at_once = max(limit, 2 if name == "chimera-doubling" else 1)  # a forward of two goes in alone
    assert max(in_flight(done.plan)) <= at_once * stages * plan.pipes
    assert sum(done.timeline.busy) == pytest.approx(sum(map(WORK, (a for _, a in plan.actions()))))


def test_what_has_an_order_or_no_beginning_is_refused() -> None:
    with pytest.raises(ValueError, match="1 or more"):
        simulate_ready(plan_of(2, 2), WORK, 0)
    with pytest.raises(ValueError, match="more than computations"):
        simulate_ready(with_orders(plan_of(2, 1), "0F0,0SEND_F0,0B0\n1F0,1B0\n"), WORK, 1)
    with pytest.raises(ValueError, match="never ends"):
        simulate_ready(with_orders(plan_of(2, 1), "0F0,0B0\n1F0\n"), WORK, 1)


def with_orders(plan: Plan, text: str) -> Plan:
    return Plan(plan.schedule, plan.mesh, plan.stages, plan.micro_batches, from_csv(text))
