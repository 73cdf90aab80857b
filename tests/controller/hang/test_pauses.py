"""Pauses: reported at once, ended at their limits only, learned where they ended by themselves; never a failed job."""

import dataclasses
import json
import math
from pathlib import Path

import pytest

from holdfast.agent.forkserver import bootstrap
from holdfast.base.errors import UsageError
from holdfast.controller.detectors.base import table
from holdfast.controller.detectors.workers.hang import HangDetector
from holdfast.controller.detectors.workers.pause import Pause
from holdfast.controller.hang import pauses
from holdfast.controller.hang.pauses import PauseWatch, limit_of, place_of
from holdfast.controller.job import policy
from holdfast.controller.state.events import FrameSeen, RestartRequested, ResultSeen, Tick
from holdfast.controller.state.model import Finding, Instant, Job, JobSpec, JobStatus, Options
from holdfast.controller.state.ranks import RankState, RankTable
from holdfast.diagnostics.hang.stack_tree import Stack
from holdfast.diagnostics.hang.stillness import Life, Sight
from holdfast.wire import types as t
from holdfast.wire.messages import CommandResult, DumpStacks, Program
from tests.controller.detectors.test_detectors import OPTIONS, STEPS, at, frozen, seen
from tests.controller.support.virtual import Virtual

QUICK = dataclasses.replace(Options(), idle_limit=6.0, pause_limit=20.0, idle_limit_start=10.0, pause_alert=5.0)


def pause(life: Life = Life.IDLE, still: float = 3.0, ranks: tuple[int, ...] = (5,), **more: object) -> Pause:
    values: dict[str, object] = {
        "waiting": (0, 1), "quiet": still if life is Life.IDLE else 0.0, "ends_in": math.nan,
        "sights": (Sight(life, "waits for a lock"),), "is_training": True,
    }  # fmt: skip
    return Pause(life=life, ranks=ranks, still=still, **{**values, **more})  # type: ignore[arg-type]


def job(**more: object) -> Job:
    one = Job(JobSpec("j1", "job", Program("train.py"), 1, 8), generation=1, nodes=["node0"])
    for name, value in more.items():
        setattr(one, name, value)
    return one


# --- what the detector sees ------------------------------------------------------------------------------------


def test_a_rank_that_saves_while_others_wait_is_busy_and_named() -> None:
    ranks = frozen(18.0, mesh=False)
    ranks.activity[5], ranks.quiet[5] = seen(0.0, written=212e6), 0.0
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    found = detector.pause
    assert found is not None
    assert (found.life, found.ranks, len(found.waiting), found.still) == (Life.BUSY, (5,), 7, 18.0)
    assert found.text == "rank 5 writes 212 MB/s; 7 wait for it in world:all_reduce 4 of world (0-7)"


def at_gpus(other: t.Activity, mesh: bool = False) -> RankTable:
    """Seven hosts spin in a wait for their GPUs, outside of any operation; rank 5 does something else."""
    ranks = RankTable(8)
    for rank in range(8):
        ranks.mark(rank, RankState.RUNNING)
        activity = other
        if rank != 5:
            activity = seen(6.0, "R", cpu=1.0, has_gpu=True, gpu=t.GpuUse.WAITS, events_pending=2, waits_for="")
        ranks.update(
            t.WorkerSample(rank, 1, 1, step=9, phase=t.Phase.TRAIN, tick_age=0.05, progress_age=6.0, still_age=6.0,
                           coordinate=(0, rank, 0) if mesh else None, sizes=(1, 8, 1), activity=activity),
            50.0,
        )  # fmt: skip
    return ranks


def test_hosts_that_wait_for_gpus_that_wait_are_peers_of_the_one_that_does_not() -> None:
    detector = HangDetector(OPTIONS)
    assert detector.observe(at_gpus(seen(0.0, "R", cpu=1.0)), 1, STEPS, at(50.05)) == []
    found = detector.pause
    assert found is not None
    assert (found.life, found.ranks, len(found.waiting)) == (Life.BUSY, (5,), 7)
    assert found.text == "rank 5 computes (1.00 cores); 7 wait for it in work of their GPUs"
    assert HangDetector(OPTIONS).observe(at_gpus(seen(6.0)), 1, STEPS, at(50.05)) == []
    (finding,) = HangDetector(OPTIONS).observe(at_gpus(seen(6.0), mesh=True), 1, STEPS, at(50.05))
    assert (finding.rank, finding.evidence["reason"]) == (5, "outside")


