"""Dead workers: the rank named, by when, and the ranks never named."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.controller.detectors.workers.hang import HangDetector
from holdfast.controller.detectors.workers.standstill import _line
from holdfast.controller.state.ranks import RankState, RankTable
from holdfast.wire import types as t
from holdfast.wire.standing import StallFacts, ThreadSight, ThreadState
from tests.controller.support.standstills import (
    OPTIONS,
    STEPS,
    at,
    frozen,
    in_a_lock,
    in_operation,
    outside,
    seen,
    standing,
    stopped_alone,
)


def table(world: int = 8, idle: float = 0.1, quiet: float = 0.05, operation: str = "all_reduce") -> RankTable:
    ranks = RankTable(world)
    for rank in range(world):
        ranks.mark(rank, RankState.RUNNING)
        sample = t.WorkerSample(
            rank, 1, 100 + rank, step=9, phase=t.Phase.TRAIN, operation=operation, progress_age=idle, tick_age=quiet,
            activity=seen(idle), standing=in_operation(idle), pending=standing(),
        )  # fmt: skip
        ranks.update(sample, 50.0)
    return ranks


def late(ranks: RankTable, rank: int, **change: object) -> None:
    values: dict[str, object] = {
        "step": 9, "phase": t.Phase.TRAIN, "operation": "", "progress_age": 1.6, "tick_age": 1.5,
    }  # fmt: skip
    idle = float(change.get("progress_age", 1.6))  # type: ignore[arg-type]
    values |= {"activity": seen(idle), "standing": in_a_lock(idle), "pending": standing("", -1, -1, False, 4)} | change
    ranks.update(t.WorkerSample(rank, 1, 1, **values), 50.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(("sizes", "members"), [((2, 1, 2), (0, 1, 2)), ((1, 1, 3), (1,))])
def test_a_message_between_unlike_tp_concerns_the_whole_pipeline(
    sizes: tuple[int, int, int], members: tuple[int, ...]
) -> None:
    """Three ranks: in a mesh of tp 1 and 2 no rank has one of its own in the other stage."""
    ranks = RankTable(3)
    for rank, place in enumerate([(0, 0, 0), (1, 0, 0), (1, 0, 1)] if sizes[0] == 2 else [(0, 0, r) for r in range(3)]):
        ranks.update(t.WorkerSample(rank, 1, 100 + rank, coordinate=place, sizes=sizes), 50.0)
    assert _line(ranks, 1, "pp:recv", {}) == members


def found(ranks: RankTable, steps: list[float] = STEPS, now: float = 50.05) -> list[tuple[str, str]]:
    return [(f.kind.value, f.subject) for f in HangDetector(OPTIONS).observe(ranks, 1, steps, at(now))]


def test_all_ranks_on_time_is_no_finding() -> None:
    assert found(table()) == []


def test_the_rank_without_progress_is_named_and_not_those_that_wait_for_it() -> None:
    ranks = table(idle=1.6)
    late(ranks, 3)
    assert found(ranks) == [("worker-hang", "rank3")]
    late(ranks, 3, stopped=True, standing=stopped_alone(1.6))
    assert found(ranks) == [("worker-stopped", "rank3")]
    late(ranks, 3, stopped=True, standing=None)  # not looked at closely yet: who holds it is not known
    assert found(ranks) == []


@pytest.mark.parametrize(("idle", "stopped", "is_found"), [(0.45, True, False), (0.5, True, True), (0.8, False, False)])
def test_a_process_that_is_stopped_is_sooner_sure_than_one_that_only_looks_so(
    idle: float, stopped: bool, is_found: bool
) -> None:
    """Steps of 50 ms: two steps and half the floor; for a held lock, the whole floor."""
    ranks = table(idle=idle)
    standing = {"standing": stopped_alone(idle)} if stopped else {}
    late(ranks, 3, stopped=stopped, progress_age=idle, tick_age=idle, **standing)
    assert bool(found(ranks, steps=[0.05] * 30)) is is_found


def test_one_that_is_stopped_while_its_peers_go_on_is_left_alone() -> None:
    ranks = table(idle=0.1)
    late(ranks, 3, stopped=True, progress_age=9.0, tick_age=9.0, standing=stopped_alone(9.0))
    assert found(ranks) == []


def test_one_that_is_stopped_while_a_peer_waits_for_something_else_is_left_alone() -> None:
    """A rank stops its sibling, sleeps itself, and lets it go on."""
    ranks = table(idle=9.0)
    late(ranks, 3, stopped=True, progress_age=9.0, tick_age=9.0, standing=stopped_alone(9.0))
    assert found(ranks) == [("worker-stopped", "rank3")]
    late(ranks, 5, progress_age=9.0, tick_age=0.05, standing=outside(9.0))
    assert found(ranks) == []


def test_a_peer_waits_for_one_that_is_stopped_also_by_a_thread() -> None:
    """Gradients are summed in a thread, for which the main one waits."""
    ranks = table(idle=9.0)
    late(ranks, 3, stopped=True, progress_age=9.0, tick_age=9.0, standing=stopped_alone(9.0))
    by_thread = tuple(replace(one, thread=77) for one in in_operation(9.0).operations)
    late(ranks, 5, progress_age=9.0, tick_age=0.05, standing=replace(in_operation(9.0), operations=by_thread))
    assert found(ranks) == [("worker-stopped", "rank3")]
    late(ranks, 5, progress_age=9.0, tick_age=0.05, standing=replace(outside(9.0), operations=by_thread))
    assert found(ranks) == []


@pytest.mark.parametrize("state", [ThreadState.RUNS, ThreadState.OUTSIDE, ThreadState.UNKNOWN, ThreadState.HELD])
def test_a_long_call_that_holds_the_gil_while_any_thread_may_go_on_is_honest(state: ThreadState) -> None:
    """`list.sort`, a driver that waits for its device's bytes, a pool of C++ threads that computes."""
    ranks = table(idle=20.0)
    lock = in_a_lock(20.0).threads[0]
    late(ranks, 3, progress_age=20.0, tick_age=20.0, standing=StallFacts((lock, ThreadSight(9, state, 20.0))))
    assert found(ranks) == []


