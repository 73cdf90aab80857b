"""A budget by a clock that counts."""

from __future__ import annotations

from holdfast.planner.search.budget import SECONDS, Budget


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_is_up_when_the_seconds_are_over() -> None:
    clock = Clock()
    budget = Budget(5.0, clock)
    assert not budget.is_up()
    clock.now = 104.9
    assert not budget.is_up()
    clock.now = 105.0
    assert budget.is_up()


def test_what_takes_more_than_is_left_is_too_long() -> None:
    clock = Clock()
    budget = Budget(10.0, clock)
    assert not budget.is_too_long(int(9.9 / SECONDS))
    assert budget.is_too_long(int(10.1 / SECONDS))
    clock.now = 104.0
    assert not budget.is_too_long(int(5.9 / SECONDS))
    assert budget.is_too_long(int(6.1 / SECONDS))


def test_long_layouts_show_what_a_computation_takes() -> None:
    clock = Clock()
    budget = Budget(100.0, clock)
    assert not budget.is_too_long(1000)  # it begins
    clock.now += 50.0
    assert not budget.is_up()  # 50 ms a computation, 50 s are left
    assert budget.is_too_long(1001)
    assert not budget.is_too_long(999)
    clock.now += 1.0
    assert not budget.is_up()  # about 1 ms
    clock.now += 9.0
    assert not budget.is_up(), "what lies between two layouts counts for none"
    assert not budget.is_too_long(39_900)  # 40 s are left
    assert budget.is_too_long(40_000)
