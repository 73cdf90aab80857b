"""A job of higher priority takes nodes from a lower one: a checkpoint first, and no more nodes than it needs."""

import pytest

from holdfast.controller.state.events import FrameSeen, StopRequested
from holdfast.controller.state.model import JobStatus
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.controller.support.two_jobs import brain, orders, state
from tests.controller.support.virtual import Virtual


def stored(v: Virtual, job: str, step: int) -> None:
    """The first node of the job reports that a checkpoint of so many steps is stored."""
    gauges = {"snapshot_step": float(step), "checkpoint_step": float(step)}
    frame = t.Frame(1, int(v.instant.wall * 1e9), int(v.now * 1e9), host=gauges)
    v.feed(FrameSeen(brain(v, job).c.job.nodes[0], frame))


def test_a_job_that_preempts_gets_nodes_after_a_checkpoint_and_the_other_goes_on_later() -> None:
    v = Virtual(nodes=2)
    v.submit(nnodes=2, id="low")
    v.run(4.0)
    stored(v, "low", 1)
    v.submit(nnodes=1, id="high", priority=1, preempt=True)
    v.run(1.0)
    assert orders(v, msg.RequestCheckpoint, "low") == ["node0"]
    assert state(v, "low") is JobStatus.RUNNING, "not before what it trained is safe"
    best = brain(v, "low").c.job.best_step
    stored(v, "low", best + 1)
    v.run(2.0)
    assert (state(v, "low"), state(v, "high")) == (JobStatus.PENDING, JobStatus.RUNNING)
    (incident,) = v.incidents
    assert (incident.job, incident.cause.kind, incident.action) == ("low", t.FindingKind.JOB_PREEMPTED, "requeue")
    assert "job-2 (high, priority 1) takes the nodes of this job (priority 0)" in incident.reason
    assert brain(v, "low").c.job.nodes == []
    v.run(30.0)
    v.restart_controller()
    v.run(15.0)
    assert (state(v, "low"), state(v, "high")) == (JobStatus.PENDING, JobStatus.RUNNING)
    v.feed(StopRequested(0.0, "high"))
    v.run(4.0)
    job = brain(v, "low").c.job
    assert (job.state, job.generation, job.nodes) == (JobStatus.RUNNING, 2, ["node0", "node1"])
    assert job.best_step > best
    assert (job.restarts, job.uncounted_restarts) == (1, 1), "it does not count towards max_restarts"
    assert job.held_by("node0", 1) == range(4), "the ranks of each node are remembered"
    (incident,) = [i for i in v.incidents if i.job == "low" and i.action == "requeue"]
    assert incident.state.value == "closed"


def test_a_job_that_reports_nothing_of_checkpoints_gives_its_nodes_up_at_once() -> None:
    v = Virtual(nodes=2)
    v.submit(nnodes=2, id="low")
    v.run(4.0)
    v.submit(nnodes=2, id="high", priority=1, preempt=True)
    v.run(2.0)
    assert (state(v, "low"), state(v, "high")) == (JobStatus.PENDING, JobStatus.RUNNING)


def test_a_store_that_does_not_answer_delays_a_preemption_by_a_minute_at_most() -> None:
    v = Virtual(nodes=2)
    v.submit(nnodes=2, id="low")
    v.run(4.0)
    stored(v, "low", 1)
    v.submit(nnodes=2, id="high", priority=1, preempt=True)
    v.run(55.0)
    assert state(v, "low") is JobStatus.RUNNING
    v.run(10.0)
    assert state(v, "high") is JobStatus.RUNNING


def test_no_more_jobs_give_up_their_nodes_than_it_takes_the_newest_of_the_lowest_first() -> None:
    v = Virtual(nodes=6)
    for name, nodes, priority in (("a", 2, 1), ("b", 2, 0), ("c", 2, 0)):
        v.submit(nnodes=nodes, id=name, priority=priority)
        v.run(0.5)
    v.run(3.0)
    v.submit(nnodes=2, id="high", priority=5, preempt=True)
    v.run(4.0)
    assert [state(v, job).value for job in ("a", "b", "c", "high")] == ["running", "running", "pending", "running"]


@pytest.mark.parametrize(("priority", "preempt"), [(0, True), (1, False)])
def test_only_a_higher_priority_that_says_so_takes_nodes(priority: int, preempt: bool) -> None:
    v = Virtual(nodes=2)
    v.submit(nnodes=2, id="a")
    v.run(3.0)
    v.submit(nnodes=1, id="b", priority=priority, preempt=preempt)
    v.run(90.0)
    assert (state(v, "a"), state(v, "b")) == (JobStatus.RUNNING, JobStatus.PENDING)


def test_a_preemption_is_called_off_when_its_reason_is_gone() -> None:
    v = Virtual(nodes=2)
    v.submit(nnodes=2, id="low")
    v.run(4.0)
    stored(v, "low", 1)
    v.submit(nnodes=1, id="high", priority=1, preempt=True)
    v.run(1.0)
    v.feed(StopRequested(0.0, "high"))
    v.run(90.0)
    assert (state(v, "low"), brain(v, "low").c.job.generation) == (JobStatus.RUNNING, 1)