def test_a_rank_that_waits_for_its_gpu_is_not_dead_where_idle_ranks_are() -> None:
    """All others are in an operation, it spins in a wait for its GPU, which waits: it did what they did."""
    ranks = frozen(6.0)
    idle = ranks.activity[5]
    assert idle is not None
    assert [one.rank for one in HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05))] == [5]
    ranks.activity[5] = dataclasses.replace(idle, has_gpu=True, gpu=t.GpuUse.WAITS, events_pending=1)
    assert HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05)) == []


def test_who_lags_by_nccls_count_is_named_though_nobody_is_suspected() -> None:
    ranks = frozen(6.0)
    ranks.operation[5], ranks.standing[5] = ranks.operation[0], ranks.standing[0]  # all are in the same operation
    behind = "by NCCL's count it has begun 640 AllReduce operations as rank 6 of communicator 0xfa, and a peer 641"
    six = ranks.activity[6]
    assert six is not None
    ranks.activity[6] = dataclasses.replace(six, has_gpu=True, behind=behind)
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    found = detector.pause
    assert found is not None
    assert found.behind == ((6, behind),)
    assert behind in found.text
    hidden = dataclasses.replace(found, sights=found.sights[:1])
    assert hidden.text.endswith(f"; of rank 6: {behind}")
    watch = PauseWatch()
    alert = watch.look(dataclasses.replace(found, still=400.0), "", job(), QUICK, True, at(50.05)).alert
    assert alert is not None
    assert alert.evidence["behind"] == {"6": behind}
    assert behind in alert.text


def test_a_call_that_holds_the_interpreter_and_computes_is_busy() -> None:
    """`list.sort`, `json.loads`: the life thread is silent, and processor time grows."""
    ranks = frozen(8.0, mesh=False)
    ranks.activity[5], ranks.quiet[5] = seen(0.0, "R", cpu=1.0), 0.0
    ranks.tick_at[5] = ranks.progress_at[5]
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.pause is not None
    assert (detector.pause.life, detector.pause.ranks) == (Life.BUSY, (5,))


def test_silence_of_which_nothing_was_measured_is_no_evidence() -> None:
    ranks = frozen(40.0)
    for rank in range(8):
        ranks.activity[rank], ranks.quiet[rank] = None, math.nan
    ranks.tick_at[5] = ranks.progress_at[5]
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.pause is not None
    assert detector.pause.life is Life.UNKNOWN


def test_an_evaluation_on_all_ranks_is_one_pause_of_all() -> None:
    ranks = frozen(40.0, mesh=False)
    for rank in range(8):
        ranks.operation[rank], ranks.standing[rank] = "", None
        ranks.activity[rank], ranks.quiet[rank] = seen(0.0, "R", cpu=1.0), 0.0
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.pause is not None
    assert detector.pause.text == "all 8 ranks, each: computes (1.00 cores)"


def test_before_any_step_a_pause_is_seen_too() -> None:
    ranks = frozen(5.0, mesh=False)
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, [], at(50.05)) == []
    assert detector.pause is not None
    assert detector.pause.life is Life.IDLE


@pytest.mark.parametrize("state", ["D"])
def test_a_disk_that_does_not_answer_is_not_dead_even_in_the_trainer(state: str) -> None:
    ranks = frozen(5.0)
    ranks.activity[5] = seen(5.0, state, waits_for="the disk")
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.pause is not None
    assert detector.pause.text.startswith("rank 5 waits for the disk")


def ddp(inside: set[int], other: str = "broadcast") -> HangDetector:
    """Ranks in DDP's backward pass, whose all-reduce no hook sees, against ranks in another operation."""
    ranks = frozen(3.0, mesh=False)
    for rank in range(8):
        if rank in inside:
            ranks.operation[rank], ranks.standing[rank] = "ddp:backward", None
        else:
            group = t.GroupCount("world", 7, "0-7", 5)
            ranks.operation[rank] = other
            ranks.standing[rank] = t.Standing("broadcast", 0, 4, True, (group,))
    detector = HangDetector(OPTIONS)
    detector.found = detector.observe(ranks, 1, STEPS, at(50.05))  # type: ignore[attr-defined]
    detector.table = ranks  # type: ignore[attr-defined]
    return detector


