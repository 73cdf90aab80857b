"""The back-off policy, in virtual time."""

import asyncio
import itertools
import random

import pytest

from holdfast.base.errors import Unavailable
from holdfast.base.retry import Backoff, retrying


def test_delays_grow_to_the_cap() -> None:
    policy = Backoff(initial=1, factor=2, cap=5, jitter=0)
    assert list(itertools.islice(policy.delays(), 5)) == [1, 2, 4, 5, 5]


def test_jitter_takes_off_at_most_its_share() -> None:
    policy = Backoff(initial=1, factor=1, jitter=0.5)
    assert next(policy.delays(lambda: 0.0)) == 1.0
    assert next(policy.delays(lambda: 0.999)) == pytest.approx(0.5, abs=0.01)


def test_the_numbers_are_not_the_programs() -> None:
    """A script that shuffles by `random` draws the same after a save that was tried again."""
    before = random.getstate()
    assert len(set(itertools.islice(Backoff(factor=1).delays(), 5))) == 5
    assert random.getstate() == before


def test_a_plan_ends_on_the_deadline() -> None:
    plan = list(Backoff(initial=1, factor=2, cap=100, jitter=0, deadline=10).plan())
    assert plan == [1, 2, 4, 3]
    assert list(Backoff(deadline=0).plan()) == []


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def attempt_failing(times: int, clock: Clock, cost: float = 0.0) -> tuple[list[float], object]:
    begun: list[float] = []

    async def attempt() -> str:
        begun.append(clock.now)
        clock.now += cost
        if len(begun) <= times:
            raise Unavailable("not yet")
        return "done"

    return begun, attempt


def run(attempt: object, clock: Clock, policy: Backoff) -> str:
    return asyncio.run(
        retrying(attempt, policy, (Unavailable,), clock=clock, sleep=clock.sleep, source=lambda: 0.0)  # type: ignore[arg-type]
    )


def test_success_after_failures() -> None:
    clock = Clock()
    begun, attempt = attempt_failing(3, clock)
    assert run(attempt, clock, Backoff(initial=1, cap=10)) == "done"
    assert begun == [0, 1, 3, 7]


def test_the_deadline_counts_the_time_of_attempts_too() -> None:
    clock = Clock()
    begun, attempt = attempt_failing(99, clock, cost=4)
    with pytest.raises(Unavailable):
        run(attempt, clock, Backoff(initial=1, cap=1, deadline=10))
    assert begun == [0, 5, 10]


def test_other_errors_pass() -> None:
    async def attempt() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        asyncio.run(retrying(attempt, Backoff(), (Unavailable,)))
