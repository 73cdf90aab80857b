"""A script that ends in the same way each time is not restarted without a pause. In virtual time."""

import pytest

from holdfast.controller.job.policy import backoff_before
from holdfast.controller.state.events import StopRequested
from holdfast.controller.state.model import JobStatus, Options
from tests.controller.support.virtual import Virtual

BUG = 'Traceback (most recent call last):\n  File "train.py", line 3, in main\nValueError: a bug'


def test_the_first_attempt_is_immediate_and_waits_double_up_to_half_a_minute() -> None:
    assert [backoff_before(attempt, 30.0) for attempt in range(1, 10)] == [0, 1, 2, 4, 8, 16, 30, 30, 30]
    assert backoff_before(1_000_000, 30.0) == 30
    assert backoff_before(5, 0.0) == 0


def counting() -> Virtual:
    """Its program numbers no steps, and saves nothing."""
    v = Virtual(options=Options(restart_backoff=30.0))
    v.counts_from_zero = True
    v.submit()
    v.run(3.0)
    return v


def restarted(v: Virtual, steps: int) -> float:
    """Let it do so many steps, then raise; seconds until its workers run again."""
    v.run_until(lambda: v.job.state is JobStatus.RUNNING and v.job.life_steps >= steps)
    generation = v.job.generation
    v.exit(2, code=1, error=BUG)
    began = v.instant.mono
    v.run_until(lambda: v.job.state is JobStatus.RUNNING and v.job.generation == generation + 1)
    return v.instant.mono - began


def test_attempts_that_end_at_the_same_step_wait_and_the_incident_says_so() -> None:
    v = counting()
    quick = restarted(v, 12)
    waits = [restarted(v, 12) - quick for _ in range(6)]
    assert waits == pytest.approx([1, 2, 4, 8, 16, 30], abs=0.3)
    ended = [one for one in v.incidents if one.action == "restart"]
    said = [one.reason.partition("; ")[2] for one in ended]
    assert said[:4] == ["", *(f"waiting {2**n} s before attempt {n + 2} without progress" for n in range(3))]
    assert ["waiting" in [name for name, *_ in one.phases] for one in ended] == [False, *[True] * 6]


def test_an_attempt_that_gets_further_is_followed_at_once() -> None:
    v = counting()
    quick = restarted(v, 12)
    assert restarted(v, 12) - quick > 0.7
    assert restarted(v, 40) - quick < 0.3
    assert restarted(v, 40) - quick > 0.7


def test_an_operator_does_not_wait() -> None:
    v = counting()
    for _ in range(4):
        restarted(v, 12)
    v.run_until(lambda: v.job.life_steps >= 12)
    v.exit(2, code=1, error=BUG)
    v.run(1.0)
    assert v.job.state is JobStatus.RECOVERING
    v.feed(StopRequested(0.0))
    v.run(1.0)
    assert v.job.state is JobStatus.STOPPED


def test_kills_from_outside_are_followed_at_once() -> None:
    v = Virtual(options=Options(restart_backoff=30.0))
    v.submit()
    v.run(3.0)
    for generation in range(2, 5):
        v.exit(2, signal=9)
        v.run_until(lambda generation=generation: v.job.generation == generation, 0.6)
        v.run_until(lambda: v.job.state is JobStatus.RUNNING, 0.6)
