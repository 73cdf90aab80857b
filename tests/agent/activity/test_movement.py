"""What counts as movement: growth, moments, rates, sums over processes that come and go."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.activity.movement import Growth, Moves, Rate
from holdfast.agent.activity.sums import ActivitySums


def test_sums_never_fall_when_processes_end() -> None:
    sums = ActivitySums()
    assert sums.add({1: (10.0, 0.0), 2: (5.0, 1.0)}, [1, 2]) == (0.0, 0.0)
    assert sums.add({1: (12.0, 0.0), 2: (5.0, 3.0)}, [1, 2]) == (2.0, 2.0)
    assert sums.add({1: (12.0, 0.0)}, [1]) == (2.0, 2.0)
    assert sums.add({1: (13.0, 0.0), 3: (4.0, 0.0)}, [1, 3]) == (7.0, 2.0)
    assert sums.add({1: (14.0, 0.0)}, [1, 3]) == (8.0, 2.0)  # 3 is looked at in another turn
    assert sums.add({3: (5.0, 0.0)}, [1, 3]) == (9.0, 2.0)


def test_what_goes_on_is_movement_and_what_happens_now_and_then_is_not() -> None:
    def moves(rate: float, every: int, seconds: float) -> list[float]:
        """At `rate` on average, in one burst every `every` tenths of a second."""
        growth, total, found = Growth(0.04, 0.06), 0.0, []
        for tick in range(round(seconds * 10)):
            at = tick / 10
            total += rate * every / 10 if tick % every == 0 else 0.0
            if growth.add(at, total):
                found.append(at)
        return found

    assert moves(1.0, 1, 2)[0] <= 0.2  # a whole core
    assert moves(0.06, 1, 10)  # 6%
    assert not moves(0.03, 1, 60)  # as a monitoring process
    assert not moves(0.005, 100, 60)  # 50 ms of it each 10 s
    assert Growth(1, 1).add(0.0, 1e9) is False  # the first look is the beginning
    anew = Growth(0.04, 0.06)
    anew.add(0.0, 0.0)
    assert not anew.add(0.1, 5.0, counts=False)
    assert not anew.add(0.2, 5.0)
    stopped = Growth(0.04, 0.06)
    stopped.add(0.0, 0.0)
    assert stopped.add(0.1, 100.0)
    assert not stopped.add(0.2, 100.0)  # however much it was


def test_what_moves_now_and_then_moves_all_the_time_until_it_is_late() -> None:
    moves = Moves()
    assert math.isnan(moves.since(5.0))
    moves.note(10.0)
    assert moves.since(10.4) == 10.0
    moves.note(12.0)  # a piece every two seconds
    assert moves.since(14.9) == 14.9
    assert moves.since(15.1) == 12.0
    moves.note(15.0)
    for at in range(1, 10):
        moves.note(15 + at / 10)
    assert moves.since(16.1) == 15.9
    moves.note(60.0)  # of another time
    assert moves.since(60.1) == 60.0


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1e12)), max_size=30))
def test_rates_are_never_negative(samples: list[tuple[float, float]]) -> None:
    rate = Rate()
    for at, total in samples:
        assert rate.add(at, total) >= 0


def test_a_rate_is_of_the_newest_half_second() -> None:
    rate = Rate()
    for tick in range(30):
        rate.add(tick / 10, 100.0 * min(tick, 10))
    assert rate.value == 0
    rate.add(3.0, 2000.0)
    assert rate.value == pytest.approx(1000 / 0.5, rel=0.3)
