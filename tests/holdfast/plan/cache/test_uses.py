"""When something is needed next."""

import pytest

from holdfast.plan.cache.uses import NEVER, BesidesElsewhere, Trace, trace_of_plan
from holdfast.plan.schedules.table import SCHEDULES


def test_the_next_use_is_after_now() -> None:
    trace = Trace(["a", "ab", "c", "a"])

    assert [trace.next("a", now) for now in (-1, 0, 1, 2, 3)] == [0, 1, 3, 3, NEVER]
    assert trace.next("d", 0) == NEVER


def test_of_a_cyclic_trace_the_next_step_follows() -> None:
    trace = Trace(["a", "b", "a", "c"], cyclic=True)

    assert trace.next("a", 2) == 4
    assert trace.next("b", 1) == 5
    assert trace.next("c", 4 + 3) == 4 + 4 + 3
    assert trace.next("a", 10 * 4) == 10 * 4 + 2
    assert [Trace(["a", "b", "c"], cyclic=True).next("b", now) for now in (2, 3 + 1)] == [3 + 1, 2 * 3 + 1]
    assert trace.next("d", 0) == NEVER


def test_what_is_used_elsewhere_first_is_not_needed_here() -> None:
    # a: here at 0 and 3, elsewhere at 1. b: here alone.
    uses = BesidesElsewhere(Trace(["a", "b", "", "a"], cyclic=True), Trace(["", "a", "", ""], cyclic=True))

    assert [uses.next("a", now) for now in range(5)] == [NEVER, 3, 3, 4, NEVER]
    assert [uses.next("b", now) for now in range(3)] == [1, 5, 5]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_plan_says_it_without_a_step_that_is_watched(schedule: str) -> None:
    plan = SCHEDULES[schedule].plan(2, 1, 3)

    trace = trace_of_plan(plan, 0, lambda action: [action.stage] if action.micro_batch == 1 else [])

    needed = [at for at, action in enumerate(plan.orders[0]) if action.micro_batch == 1]
    assert len(trace) == len(plan.orders[0])
    assert trace.next(0, needed[0] - 1) == needed[0]
    assert trace.next(0, needed[-1]) == len(trace) + needed[0]
