"""Once a rank has ended with 0 and no step is made any more, the rest is waited for and then stopped: no restart."""

import dataclasses
import math

import pytest

from holdfast.controller.job.ending.end_phase import overdue
from holdfast.controller.state.events import Found
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, JobStatus, Options
from holdfast.controller.state.ranks import RankState, RankTable
from holdfast.wire import types as t
from tests.controller.support.standstills import QUICK, job
from tests.controller.support.virtual import Virtual

LIMITS = dataclasses.replace(QUICK, exit_limit=15.0, pause_limit=40.0)


def ending(options: Options = LIMITS, left: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7), **more: object) -> Virtual:
    """Training is over: these ranks have ended with 0, and the others sleep in a lock."""
    v = Virtual(options=options)
    v.submit(**more)  # type: ignore[arg-type]
    v.run(3.0)
    for rank in range(8):
        if rank not in left:
            v.sleep_worker(rank)
    for rank in left:
        v.exit(rank, code=0)
    return v


def is_over(v: Virtual) -> tuple[JobStatus, int | None, int, int]:
    return v.job.state, v.job.exit_code, v.job.generation, v.job.restarts


def test_a_rank_that_joins_a_thread_for_ever_is_stopped_at_the_limit_and_the_job_is_finished() -> None:
    v = ending()
    v.run(13.0)
    assert is_over(v) == (JobStatus.RUNNING, None, 1, 0)
    v.run(4.0)
    assert is_over(v) == (JobStatus.FINISHED, 0, 1, 0)
    assert v.job.reason == (
        "7 of 8 ranks ended with exit code 0; rank 0 was still running 15 s later and stopped (--exit-limit, 15 s); "
        "rank 0 waited for a lock"
    )
    assert not [i for i in v.incidents if i.action != "alert"]


def test_nor_is_it_restarted_where_its_threads_prove_that_it_never_ends() -> None:
    v = Virtual(options=LIMITS)
    v.submit()
    v.run(3.0)
    for rank in range(8):
        v.exit(rank, code=0) if rank else setattr(v.worker(rank), "stopped_at", v.now)
    v.run(13.0)
    assert is_over(v) == (JobStatus.RUNNING, None, 1, 0)
    v.run(4.0)
    assert is_over(v) == (JobStatus.FINISHED, 0, 1, 0)
    assert not [i for i in v.incidents if i.action != "alert"]


def test_also_where_one_of_many_has_left_and_the_job_sets_the_limit_itself() -> None:
    v = ending(left=(3,), limits={"exit_limit": 25.0})
    v.run(23.0)
    assert not v.job.state.ended
    v.run(4.0)
    assert is_over(v) == (JobStatus.FINISHED, 0, 1, 0)
    assert "ranks 0-2,4-7 were still running 25 s later" in v.job.reason


def test_ranks_that_go_on_after_one_left_by_design_are_under_the_rules_of_training() -> None:
    v = Virtual(options=dataclasses.replace(LIMITS, exit_limit=5.0))
    v.submit()
    v.run(3.0)
    v.exit(7, code=0)
    for _ in range(40):  # steps of the others, and a wait of less than the exit limit between some
        v.run(0.9)
        for worker in v.all_workers():
            worker.step, worker.progress_at = worker.step + worker.running, v.now
    assert is_over(v) == (JobStatus.RUNNING, None, 1, 0)
    v.sleep_worker(0)
    v.run(12.0)
    assert (v.job.state.ended, v.job.restarts) == (False, 1)  # the idle limit, as without the one that left


def test_a_busy_rank_is_waited_for_until_the_pause_limit() -> None:
    v = ending()
    v.worker(0).busy_until = math.inf
    v.run(38.0)
    assert not v.job.state.ended
    v.run(4.0)
    assert is_over(v) == (JobStatus.FINISHED, 0, 1, 0)
    assert "(--pause-limit, 40 s)" in v.job.reason


def test_a_last_rank_that_fails_is_restarted_as_ever() -> None:
    v = ending()
    v.run(8.0)
    v.exit(0, code=1, error="ValueError: no")
    v.run(2.0)
    assert v.job.generation == 2


def test_a_proof_still_restarts_the_job_and_a_limit_does_not() -> None:
    for life, generation in (("idle", 1), ("busy", 1), ("unknown", 1), ("dead", 2)):
        v = ending(left=(7,))
        at = v.instant.wall
        found = Finding(t.FindingKind.WORKER_HANG, t.Severity.CRITICAL, "rank0", "it hangs", at, at, rank=0,
                        signature="hang", evidence={"life": life})  # fmt: skip
        v.feed(Found(found, "j1"))
        v.run(1.0)
        assert v.job.generation == generation, life


def test_after_a_restart_of_the_controller_the_limit_begins_again() -> None:
    v = ending()
    v.run(10.0)
    v.restart_controller()
    v.run(10.0)
    assert not v.job.state.ended
    v.run(8.0)
    assert is_over(v) == (JobStatus.FINISHED, 0, 1, 0)


@pytest.mark.parametrize("phase", [t.Phase.DONE, t.Phase.TRAIN])
def test_where_all_have_torn_down_and_none_has_ended_it_is_over_too(phase: t.Phase) -> None:
    v = ending(left=())
    ranks = v.brain.jobs.newest.c.ranks
    v.run(1.0)
    ranks.phase[:] = t.PHASES.index(phase)
    ranks.progress_at[:] = v.now
    since = v.brain.jobs.newest.c.ending_since(v.instant)
    assert since == (pytest.approx(v.now) if phase is t.Phase.DONE else None)


@pytest.mark.parametrize(("left", "is_ending"), [((7,), False), ((4, 5, 6, 7), True)])
def test_before_the_first_step_few_that_leave_were_not_needed(left: tuple[int, ...], is_ending: bool) -> None:
    """The others may read their data for long. A script that makes no steps ends as any other."""
    v = Virtual(options=LIMITS)
    v.step_seconds = 1e9
    v.submit()
    v.run(1.0)
    for rank in left:
        v.exit(rank, code=0)
    assert (v.brain.jobs.newest.c.ending_since(v.instant) is not None) is is_ending


def test_after_a_wait_with_a_known_end_the_limit_counts_anew() -> None:
    """An upload's backoff of 20 s, and then its answer: of the moment between them nothing was measured."""
    ranks = RankTable(2)
    ranks.mark(0, RankState.RUNNING)
    ranks.mark(1, RankState.DONE)
    stopped = []
    for tick in range(80):
        now = 0.5 * tick
        ends_in = 20.0 - now if now < 20.0 else math.nan
        activity = t.Activity(watched=now, quiet=now, state="S", waits_for="a read", ends_in=ends_in)
        ranks.update(t.WorkerSample(0, 1, 1, progress_age=now, still_age=now, activity=activity), now)
        if overdue(job(), ranks, 0.0, LIMITS, Instant(now, now)):
            stopped.append(now)
    assert stopped[0] == 35.5