def test_one_that_ends_holds_the_lock_while_it_waits_for_its_peers() -> None:
    ranks = table(idle=20.0)
    late(ranks, 3, phase=t.Phase.DONE, progress_age=20.0, tick_age=20.0)
    assert found(ranks) == []


def test_a_starved_host_is_not_one_bad_worker() -> None:
    assert found(table(idle=1.6, quiet=1.5)) == []


def test_a_host_whose_agent_is_late_too_is_starved_and_its_workers_are_not_blamed() -> None:
    ranks = table(idle=1.6)
    ranks.update(t.WorkerSample(3, 1, 1, step=9, phase=t.Phase.TRAIN, progress_age=1.6, tick_age=1.5), 50.0, lag=1.0)
    assert found(ranks) == []


def test_two_that_wait_for_locks_of_their_own_are_both_named() -> None:
    ranks = table(idle=1.6)
    late(ranks, 3)
    late(ranks, 4)
    assert found(ranks) == [("worker-hang", "rank3"), ("worker-hang", "rank4")]


def test_before_any_step_a_proof_needs_no_longer_and_a_stopped_process_does() -> None:
    ranks = table(idle=5.0)
    late(ranks, 3, phase=t.Phase.SETUP, progress_age=5.0, tick_age=5.0, stopped=True, standing=stopped_alone(5.0))
    assert found(ranks, steps=[]) == []
    late(ranks, 3, phase=t.Phase.SETUP, progress_age=12.0, tick_age=12.0, stopped=True, standing=stopped_alone(12.0))
    assert found(ranks, steps=[]) == [("worker-stopped", "rank3")]
    late(ranks, 3, phase=t.Phase.SETUP, progress_age=1.6, tick_age=1.6)
    assert found(ranks, steps=[]) == [("worker-hang", "rank3")]


def test_a_node_that_is_silent_is_not_judged() -> None:
    ranks = table(idle=1.6)
    late(ranks, 3)
    assert found(ranks, now=52.0) == []


def test_the_one_outside_of_every_operation_is_dead_only_if_no_thread_of_it_can_go_on() -> None:
    ranks = table(idle=6.0)
    late(ranks, 5, progress_age=6.0, tick_age=0.05)
    assert found(ranks) == [("worker-hang", "rank5")]
    late(ranks, 5, progress_age=6.0, tick_age=0.05, standing=outside(6.0))
    assert found(ranks) == []


def test_a_rank_that_still_moves_is_no_hang() -> None:
    ranks = table(idle=60.0)
    late(ranks, 5, progress_age=0.1, tick_age=0.05)
    assert found(ranks) == []


def test_when_no_rank_stands_out_it_is_the_networks_time() -> None:
    assert found(table(idle=9.0)) == found(table(idle=100.0)) == []


@pytest.mark.parametrize("step", [0.1, 0.3, 3.0])
def test_the_rank_that_all_wait_for_is_named_within_three_median_steps_and_two_seconds(step: float) -> None:
    heard = 2.0 - 0.35  # what is left for the heartbeat, and for the step that ends before all stand
    assert found(frozen(2 * step + heard), [step] * 30) == [("worker-hang", "rank5")]
    assert found(frozen(step), [step] * 30) == []


def test_a_rank_that_waits_for_something_outside_is_not_dead() -> None:
    assert found(frozen(40.0, dead=False)) == []


def test_a_proof_does_not_depend_on_how_long_recent_steps_were() -> None:
    assert found(frozen(2.5), [0.3] * 20 + [2.0] * 2) == [("worker-hang", "rank5")]


def test_a_worker_that_has_ended_while_others_wait_for_it_is_named() -> None:
    ranks = frozen(3.0)
    ranks.mark(5, RankState.DONE)
    assert found(ranks) == [("worker-hang", "rank5")]


def test_one_in_another_phase_is_given_time() -> None:
    ranks = frozen(20.0)
    ranks.phase[5], ranks.standing[5] = t.PHASES.index(t.Phase.EVAL), outside(20.0)
    assert found(ranks) == []


def test_one_that_never_reported_when_it_moved_is_not_judged() -> None:
    ranks = frozen(20.0)
    ranks.still_at[5] = ranks.progress_at[5] = math.nan
    assert found(ranks) == []
    assert HangDetector(OPTIONS).pending_since(ranks, 1, STEPS, at(50.05)) is None


def test_a_standstill_is_reported_before_it_is_a_finding() -> None:
    detector = HangDetector(OPTIONS)
    assert detector.pending_since(frozen(0.2), 1, STEPS, at(50.05)) is None
    assert detector.pending_since(frozen(1.0), 1, STEPS, at(50.05)) == pytest.approx(49.0)
    assert found(frozen(1.0)) == []


@given(st.integers(0, 7), st.floats(0.02, 30.0), st.booleans())
def test_found_within_three_median_steps_and_a_second(rank: int, step: float, stopped: bool) -> None:
    idle = 3 * step + 1
    ranks = table(idle=idle)
    late(ranks, rank, progress_age=idle, tick_age=idle, stopped=stopped)
    if stopped:
        ranks.standing[rank] = stopped_alone(idle)
    names = [subject for _, subject in found(ranks, steps=[step] * 30)]
    assert names == [f"rank{rank}"]
