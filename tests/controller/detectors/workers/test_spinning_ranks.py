"""Ranks that spin in CUDA while their GPUs draw idle power are peers of the rank that does something else. Virtual
time."""

import dataclasses

import pytest

from holdfast.controller.detectors.workers.hang import HangDetector
from holdfast.controller.detectors.workers.pause import Pause
from holdfast.controller.hang.pauses import PauseWatch
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.ranks import RankState, RankTable
from holdfast.diagnostics.hang.stillness import Liveness
from holdfast.wire import types as t
from holdfast.wire.standing import StallFacts, ThreadSight, ThreadState
from tests.controller.support.standstills import OPTIONS, QUICK, STEPS, at, in_operation, job, seen, standing

BEHIND = "by NCCL's count it has begun 60 AllReduce operations as rank 1 of communicator 0xfa, and a peer 61"


def spins(quiet: float, **more: object) -> t.Activity:
    """As the agent sees a thread in cudaDeviceSynchronize whose GPU draws idle power; no timer recorded an event."""
    given = {"cpu": 1.0, "has_gpu": True, "gpu": t.GpuUse.WAITS, "waits_for": "", **more}
    return seen(quiet, "R", **given)


def locked(quiet: float, **more: object) -> t.Activity:
    """Its threads of NCCL use a processor meanwhile."""
    return seen(quiet, "S", **{"has_gpu": True, "gpu": t.GpuUse.WAITS, "cpu": 0.3, **more})


def sample(rank: int, still: float, activity: t.Activity, **more: object) -> t.WorkerSample:
    whole = {"step": 60, "phase": t.Phase.TRAIN, "tick_age": 0.05, "activity": activity, **more}
    return t.WorkerSample(rank, 1, 1, progress_age=still, still_age=still, **whole)  # type: ignore[arg-type]