def test_one_rank_in_another_operation_than_ddp_is_named_and_not_those_in_ddp() -> None:
    (finding,) = ddp(set(range(1, 8))).found  # type: ignore[attr-defined]
    assert (finding.subject, finding.evidence["reason"]) == ("rank0", "order")
    assert "of which 0 wait in broadcast" in finding.text


def test_one_that_skipped_a_broadcast_is_named_and_not_its_root() -> None:
    """Rank 0 waits in broadcast 4, which all but rank 3 have done on their way into the backward pass."""
    ranks = ddp(set(range(1, 8))).table  # type: ignore[attr-defined]
    for rank in range(1, 8):
        ranks.standing[rank] = t.Standing(groups=(t.GroupCount("world", 7, "0-7", 4 if rank == 3 else 5),))
    (finding,) = HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05))
    assert (finding.subject, finding.evidence["reason"]) == ("rank3", "order")
    assert "without the broadcast that ranks 1-2,4-7 did and that holds rank 0" in finding.text


def test_one_that_receives_what_nobody_sends_is_named_and_not_its_peer() -> None:
    detector = ddp(set(range(1, 8)), "recv")
    ranks = detector.table  # type: ignore[attr-defined]
    group = t.GroupCount("world:1>0", 7, "0-1", 1)
    ranks.standing[0] = t.Standing("recv", 0, 0, True, (group,))
    (finding,) = HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05))
    assert (finding.subject, finding.evidence["reason"]) == ("rank0", "order")


@pytest.mark.parametrize("operation", ["ddp:forward", "upload"])
def test_one_that_waits_quietly_in_a_forward_pass_is_not_taken_for_another_order(operation: str) -> None:
    detector = ddp(set(range(1, 8)), operation)
    ranks = detector.table  # type: ignore[attr-defined]
    ranks.standing[0] = t.Standing()
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.pause is not None
    assert detector.pause.life is Life.IDLE


def test_a_pass_that_waits_with_a_deadline_is_not_taken_for_another_order() -> None:
    """It waits for something of its own: an all-reduce of gloo has no deadline in the kernel."""
    detector = ddp(set(range(1, 8)))
    ranks = detector.table  # type: ignore[attr-defined]
    ranks.activity[3] = seen(3.0, ends_in=20.0)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []


def moving(ranks: RankTable, rank: int, quiet: float = 0.0) -> RankTable:
    ranks.activity[rank], ranks.quiet[rank] = seen(quiet, "R" if not quiet else "S", cpu=1.0), quiet
    return ranks


def test_two_orders_of_which_one_side_still_works_are_no_verdict() -> None:
    """Two threads of one process can be in operations at once: the probe tells the newest."""

    def orders() -> RankTable:
        ranks = frozen(3.0)
        first, second = t.GroupCount("tp", 1, "0-1", 5), t.GroupCount("dp", 2, "0-1", 7)
        for rank in range(2, 8):
            ranks.mark(rank, RankState.DONE)
        ranks.standing[0] = t.Standing("all_reduce", 0, 4, True, (first, second))
        counts = (dataclasses.replace(first, begun=4), dataclasses.replace(second, begun=8))
        ranks.standing[1] = t.Standing("all_reduce", 1, 7, True, counts)
        return ranks

    assert len(HangDetector(OPTIONS).observe(orders(), 1, STEPS, at(50.05))) == 1
    assert HangDetector(OPTIONS).observe(moving(orders(), 1), 1, STEPS, at(50.05)) == []


@pytest.mark.parametrize(("number", "found"), [(0, 0), (4, 1)])
def test_an_idle_rank_at_the_door_of_a_first_operation_makes_its_communicator(number: int, found: int) -> None:
    ranks = frozen(3.0, mesh=False)
    for rank in range(8):
        begun = t.GroupCount("world", 7, "0-7", number + 1)
        ranks.operation[rank] = "world:all_reduce"
        ranks.standing[rank] = t.Standing("all_reduce", 0, number, rank != 5, (begun,))
    assert len(HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05))) == found


