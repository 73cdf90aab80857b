"""The comparison of schedules has the figures that the papers' formulas give."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast.plan.schedules.table import SCHEDULES
from holdfast.trainer.pipeline.comparison import Estimate, Memory, Pipeline, actions, compare

D, N, F, B = 8, 16, 600.0, 1200.0
SOME = ("1f1b", "eager-1f1b", "gpipe", "interleaved", "bfs", "zbv", "interleaved-zero-bubble")


def estimates(pipeline: Pipeline, *names: str) -> dict[str, Estimate]:
    return {one.schedule.name: one for one in compare(pipeline, names).estimates}


@pytest.mark.parametrize("v", [2, 4])
def test_figures_of_whole_backwards_follow_the_formulas(v: int) -> None:
    held = {
        "1f1b": [D - r for r in range(D)],
        "eager-1f1b": [min(N, 2 * (D - r) - 1) for r in range(D)],
        "gpipe": [N] * D,
        "interleaved": [2 * (D - r - 1) + (v - 1) * D + 1 for r in range(D)],
        "bfs": [N * v] * D,
    }
    found = estimates(Pipeline(D, N, v, F, B), *held)
    for name, expected in held.items():
        one = found[name]
        chunks = v if SCHEDULES[name].takes_chunks else 1
        assert one.makespan == pytest.approx((N + (D - 1) / chunks) * (F + B)), name
        assert one.bubble == pytest.approx((D - 1) / chunks / (N + (D - 1) / chunks)), name
        assert list(one.held) == expected, name
        assert one.copies == (1.0,) * D, name
        # Activations go on from all stages but the last, gradients back from all but the first.
        ends = [2 * chunks - (r in (0, D - 1)) for r in range(D)]
        assert list(one.messages) == [N * count for count in ends], name


def test_a_fold_sends_nothing_where_it_turns_and_keeps_its_number_of_chunks() -> None:
    one = estimates(Pipeline(D, N, chunks=4), "zbv")["zbv"]
    assert one.chunks == 2
    assert one.bubble == pytest.approx((D - 1) / (6 * N + D - 1))
    assert one.messages[-1] == 2 * N  # forward comes and goes on one rank, as does backward
    assert one.held == (2 * D,) * D


def test_slow_messages_change_the_order_and_so_do_receives_posted_late() -> None:
    names = "gpipe", "1f1b", "eager-1f1b"
    nccl = estimates(Pipeline(D, N, message=0.5), *names)
    gloo = estimates(Pipeline(D, N, message=0.5, device="cpu"), *names)
    assert gloo["gpipe"].makespan == gloo["eager-1f1b"].makespan == pytest.approx((N + D - 1) * 3 + 2 * (D - 1) * 0.5)
    # One order for both directions of a link, and a list of forwards posts each receive just before its use.
    assert nccl["gpipe"].makespan > nccl["1f1b"].makespan > nccl["eager-1f1b"].makespan


def test_the_fastest_comes_first_and_of_equals_the_one_that_holds_less() -> None:
    found = compare(Pipeline(D, N), SOME)
    names = [one.schedule.name for one in found.estimates]
    assert names.index("zbv") < names.index("interleaved") < names.index("1f1b")
    assert names[-3:] == ["1f1b", "eager-1f1b", "gpipe"]
    spans = [one.makespan for one in found.estimates]
    assert spans == sorted(spans)
    assert sorted(names) == sorted(SOME)


def test_impossible_schedules_have_a_reason() -> None:
    found = compare(Pipeline(D, 2 * D + 1), SOME)
    assert found.impossible == dict.fromkeys(
        ("interleaved", "interleaved-zero-bubble"),
        "needs rounds of equal size: 17 micro-batches in 2 rounds leave 1 over",
    )
    alone = compare(Pipeline(1, 4), SOME)
    assert [one.schedule.name for one in alone.estimates] == ["1f1b", "eager-1f1b", "gpipe"]
    assert set(alone.impossible.values()) == {"needs pp of 2 or more"}


def test_memory_is_that_of_the_rank_that_needs_the_most() -> None:
    found = compare(Pipeline(D, N), SOME)
    memory = Memory(activations=1000, weights=500)
    needs = {one.schedule.name: one.needs(memory) for one in found.estimates}
    assert needs["1f1b"] == 8 * 1000 + 500
    assert needs["interleaved"] == 23 * 500 + 500
    assert needs["bfs"] == needs["gpipe"] == N * 1000 + 500
    best = found.best(memory, 8500)
    assert best is not None
    assert best.schedule.name == "zbv"
    assert found.best(memory, 8499) is None


def test_what_it_costs_is_known_before() -> None:
    assert actions(Pipeline(4, 8), ["1f1b"]) == 3 * 4 * 8
    assert actions(Pipeline(4, 8, chunks=3), ["1f1b", "bfs"]) == 3 * 4 * 8 * 3


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_says_when_to_choose_it(name: str) -> None:
    assert SCHEDULES[name].when


def test_all_schedules_are_compared_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from holdfast.trainer.pipeline.comparison import Pipeline, compare\n"
        "from holdfast.plan.schedules.table import SCHEDULES\n"
        "assert len(compare(Pipeline(4, 8)).estimates) == len(SCHEDULES)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
