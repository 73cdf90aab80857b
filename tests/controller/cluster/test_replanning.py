"""Wait for lost nodes, or go on with fewer: the costs by hand, and what must hold of every choice."""

import dataclasses
import itertools
import math
import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.controller.cluster.replanning import (
    PRIOR_REPAIR_S,
    Situation,
    choose,
    expected_cost,
    frontier,
    hold_before_growing,
    remaining,
)

SECONDS = st.floats(1.0, 1e5)
CASES = st.builds(
    Situation,
    throughput=st.floats(0.0, 1.0),
    missing=st.integers(1, 5),
    away_s=st.floats(0.0, 1e4),
    absences=st.lists(SECONDS, max_size=12).map(tuple),
    restart_s=st.floats(0.0, 1e3),
    grow_after_s=st.floats(0.0, 300.0),
)


def test_a_long_repair_is_not_waited_for() -> None:
    # Each was away for 1,000 s, and with probability 1/4 this one is for 2,000 s: 1,250 s in the mean.
    case = Situation(0.75, absences=(1000.0, 1000.0, 1000.0), restart_s=40.0, grow_after_s=30.0)
    found = choose(case)
    assert found.wait_s == 0
    assert found.waiting_s == pytest.approx(1250 + 40)
    assert found.going_on_s == pytest.approx(2 * 40 + 0.25 * (1250 + 30 - 40))


def test_a_short_one_is_and_two_restarts_cost_more() -> None:
    # Waiting: 0.75 x (20 + 40) + 0.25 x (wait 20, then go on: 2 x 40 + 0.5 x max(0, 20 - 40)).
    case = Situation(0.5, absences=(20.0, 20.0, 20.0), restart_s=40.0)
    found = choose(case)
    assert found.waits
    assert found.waiting_s == pytest.approx(25 + 40)
    assert found.going_on_s == pytest.approx(2 * 40)
    assert found.cost_s == pytest.approx(25 + 40)


def test_mostly_short_repairs_are_waited_for_and_the_rare_long_one_is_not() -> None:
    case = Situation(0.9, absences=(30.0,) * 9 + (20_000.0,), restart_s=60.0)
    found = choose(case)
    assert found.wait_s == 30.0
    assert choose(dataclasses.replace(case, away_s=31.0)).wait_s == 0


def test_all_of_several_nodes_have_to_be_back() -> None:
    case = Situation(0.5, missing=2, absences=(10.0, 20.0, 30.0))
    # The known ones and twice the longest, equally likely for one node: within x both with the square.
    assert remaining(case) == [
        (10.0, pytest.approx(1 / 16)), (20.0, pytest.approx(3 / 16)), (30.0, pytest.approx(5 / 16)),
        (60.0, pytest.approx(7 / 16)),
    ]  # fmt: skip


def test_without_a_history_a_mean_is_assumed() -> None:
    left = remaining(Situation(0.5))
    mean = sum(seconds * chance for seconds, chance in left)
    assert 0.8 * PRIOR_REPAIR_S < mean < 2 * PRIOR_REPAIR_S
    assert not choose(Situation(0.5)).waits


def test_nothing_is_waited_for_that_was_never_seen() -> None:
    case = Situation(0.01, absences=(10.0, 10.0, 10.0), away_s=21.0)
    assert choose(case).wait_s == 0


def test_a_layout_that_trains_nothing_is_waited_out() -> None:
    assert choose(Situation(0.0, absences=(5000.0,) * 5, grow_after_s=30.0)).waits


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_a_throughput_is_a_share(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        choose(Situation(share))


@settings(deadline=None)
@given(CASES)
def test_chances_add_up_and_come_in_order(case: Situation) -> None:
    left = remaining(case)
    assume(left)
    assert sum(chance for _, chance in left) == pytest.approx(1)
    assert all(seconds > 0 and chance >= 0 for seconds, chance in left)
    assert [seconds for seconds, _ in left] == sorted(seconds for seconds, _ in left)


@settings(deadline=None)
@given(CASES, st.lists(st.floats(0.0, 3e5), min_size=1, max_size=20))
def test_no_other_wait_costs_less(case: Situation, others: list[float]) -> None:
    left = remaining(case)
    assume(left)
    found = choose(case)
    assert found.cost_s <= found.going_on_s
    assert found.cost_s <= found.waiting_s
    assert found.cost_s == pytest.approx(expected_cost(case, left, found.wait_s))
    for wait in others:
        assert found.cost_s <= expected_cost(case, left, wait) * (1 + 1e-9) + 1e-6


@settings(deadline=None)
@given(CASES)
def test_a_faster_layout_is_never_waited_longer_for(case: Situation) -> None:
    faster = dataclasses.replace(case, throughput=(1 + case.throughput) / 2)
    assert choose(faster).cost_s <= choose(case).cost_s
    if not choose(case).waits:
        assert not choose(faster).waits


@settings(deadline=None)
@given(CASES, st.floats(0.05, 0.95))
def test_a_later_look_comes_to_the_same_moment(case: Situation, share: float) -> None:
    alone = dataclasses.replace(case, missing=1)
    found = choose(alone)
    assume(found.wait_s > 1e-3)
    later = dataclasses.replace(alone, away_s=alone.away_s + share * found.wait_s)
    left = remaining(later)
    # The same moment, unless another costs as much. A microsecond more: the moment itself is rounded.
    same = expected_cost(later, left, (1 - share) * found.wait_s + 1e-6)
    assert choose(later).cost_s == pytest.approx(same, rel=1e-6, abs=1e-3)


@settings(deadline=None)
@given(st.floats(0.0, 1.0), st.floats(1.0, 500.0), st.integers(0, 9))
def test_the_cost_is_the_mean_over_played_out_repairs(share: float, restart: float, seed: int) -> None:
    draw = random.Random(seed)
    case = Situation(share, absences=tuple(draw.uniform(1, 2000) for _ in range(6)), restart_s=restart, grow_after_s=20)
    wait = draw.uniform(0, 3000)

    def played(back: float) -> float:
        """Second by second: what is not done, until the job is at its size again."""
        if back <= wait:
            return back + restart
        lost, at = wait + restart, wait + restart
        grows = max(back + case.grow_after_s, at)
        return lost + (grows - at) * (1 - share) + restart

    left = remaining(case)
    by_hand = sum(chance * played(seconds) for seconds, chance in left)
    assert expected_cost(case, left, wait) == pytest.approx(by_hand)


def test_each_return_of_a_flapping_node_doubles_the_hold() -> None:
    assert [hold_before_growing(30.0, n) for n in range(5)] == [30.0, 30.0, 60.0, 120.0, 240.0]
    assert hold_before_growing(30.0, 1000) == 3600.0
    assert hold_before_growing(7200.0, 1000) == 7200.0  # never less than what was asked for


def test_a_restart_for_less_than_a_hundredth_is_not_worth_it() -> None:
    assert frontier([(61, 0.905), (60, 0.9), (62, 0.93), (63, 0.93), (48, 0.0)]) == [60, 62]


@settings(deadline=None)
@given(st.dictionaries(st.integers(1, 64), st.floats(0.0, 1.0), max_size=30))
def test_the_most_nodes_of_the_frontier_are_the_fastest(table: dict[int, float]) -> None:
    found = frontier(table.items())
    for fewer, more in itertools.pairwise(found):
        assert fewer < more
        assert table[more] > table[fewer] * 1.01
    for nodes, throughput in table.items():
        within = [table[one] for one in found if one <= nodes]
        assert throughput <= max(within, default=0.0) * 1.01 + 1e-12