@pytest.mark.parametrize(("quiet", "found"), [(11.0, 1), (3.0, 0)])
def test_a_complete_operation_in_which_anything_moved_lately_goes_on(quiet: float, found: int) -> None:
    ranks = frozen(12.0, mesh=False)
    ranks.operation[5], ranks.standing[5] = ranks.operation[0], ranks.standing[0]
    assert len(HangDetector(OPTIONS).observe(moving(ranks, 2, quiet), 1, STEPS, at(50.05))) == found


def test_a_rank_that_left_is_named_once_those_that_wait_for_it_are_idle() -> None:
    ranks = frozen(3.0)
    ranks.mark(5, RankState.DONE)
    assert HangDetector(OPTIONS).observe(moving(ranks, 2), 1, STEPS, at(50.05)) == []


def test_many_ranks_outside_of_operations_are_no_single_culprits() -> None:
    ranks = frozen(3.0)
    for rank in (3, 4, 5):
        ranks.operation[rank], ranks.standing[rank] = "", ranks.standing[5]
    detector = HangDetector(OPTIONS)
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.pause is not None
    assert detector.pause.ranks == (3, 4, 5)


def test_half_and_half_names_the_job() -> None:
    (finding,) = ddp({0, 1, 2, 3}).found  # type: ignore[attr-defined]
    assert finding.subject == "job"


def test_a_backward_pass_that_computes_is_waited_for() -> None:
    detector = ddp(set(range(1, 8)))
    ranks = detector.table  # type: ignore[attr-defined]
    ranks.activity[3], ranks.quiet[3] = seen(0.0, "R", cpu=1.0), 0.0
    assert detector.observe(ranks, 1, STEPS, at(50.05)) == []
    assert detector.pause is not None
    assert detector.pause.ranks == (3,)


# --- limits ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("life", "has_stepped", "is_training", "seconds", "option"),
    [
        (Life.BUSY, True, True, 1800.0, "--pause-limit"),
        (Life.UNKNOWN, True, True, 1800.0, "--pause-limit"),
        (Life.IDLE, True, True, 60.0, "--idle-limit"),
        (Life.IDLE, False, True, 300.0, "--idle-limit-start"),
        (Life.IDLE, True, False, 300.0, "--idle-limit-start"),
    ],
)
def test_each_has_its_limit(life: Life, has_stepped: bool, is_training: bool, seconds: float, option: str) -> None:
    found = limit_of(pause(life, is_training=is_training), "here", job(), Options(), has_stepped)
    assert found == (seconds, option)


def test_the_limit_doubles_where_a_restart_brought_the_same_and_follows_what_was_learned() -> None:
    known = job(pauses={"here": [2.0, 0.0], "there": [0.0, 100.0], "ever": [9.0, 0.0]})
    limits = [limit_of(pause(), place, known, Options(), True)[0] for place in ("here", "there", "ever", "new")]
    assert limits == [240.0, 200.0, 1800.0, 60.0]


class Watched:
    """One job under a watch, in virtual time."""

    def __init__(self, options: Options = QUICK, **more: object) -> None:
        self.watch, self.job, self.options, self.now = PauseWatch(), job(**more), options, 100.0

    def run(self, seconds: float, life: Life = Life.IDLE, still: float = 0.0, **more: object) -> list[str]:
        """What comes of a pause that goes on for so long, from `still` on."""
        said: list[str] = []
        for _ in range(round(seconds / 0.5)):
            self.now, still = self.now + 0.5, still + 0.5
            ends = more.get("until")
            rest = {"ends_in": ends - self.now} if isinstance(ends, float) else more
            found = self.watch.look(
                pause(life, still, **rest), "train.py:8 main", self.job, self.options, True, Instant(self.now, self.now)
            )
            said += [action.name for action in found.actions if hasattr(action, "name")]
            said += ["alert"] * (found.alert is not None) + ["end"] * (found.end is not None)
            self.last = found.end or found.alert
        return said

    def moves(self) -> list[str]:
        self.now += 0.5
        found = self.watch.look(None, "", self.job, self.options, True, Instant(self.now, self.now))
        return [type(action).__name__ for action in found.actions]