class Run:
    """Ranks of an unmodified script that stand still from 100.0 on, looked at ten times a second."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.mono = RankTable(ranks), 100.0
        for rank in range(ranks):
            self.ranks.mark(rank, RankState.RUNNING)
        self.detector, self.watch = HangDetector(OPTIONS), PauseWatch()
        self.end: Finding | None = None

    def until(self, after: float, *activities: t.Activity, moved_at: dict[int, float] | None = None) -> Pause:
        """`activities`: of each rank, as if nothing moved since 100.0, but for those that `moved_at` an instant."""
        while self.mono < 100.0 + after and self.end is None:
            self.mono += 0.1
            still = self.mono - 100.0
            for rank, one in enumerate(activities):
                quiet = self.mono - (moved_at or {}).get(rank, 100.0)
                self.ranks.update(sample(rank, still, dataclasses.replace(one, quiet=quiet, watched=still)), self.mono)
            assert self.detector.observe(self.ranks, 1, STEPS, at(self.mono)) == []
            pause = self.detector.pause
            self.end = self.end or self.watch.look(pause, "here", job(), QUICK, True, at(self.mono)).end
        assert pause is not None
        return pause


def test_a_rank_in_a_lock_is_the_suspect_and_the_one_that_spins_waits_for_it() -> None:
    run = Run(2)
    pause = run.until(5.0, spins(0), locked(0))
    assert (pause.life, pause.ranks, pause.waiting) == (Liveness.IDLE, (1,), (0,))
    assert pause.text == "rank 1 waits for a lock; 1 waits for it in work of their GPUs"
    run.until(10.0, spins(0), locked(0))
    assert run.end is not None
    assert (run.end.subject, run.end.rank, round(run.mono - 100.0, 1)) == ("rank1", 1, 6.1)


@pytest.mark.parametrize("stuck", [{5}, {2, 5}])
def test_of_eight_those_in_locks_are_named(stuck: set[int]) -> None:
    run = Run(8)
    pause = run.until(9.0, *(locked(0) if rank in stuck else spins(0) for rank in range(8)))
    assert (set(pause.ranks), len(pause.waiting)) == (stuck, 8 - len(stuck))
    assert run.end is not None
    assert run.end.subject == ("rank5" if len(stuck) == 1 else "job")
    assert run.end.evidence["ranks"] == sorted(stuck)


def test_where_all_spin_it_is_the_jobs() -> None:
    run = Run(2)
    pause = run.until(9.0, spins(0), spins(0))
    assert (pause.ranks, pause.waiting) == ((0, 1), ())
    assert pause.text == "all 2 ranks, each: spins in a wait for its GPU, which is idle"
    assert run.end is not None
    assert run.end.subject == "job"


@pytest.mark.parametrize(("behind", "named"), [({1}, (1,)), ({0, 1}, (0, 1)), ({0, 1, 2}, (0, 1, 2, 3))])
def test_where_all_spin_nccls_count_names_one_that_is_behind(behind: set[int], named: tuple[int, ...]) -> None:
    """Where more are behind, each in another communicator, as when one left an operation out, no count says who."""
    run = Run(4)
    pause = run.until(9.0, *(spins(0, behind=BEHIND if rank in behind else "") for rank in range(4)))
    assert pause.ranks == named
    assert run.end is not None
    assert run.end.subject == ("rank1" if named == (1,) else "job")


def test_two_that_are_behind_each_other_in_two_communicators_are_the_jobs() -> None:
    run = Run(2)
    pause = run.until(9.0, spins(0, behind=BEHIND), spins(0, behind=BEHIND))
    assert pause.ranks == (0, 1)
    assert run.end is not None
    assert (run.end.subject, list(run.end.evidence["behind"])) == ("job", ["0", "1"])  # type: ignore[call-overload]


def test_a_rank_alone_is_itself_the_suspect() -> None:
    run = Run(1)
    pause = run.until(9.0, spins(0))
    assert (pause.ranks, pause.waiting) == ((0,), ())
    assert run.end is not None
    assert run.end.subject == "rank0"


def test_one_whose_kernel_never_ends_is_named_where_its_peers_wait_in_gloo() -> None:
    ranks = RankTable(8)
    detector = HangDetector(OPTIONS)
    for rank in range(8):
        ranks.mark(rank, RankState.RUNNING)
        if rank == 2:
            runs = StallFacts((ThreadSight(1, ThreadState.RUNS, 6.0),), is_complete=True)
            one = sample(rank, 6.0, spins(6.0), pending=standing("", -1, -1, False, 4), standing=runs)
        else:
            activity = seen(6.0, waits_for="a read from a socket")
            one = sample(rank, 6.0, activity, operation="all_reduce", pending=standing(), standing=in_operation(6.0))
        ranks.update(one, 50.0)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.pause is not None
    assert (detector.pause.ranks, detector.pause.life) == ((2,), Liveness.IDLE)


def test_one_that_spins_while_most_sleep_may_be_what_they_wait_for() -> None:
    """In the store, say, where no hook sees them: no rank is named."""
    pause = Run(4).until(5.0, spins(0), *(seen(0.0, waits_for="a read from a socket") for _ in range(3)))
    assert (pause.ranks, pause.waiting) == ((0, 1, 2, 3), ())


def test_one_that_moved_does_not_wait_and_it_keeps_the_others_alive() -> None:
    """It is a guess that rank 0 waits for rank 1: what rank 0 did still counts, as if none were named."""
    run = Run(2)
    pause = run.until(3.0, spins(0), locked(0), moved_at={0: 102.9})
    assert (pause.life, pause.ranks) == (Liveness.BUSY, (0,))
    pause = run.until(8.0, spins(0), locked(0), moved_at={0: 102.9})
    assert (pause.ranks, round(pause.quiet), run.end) == ((1,), 5, None)
    run.until(12.0, spins(0), locked(0), moved_at={0: 102.9})
    assert run.end is not None
    assert round(run.mono - 102.9, 1) == 6.1


@pytest.mark.parametrize(
    ("activity", "waits"),
    [
        (spins(6.0), True),
        (spins(6.0, gpu=t.GpuUse.UNKNOWN), True),  # another process uses the GPU too
        (spins(6.0, gpu=t.GpuUse.WORKS), False),
        (spins(6.0, cpu=0.01), False),
        (spins(6.0, has_gpu=False), False),
        (locked(6.0), False),
        (spins(0.1), False),
    ],
)
def test_who_counts_as_one_that_waits_for_its_gpu(activity: t.Activity, waits: bool) -> None:
    ranks, detector = RankTable(2), HangDetector(OPTIONS)
    for rank, one in enumerate((activity, locked(6.0))):
        ranks.mark(rank, RankState.RUNNING)
        ranks.update(sample(rank, 6.0, one), 50.0)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.pause is not None
    assert (detector.pause.waiting == (0,)) == waits
