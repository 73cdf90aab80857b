"""Outages of one job in virtual time, against what is counted by hand."""

import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.controller.simulation.replanning import Outage, Policy, Repairs, compare, play

TABLE = {60: 0.9, 62: 0.96}


def test_waiting_loses_the_repair_and_a_restart() -> None:
    found = play(Outage(64, (300.0, 1000.0), restart_s=60.0, until_s=10_000.0), TABLE, Policy.WAIT)
    assert found.goodput == pytest.approx((10_000 - 1000 - 60) / 10_000)
    assert found.restarts == 1


def test_going_on_pays_a_restart_for_each_size() -> None:
    outage = Outage(64, (2000.0, 3000.0, 5000.0), restart_s=60.0, grow_after_s=30.0, until_s=10_000.0)
    found = play(outage, TABLE, Policy.GO_ON)
    # 60 of the 61 that are left, 62 when the first is back, 64 at the end; for 63 there is no layout.
    work = 0.9 * (2030 - 60) + 0.96 * (5030 - 2030 - 60) + (10_000 - 5030 - 60)
    assert found.goodput == pytest.approx(work / 10_000)
    assert found.restarts == 3


def test_below_all_layouts_even_going_on_waits() -> None:
    outage = Outage(64, (100.0,) * 5, restart_s=60.0, until_s=1000.0)
    assert play(outage, TABLE, Policy.GO_ON) == play(outage, TABLE, Policy.WAIT)


@pytest.mark.parametrize(("absences", "like"), [((50.0,) * 20, Policy.WAIT), ((9000.0,) * 20, Policy.GO_ON)])
def test_the_choice_is_the_better_of_both_where_the_history_is_right(absences: tuple[float, ...], like: Policy) -> None:
    outage = Outage(64, (absences[0],) * 3, absences, restart_s=60.0)
    assert play(outage, TABLE, Policy.CHOOSE) == play(outage, TABLE, like)


def test_a_wait_that_was_in_vain_is_ended() -> None:
    # Nine of ten are back within 50 s; these are not.
    outage = Outage(64, (20_000.0,) * 3, (*[50.0] * 60, 20_000.0), restart_s=60.0, grow_after_s=0.0, until_s=20_060.0)
    found = play(outage, {60: 0.9}, Policy.CHOOSE)
    waited = 50.0
    assert found.goodput == pytest.approx(0.9 * (20_000 - waited - 60) / 20_060)


@settings(deadline=None)
@given(
    st.lists(st.floats(1.0, 50_000.0), min_size=1, max_size=4).map(tuple),
    st.lists(st.floats(1.0, 50_000.0), max_size=20).map(tuple),
    st.floats(0.0, 1000.0),
    st.sampled_from(Policy),
)
def test_no_policy_beats_the_nodes_that_are_there(
    repairs: tuple[float, ...], absences: tuple[float, ...], restart_s: float, policy: Policy
) -> None:
    outage = Outage(64, repairs, absences, restart_s)
    found = play(outage, TABLE, policy)
    best = sum(
        (min(end, outage.until_s) - min(begin, outage.until_s)) * (1 if at == len(repairs) else 0.96)
        for at, (begin, end) in enumerate(zip((0.0, *sorted(repairs)), (*sorted(repairs), outage.until_s), strict=True))
    )
    assert 0 <= found.goodput <= best / outage.until_s + 1e-9
    assert found.restarts <= 3


def test_over_many_outages_it_is_about_as_good_as_the_better_policy_in_each_world() -> None:
    tables = {str(policy): (policy, TABLE) for policy in Policy}
    for repairs in (Repairs(1.0, 60.0, 0.0), Repairs(0.5, 120.0, 20_000.0), Repairs(0.0, 0.0, 20_000.0)):
        found = compare(64, 3, tables, repairs, range(40), restart_s=120.0)
        mean = {name: statistics.mean(one.goodput for one in runs) for name, runs in found.items()}
        assert mean["choose"] >= max(mean["wait"], mean["go on"]) - 0.001


def test_repairs_have_their_median() -> None:
    drawn = Repairs(0.25, 100.0, 10_000.0).draw(4000, random.Random(1))
    assert sum(one < 1000 for one in drawn) / 4000 == pytest.approx(0.25, abs=0.03)
    assert statistics.median(one for one in drawn if one > 1000) == pytest.approx(10_000, rel=0.05)