def test_a_pause_is_reported_after_two_seconds_alerted_and_ended_once_each() -> None:
    w = Watched()
    assert w.run(1.5) == []
    assert w.run(1.0, still=1.5) == ["job.paused"]
    assert w.run(3.0, still=2.5) == ["alert"]
    assert w.run(20.0, still=5.5) == ["end"]


def test_a_busy_pause_ends_at_the_pause_limit_only() -> None:
    w = Watched()
    assert w.run(19.0, Life.BUSY) == ["job.paused", "alert"]
    assert w.run(2.0, Life.BUSY, still=19.0) == ["end"]


def test_idleness_counts_since_anything_last_moved() -> None:
    """Retries with long waits between them: each connection that is tried is a movement."""
    w = Watched()
    still = 0.0
    for _ in range(5):
        for step in range(8):
            still, w.now = still + 0.5, w.now + 0.5
            one = dataclasses.replace(pause(still=still), quiet=step * 0.5)
            found = w.watch.look(one, "here", w.job, w.options, True, Instant(w.now, w.now))
            assert found.end is None


def test_one_long_sleep_with_a_deadline_ends_by_itself_and_renewed_short_ones_do_not_count() -> None:
    w = Watched()
    assert "end" not in w.run(12.0, until=w.now + 12.0)
    renewed = Watched()
    assert "end" in renewed.run(12.0, ends_in=0.5)
    for_ever = Watched()
    assert "end" in for_ever.run(12.0, ends_in=3600.0)


def test_no_pause_outlasts_the_pause_limit_by_small_movements() -> None:
    """Busy for a moment now and then, idle between: neither limit alone would end it."""
    w = Watched()
    assert "end" not in w.run(19.0, quiet=1.0)
    assert "end" in w.run(2.0, still=19.0, quiet=1.0)


def test_what_ended_by_itself_is_learned_for_its_place_and_kept() -> None:
    w = Watched()
    w.run(4.0)
    assert w.moves() == ["Say", "Record"]
    assert w.job.pauses == {"train.py:8 main": [0.0, pytest.approx(4.5)]}
    assert Job.from_doc(w.job.to_doc()).pauses == w.job.pauses
    assert w.run(8.5) == ["job.paused", "alert"]  # longer than half of twice as long ago
    w.moves()
    assert w.run(8.0) == ["job.paused"]  # as long as last time alerts nobody


def test_a_job_that_was_stopped_in_a_pause_teaches_the_next_one_nothing() -> None:
    w = Watched()
    w.run(4.0)
    assert w.watch.of(w.job) is not None
    assert w.watch.of(dataclasses.replace(w.job, generation=2)) is None
    w.job = dataclasses.replace(w.job, spec=dataclasses.replace(w.job.spec, id="j2"))
    assert w.watch.of(w.job) is None
    assert w.moves() == []
    assert w.job.pauses == {}


def test_an_ended_pause_says_what_it_rests_on_and_doubles() -> None:
    w = Watched()
    w.run(7.0)
    w = Watched(pauses={"train.py:8 main": [1.0, 0.0]})
    assert "end" not in w.run(11.0)
    w.run(1.5, still=11.0)
    assert w.last is not None
    assert "the limit of 12 s (--idle-limit); restarted 1 times at this place" in w.last.text
    assert w.last.evidence["life"] == "idle"


def test_the_place_is_the_scripts_outermost_calls() -> None:
    frames = ("bootstrap.py:9 run", "train.py:80 <module>", "train.py:70 main", "train.py:8 save", "torch/x.py:1 save")
    stacks = [Stack((5,), "main", frames), Stack((1,), "main", ("a.py:1 b",))]
    assert place_of(pause(), stacks, "") == "train.py:80 <module> > train.py:70 main > train.py:8 save"
    assert place_of(pause(), [], "ddp:forward") == "in ddp:forward"
    assert place_of(pause(), [], "") == "outside of operations"


