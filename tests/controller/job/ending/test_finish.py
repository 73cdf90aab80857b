"""A job that is over on all ranks ends as finished, also where an agent does not come back to report it."""

import pytest

from holdfast.controller.state.events import EventSeen, Found, FrameSeen, StopRequested
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import JobStatus
from holdfast.wire import types as t
from tests.controller.support.virtual import Virtual, training


def test_an_agent_that_was_killed_and_never_comes_back() -> None:
    """Its workers train on to the end; no agent is there to report it."""
    v = training()
    v.kill_agent("node1")
    v.run(1.0)
    v.last_step = v.worker(0).step + 3
    v.run_until(lambda: v.job.state.ended, 60.0)
    assert (v.job.state, v.job.exit_code, v.job.generation) == (JobStatus.FINISHED, 0, 1)
    assert v.job.reason == (
        "all visible ranks ended with 0; 4 of 8 did not report: the agent of node1 never reconnected"
    )
    assert [(i.cause.kind, i.action, i.state.value) for i in v.incidents] == [("agent-exit", "watch", "closed")]
    assert v.job.reason in v.incidents[0].reason


def test_it_ends_at_once_when_the_agent_comes_back_in_time() -> None:
    v = training()
    v.kill_agent("node1")
    v.last_step = v.worker(0).step + 2
    v.run(4.0)
    assert not v.job.state.ended
    v.join("node1")
    v.run(0.2)
    assert (v.job.state, v.job.reason, v.job.generation) == (JobStatus.FINISHED, "", 1)


@pytest.mark.parametrize("spares", [0, 1])
def test_a_node_whose_ranks_have_all_ended_is_not_missed(spares: int) -> None:
    """The others save for longer than the wait for an agent: no restart because a finished node is missing."""
    v = training(nodes=2 + spares)
    for rank in range(4, 8):
        v.exit(rank, code=0)
    v.kill_agent("node1")
    v.run(30.0)
    assert (v.job.state, v.job.generation) == (JobStatus.RUNNING, 1)
    for rank in range(4):
        v.exit(rank, code=0)
    v.run(0.5)
    assert (v.job.state, v.job.reason, v.job.generation) == (JobStatus.FINISHED, "", 1)


def test_also_after_the_controller_was_killed() -> None:
    v = training()
    v.kill_agent("node1")
    v.last_step = v.worker(0).step + 1
    v.run(2.0)
    v.restart_controller()
    v.run(8.0)
    assert not v.job.state.ended
    v.run_until(lambda: v.job.state.ended, 10.0)
    assert (v.job.state, v.job.generation) == (JobStatus.FINISHED, 1)


def test_a_rank_that_still_runs_within_sight_keeps_the_job_open() -> None:
    v = training()
    v.kill_agent("node1")
    for rank in range(3):
        v.exit(rank, code=0)
    v.run(3.0)
    assert v.job.state is JobStatus.RUNNING


def test_few_clean_ends_do_not_speak_for_many_unseen_ones() -> None:
    v = Virtual(nodes=3)
    v.submit(nnodes=3)
    v.run(3.0)
    v.kill_agent("node1")
    v.kill_agent("node2")
    for rank in range(4):
        v.exit(rank, code=0)
    v.run(30.0)
    assert v.job.state is not JobStatus.FINISHED


def test_an_exit_that_is_not_clean_is_no_end() -> None:
    v = training()
    v.kill_agent("node1")
    for rank in range(3):
        v.exit(rank, code=0)
    v.exit(3, code=1, error="ValueError: no")
    v.run(30.0)
    assert v.job.state is not JobStatus.FINISHED


def nan(v: Virtual, step: int) -> FrameSeen:
    record = t.StepRecord(6, v.job.generation, step, int(v.instant.wall * 1e9), 0.3, t.SPOILT, 0, True)
    return FrameSeen("node1", t.Frame(1, int(v.instant.wall * 1e9), 1, steps=(record,)))


def lost_gpu(v: Virtual) -> EventSeen | Found:
    at = v.instant.wall
    text = "GPU 3 has fallen off the bus"
    found = Finding(t.FindingKind.GPU_LOST, t.Severity.CRITICAL, "node1", text, at, at, node="node1")
    return Found(found)


@pytest.mark.parametrize("how", ["stopped by hand", "given up"])
def test_what_is_found_while_it_is_ended_for_good_starts_nothing_again(how: str) -> None:
    """Workers go on until they are asked to stop, and a NaN is found in every step of them."""
    v = training(max_restarts=0)
    v.counts_from_zero = True
    v.delivering = True  # orders are on their way for so long
    first = v.job.best_step + 1
    v.feed(StopRequested(5.0) if how == "stopped by hand" else nan(v, first))
    reason = v.brain.jobs.newest.c.life.final
    for step in range(first + 1, first + 4):
        v.feed(nan(v, step))
    v.feed(lost_gpu(v))
    assert v.brain.jobs.newest.c.life.final == reason
    v.delivering = False
    v._deliver_all()
    v.run(1.0)
    assert v.job.state is (JobStatus.STOPPED if how == "stopped by hand" else JobStatus.FAILED)
    assert v.job.generation == 1
    assert sum(one.cause.kind is t.FindingKind.LOSS_NONFINITE for one in v.incidents) == (how == "given up")
