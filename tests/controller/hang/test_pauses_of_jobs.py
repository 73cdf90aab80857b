"""Pauses of jobs in a virtual cluster: what is restarted, what is learned, and that no job fails by them."""

import dataclasses
import json
import math

import pytest

from holdfast.base.errors import UsageError
from holdfast.controller.detectors.base import table
from holdfast.controller.state.events import FrameSeen, RestartRequested, ResultSeen, Tick
from holdfast.controller.state.model import JobStatus, Options
from holdfast.wire import types as t
from holdfast.wire.messages import CommandResult, DumpStacks
from tests.controller.support.standstills import QUICK
from tests.controller.support.virtual import Virtual


def paused(options: Options, busy: bool, max_restarts: int = -1) -> Virtual:
    v = Virtual(options=options)
    v.submit(max_restarts=max_restarts)
    v.run(5)
    worker = next(w for a in v.agents.values() for w in a.workers.values() if w.rank == 5)
    worker.sleeping_at = v.now
    worker.busy_until = math.inf if busy else 0.0
    return v


def test_an_idle_rank_is_looked_at_again_and_a_busy_one_is_not() -> None:
    v = paused(dataclasses.replace(Options(), idle_limit=40.0), busy=False)
    v.run(38.0)
    assert v.brain.jobs.newest.hangs.stacks.count == 4
    w = paused(dataclasses.replace(Options(), idle_limit=40.0), busy=True)
    w.run(38.0)
    assert w.brain.jobs.newest.hangs.stacks.count == 1


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
def test_a_pause_at_its_limit_restarts_the_job_and_counts_against_no_node(busy: bool) -> None:
    v = paused(QUICK, busy)
    v.run(30)
    job = v.brain.jobs.newest.c.job
    assert job is not None
    kinds = [i.cause.kind for i in v.incidents]
    assert kinds == [t.FindingKind.WORKER_PAUSED, t.FindingKind.WORKER_HANG]
    assert "(--pause-limit)" if busy else "(--idle-limit)" in v.incidents[1].cause.text
    assert (job.restarts, job.uncounted_restarts, job.fruitless) == (1, 1, 0)
    assert all(history.recent(v.instant.wall, 1e9) == 0 for history in v.brain.c.histories.values())


def test_no_pause_however_often_makes_a_job_failed() -> None:
    """More often than a job may fail: `restart_attempts` and `restart_attempts_fault` are less."""
    v = paused(dataclasses.replace(QUICK, idle_limit=3.0), busy=False)
    for restarts in range(1, 7):
        v.run_until(lambda restarts=restarts: v.job.restarts == restarts and v.job.life_steps > 0)
        v.sleep_worker(5)
    assert v.job.state is JobStatus.RUNNING


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


def answer(v: Virtual, answered: int, frames: list[str]) -> int:
    """All stacks that were asked for after the first `answered` requests are these. Returns how many there are."""
    dumps = [send for send in v.sent if isinstance(send.command.order, DumpStacks)]
    for send in dumps[answered:]:
        first = 0 if send.node == "node0" else 4
        data = {"stacks": json.dumps([{"ranks": f"{first}-{first + 3}", "thread": "main", "frames": frames}])}
        v.feed(ResultSeen(send.node, CommandResult(send.command.id, True, data=data | {"states": "{}"})))
    return len(dumps)


def test_a_pause_is_at_its_own_place_and_not_where_the_one_before_was() -> None:
    v, answered, places = paused(Options(), busy=True), 0, []
    for place in ("train.py:8 save", "train.py:9 evaluate"):
        for _ in range(20):
            v.run(0.25)
            answered = answer(v, answered, [place])
        places.append(v.brain.jobs.newest.hangs.pauses.place)
        for worker in v.all_workers():
            worker.sleeping_at = math.inf
        v.run(5.0)
        v.worker(5).sleeping_at = v.now
    assert places == ["train.py:8 save", "train.py:9 evaluate"]


def test_stacks_that_are_read_in_another_way_are_no_movement() -> None:
    """The first stacks of a stall come by signal, later ones by py-spy, which may word the same place differently."""
    v = paused(dataclasses.replace(Options(), idle_limit=20.0), busy=False)
    answered = 0
    for second in range(22):
        v.run(1.0)
        if second < 3:
            continue  # a slow agent: the pause is seen before its answer comes
        way = "by signal" if answered < len(v.agents) else "by py-spy"
        answered = answer(v, answered, ["train.py:8 main", way])
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
    assert (job.generation, job.state, job.fruitless) == (2, JobStatus.RUNNING, 0)
    assert [i.cause.kind for i in v.incidents] == [t.FindingKind.RESTART]