def test_stacks_that_change_are_a_movement() -> None:
    def seen_at(w: Watched, line: str) -> None:
        stacks = [Stack((5,), "main", ("train.py:8 main", line))]
        w.watch.saw_stacks(stacks, Instant(w.now, w.now))

    w = Watched()
    w.run(4.0)
    seen_at(w, "a.py:1 poll")
    assert "end" not in w.run(1.5, still=4.0)
    seen_at(w, "a.py:7 poll")
    assert "end" not in w.run(5.5, still=5.5)
    assert "end" in w.run(1.0, still=11.0)
    same = Watched()
    same.run(4.0)
    seen_at(same, "a.py:1 poll")
    same.run(1.5, still=4.0)
    seen_at(same, "a.py:1 poll")
    assert "end" in same.run(1.0, still=5.5)


def test_an_idle_rank_is_looked_at_again_and_a_busy_one_is_not() -> None:
    v = paused(dataclasses.replace(Options(), idle_limit=40.0), busy=False)
    v.run(38.0)
    assert v.brain.jobs.newest.hangs.stacks.count == 4
    w = paused(dataclasses.replace(Options(), idle_limit=40.0), busy=True)
    w.run(38.0)
    assert w.brain.jobs.newest.hangs.stacks.count == 1


# --- in the brain ----------------------------------------------------------------------------------------------


def paused(options: Options, busy: bool, max_restarts: int = -1) -> Virtual:
    v = Virtual(options=options)
    v.submit(max_restarts=max_restarts)
    v.run(5)
    worker = next(w for a in v.agents.values() for w in a.workers.values() if w.rank == 5)
    worker.sleeping_at = v.now
    worker.busy_until = math.inf if busy else 0.0
    return v


def test_a_busy_pause_is_left_alone_and_ends_without_a_trace() -> None:
    v = paused(QUICK, busy=True)
    v.run(4)
    assert v.brain.jobs.newest.hangs.pauses.current is not None
    for worker in v.all_workers():
        worker.sleeping_at = math.inf
    v.run(3)
    job = v.brain.jobs.newest.c.job
    assert job is not None
    assert (job.restarts, job.generation, v.incidents) == (0, 1, [])
    assert list(job.pauses.values()) == [[0.0, pytest.approx(4.3, abs=0.6)]]


@pytest.mark.parametrize("busy", [True, False])
def test_a_pause_at_its_limit_restarts_the_job_and_counts_against_nobody(busy: bool) -> None:
    v = paused(QUICK, busy)
    v.run(30)
    job = v.brain.jobs.newest.c.job
    assert job is not None
    kinds = [i.cause.kind for i in v.incidents]
    assert kinds == [t.FindingKind.WORKER_PAUSED, t.FindingKind.WORKER_HANG]
    assert "(--pause-limit)" if busy else "(--idle-limit)" in v.incidents[1].cause.text
    assert (job.restarts, job.uncounted_restarts, job.tries) == (1, 1, 0)
    assert all(history.recent(v.instant.wall, 1e9) == 0 for history in v.brain.c.histories.values())


def test_no_pause_however_often_makes_a_job_failed() -> None:
    v = paused(dataclasses.replace(QUICK, idle_limit=3.0), busy=False)
    for _ in range(12):
        v.run(120)
        for worker in v.all_workers():
            if worker.running and worker.rank == 5:
                worker.sleeping_at = v.now
    job = v.brain.jobs.newest.c.job
    assert job is not None
    assert job.restarts >= 4
    assert job.state is not JobStatus.FAILED


def test_a_job_that_may_not_restart_is_not_failed_by_a_pause() -> None:
    v = paused(QUICK, busy=False, max_restarts=0)
    v.run(60)
    job = v.brain.jobs.newest.c.job
    assert job is not None
    assert (job.state, job.restarts) == (JobStatus.RUNNING, 0)
    assert [i.action for i in v.incidents] == ["alert", "alert"]


def test_a_pause_that_was_ended_leaves_the_restarts_for_faults() -> None:
    v = paused(QUICK, busy=False, max_restarts=1)
    v.run(12)
    job = v.brain.jobs.newest.c.job
    assert job is not None
    assert (job.restarts, job.uncounted_restarts) == (1, 1)
    v.exit(2, code=-1, signal=9)
    v.run(10)
    assert (job.restarts, job.state) == (2, JobStatus.RUNNING)
    v.exit(2, code=-1, signal=9)
    v.run(10)
    assert job.state is JobStatus.FAILED


def test_what_speaks_against_the_program_counts_against_no_node() -> None:
    def hang(reason: str, life: str = "dead") -> Finding:
        evidence = {"reason": reason, "life": life}
        return Finding(
            t.FindingKind.WORKER_HANG,
            t.Severity.CRITICAL,
            "rank5",
            "",
            0.0,
            0.0,
            node="node1",
            rank=5,
            evidence=evidence,
        )

    assert [policy.counts_against(hang(reason)) for reason in ("order", "transfer", "stack")] == [False] * 3
    assert [policy.counts_against(hang("outside", life)) for life in ("busy", "idle", "unknown")] == [False] * 3
    assert policy.counts_against(hang("lock"))


def test_stacks_that_are_read_in_another_way_are_no_movement() -> None:
    """The first of a standstill come by signal, later ones by py-spy: these may word the same place differently."""
    v = paused(dataclasses.replace(Options(), idle_limit=20.0), busy=False)
    answered = 0
    for second in range(22):
        v.run(1.0)
        if second < 3:
            continue  # a slow agent: the pause is seen before its answer comes
        dumps = [send for send in v.sent if isinstance(send.command.order, DumpStacks)]
        for send in dumps[answered:]:
            way = "by signal" if answered < len(v.agents) else "by py-spy"
            first = 0 if send.node == "node0" else 4
            stacks = [{"ranks": f"{first}-{first + 3}", "thread": "main", "frames": ["train.py:8 main", way]}]
            data = {"stacks": json.dumps(stacks), "states": "{}"}
            v.feed(ResultSeen(send.node, CommandResult(send.command.id, True, data=data)))
        answered = len(dumps)
    assert answered > len(v.agents)
    assert v.brain.jobs.newest.c.job is not None
    assert v.brain.jobs.newest.c.job.restarts == 1


@pytest.mark.parametrize(("busy", "found"), [(True, False), (False, True)])
def test_links_without_traffic_are_a_fault_where_nothing_else_explains_them(
    busy: bool, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    v = paused(Options(), busy)
    v.run(4.0)
    nic = t.NicSamples("eth0", 1, 1)
    silent = table.finding(t.FindingKind.TRAFFIC_STOPPED, "node1", "next to nothing", v.instant, node="node1")
    monkeypatch.setattr(type(v.brain.jobs.newest.c.traffic), "observe", lambda *_: silent)
    v.brain.jobs.newest.c.ranks.operation[5] = "tp:all_reduce"  # all are in the same operation
    v.brain.jobs.newest.hangs.detector._standstill._key = None
    v.feed(Tick())
    v.feed(FrameSeen("node1", t.Frame(1, 1, 1, nics=(nic,))))
    assert bool(v.incidents) is found


def test_a_job_has_limits_of_its_own() -> None:
    v = Virtual(options=QUICK)
    v.submit(limits={"idle_limit": 15.0})
    v.run(5)
    next(w for w in v.all_workers() if w.rank == 5).sleeping_at = v.now
    v.run(13)
    assert v.brain.jobs.newest.c.job is not None
    assert v.brain.jobs.newest.c.job.restarts == 0
    v.run(6)
    assert v.brain.jobs.newest.c.job.restarts == 1


def test_a_restart_by_hand_counts_as_nothing() -> None:
    v = Virtual()
    with pytest.raises(UsageError, match="no job is running"):
        v.feed(RestartRequested())
    v.submit(max_restarts=0)
    v.run(5)
    v.feed(RestartRequested())
    v.run(10)
    job = v.brain.jobs.newest.c.job
    assert job is not None
    assert (job.generation, job.state, job.tries) == (2, JobStatus.RUNNING, 0)
    assert [i.cause.kind for i in v.incidents] == [t.FindingKind.RESTART]


def test_every_module_between_the_interpreter_and_the_script_is_known_as_none_of_its() -> None:
    """A place is where the script stands: frames of the fork server before it are left out, by file name."""
    names = {loader.rstrip(":") for loader in pauses._LOADERS}
    folder = Path(bootstrap.__file__).parent
    assert {"bootstrap.py", "fork_server.py", "forked_children.py", "forked_workers.py"} <= names
    assert all((folder / name).exists() for name in names if name.startswith(("fork", "boot")))
