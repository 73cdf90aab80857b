"""Several jobs on a cluster: queue, nodes of each job, preemption, and that faults of one job do not affect another."""

import pytest

from holdfast.base.errors import UsageError
from holdfast.controller.state.events import CheckpointRequested, CordonRequested, StopRequested, Tick
from holdfast.controller.state.goodput import Account
from holdfast.controller.state.model import JobStatus
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.controller.support.two_jobs import brain, orders, state, two_jobs
from tests.controller.support.virtual import Virtual

# --- the queue ----------------------------------------------------------------------------------------------------


def test_jobs_run_side_by_side_on_nodes_of_their_own() -> None:
    v = two_jobs()
    assert [brain(v, job).c.job.nodes for job in "ab"] == [["node0", "node1"], ["node2", "node3"]]
    assert all(brain(v, job).c.job.best_step > 3 for job in "ab")
    assert {name: holder.spec.id for name, (holder,) in v.brain.c.holders.items()} == {
        "node0": "a", "node1": "a", "node2": "b", "node3": "b"
    }  # fmt: skip


def test_names_are_unique_among_jobs_that_are_not_over() -> None:
    v = two_jobs()
    assert [brain(v, job).c.job.spec.name for job in "ab"] == ["job", "job-2"]
    with pytest.raises(UsageError, match="a job a already"):
        v.submit(nnodes=1, id="a")


def test_jobs_wait_for_nodes_by_priority_then_by_submission() -> None:
    v = Virtual(nodes=2)
    v.submit(nnodes=2, id="first")
    v.run(2.0)
    for name, priority in (("later", 0), ("last", 0), ("urgent", 5)):
        v.submit(nnodes=2, id=name, priority=priority)
        v.run(0.5)
    assert [state(v, job) for job in ("later", "last", "urgent")] == [JobStatus.PENDING] * 3
    held = "waiting for nodes: 0 nodes are free, 2 are wanted; job job (first, priority 0) holds 2"
    assert brain(v, "urgent").c.job.reason == held
    assert brain(v, "last").c.job.reason == f"{held}; job-4 (urgent) is first in the queue"
    started = []
    for _ in range(3):
        running = next(job for job in v.brain.jobs.brains if state(v, job) is JobStatus.RUNNING)
        v.feed(StopRequested(0.0, running))
        v.run(3.0)
        started += [job for job in v.brain.jobs.brains if state(v, job) is JobStatus.RUNNING]
    assert started == ["urgent", "later", "last"]


def test_a_large_job_is_not_starved_by_small_ones_behind_it() -> None:
    v = Virtual(nodes=3)
    v.submit(nnodes=2, id="running")
    v.run(2.0)
    v.submit(nnodes=3, id="large")
    v.submit(nnodes=1, id="small")
    v.run(5.0)
    assert state(v, "small") is JobStatus.PENDING
    v.feed(StopRequested(0.0, "running"))
    v.run(3.0)
    assert state(v, "large") is JobStatus.RUNNING


def test_a_job_too_large_for_the_cluster_delays_no_other_and_is_an_alert() -> None:
    v = Virtual(nodes=2)
    v.submit(nnodes=5, id="huge")
    v.submit(nnodes=2, id="small")
    v.run(3.0)
    assert state(v, "small") is JobStatus.RUNNING
    v.run(15.0)
    assert [(i.job, i.cause.kind) for i in v.incidents] == [("huge", t.FindingKind.CAPACITY)]


def test_waiting_in_the_queue_is_no_incident() -> None:
    v = Virtual(nodes=2)
    v.submit(nnodes=2, id="a")
    v.submit(nnodes=2, id="b")
    v.run(60.0)
    assert v.incidents == []
    v.restart_controller()
    v.run(15.0)
    assert state(v, "b") is JobStatus.PENDING
    assert [i.job for i in v.incidents] == ["a"], "nor is it one that the controller was away meanwhile"


def test_the_reason_counts_free_nodes_and_names_the_jobs_that_hold_the_others() -> None:
    v = Virtual(nodes=9)
    for name, nodes, priority in (("a", 1, 0), ("b", 3, 5), ("c", 1, 0), ("d", 1, 0), ("e", 1, 0)):
        v.submit(nnodes=nodes, id=name, priority=priority)
    v.run(3.0)
    v.submit(nnodes=4, id="z")
    v.run(1.0)
    assert brain(v, "z").c.job.reason == (
        "waiting for nodes: 2 nodes are free, 4 are wanted; job job-2 (b, priority 5) holds 3; "
        "job job (a, priority 0) holds 1; job job-3 (c, priority 0) holds 1; 2 more jobs hold 2"
    )
    v.submit(nnodes=20, id="huge", priority=9)
    v.run(1.0)
    assert brain(v, "huge").c.job.reason == "waiting for nodes: needs 20 nodes with 4 free slots each, has 2"


def test_time_in_the_queue_has_an_account_of_its_own() -> None:
    """Also over restarts of the controller; what comes before and after it is booked as ever."""
    v = Virtual(nodes=2)
    v.submit(nnodes=2, id="low")
    v.run(4.0)
    v.submit(nnodes=2, id="high", priority=1, preempt=True)
    v.run(2.0)
    before = brain(v, "low").c.time.ratio(v.instant.wall)
    assert before is not None
    v.run(20.0)
    v.restart_controller()
    v.run(19.0)
    time = brain(v, "low").c.time
    assert time.totals(v.instant.wall)[Account.QUEUED] == pytest.approx(40.0, abs=2.0)
    assert time.ratio(v.instant.wall) == pytest.approx(before, abs=0.02)
    assert brain(v, "high").c.time.totals(v.instant.wall)[Account.QUEUED] < 1.0
    queued = v.now
    v.submit(nnodes=1, id="last")
    v.run(10.0)
    v.feed(StopRequested(0.0, "high"))
    v.run(4.0)
    assert state(v, "low") is JobStatus.RUNNING
    totals = time.totals(v.instant.wall)
    assert totals[Account.QUEUED] == pytest.approx(50.0, abs=2.0)
    assert totals[Account.EVICT] < 1.0
    assert sum(totals.values()) == pytest.approx(time.wall(v.instant.wall), rel=1e-3)
    last = brain(v, "last").c.time.totals(v.instant.wall)
    assert last == dict.fromkeys(Account, 0.0) | {Account.QUEUED: pytest.approx(v.now - queued, abs=0.1)}


def test_waiting_for_a_node_in_place_of_a_lost_one_is_a_loss() -> None:
    v = Virtual(nodes=2)
    v.submit(nnodes=2, id="a")
    v.run(4.0)
    v.lose_node("node1")
    v.run(40.0)
    totals = brain(v, "a").c.time.totals(v.instant.wall)
    assert totals[Account.QUEUED] == 0.0
    assert totals[Account.EVICT] > 25.0


def test_requests_name_their_job_where_there_are_several() -> None:
    v = two_jobs()
    with pytest.raises(UsageError, match=r"several jobs are active: job \(a\), job-2 \(b\); name one with --job"):
        v.feed(CheckpointRequested())
    _, send = v.feed(CheckpointRequested("job-2"))
    assert (send.node, send.command.job) == ("node2", "b")
    with pytest.raises(UsageError, match="no job 'c' is running"):
        v.feed(StopRequested(0.0, "c"))
    v.feed(StopRequested(0.0, "a"))
    v.run(2.0)
    with pytest.raises(UsageError, match="job a is already stopped"):
        v.feed(StopRequested(0.0, "a"))
    assert state(v, "b") is JobStatus.RUNNING


# --- faults -------------------------------------------------------------------------------------------------------


def test_a_fault_of_one_job_is_no_news_to_another() -> None:
    v = two_jobs(nodes=5)
    before = brain(v, "b").c.job.to_doc() | {"best_step": 0, "life_last": 0}
    sent = len(v.sent)
    v.exit(1, signal=9, job="a")
    v.run(1.0)
    v.lose_node("node0")
    v.run(10.0)
    v.hold_gil(5) if v.worker(5, "a") else None
    v.run(8.0)
    assert brain(v, "a").c.job.generation >= 3
    assert brain(v, "b").c.job.to_doc() | {"best_step": 0, "life_last": 0} == before
    assert {i.job for i in v.incidents} == {"a"}
    assert not [send for send in v.sent[sent:] if send.command.job == "b"]
    steps = sorted(brain(v, "b").c.ledger.rows)
    assert steps == list(range(len(steps)))


def test_the_spare_goes_to_the_job_that_is_first() -> None:
    v = two_jobs(nodes=5)
    v.lose_node("node2")
    v.run(10.0)
    assert brain(v, "b").c.job.nodes == ["node4", "node3"]
    assert state(v, "b") is JobStatus.RUNNING
    v.lose_node("node0")
    v.run(14.0)
    assert "waiting for nodes" in brain(v, "a").c.job.reason
    assert state(v, "b") is JobStatus.RUNNING
    v.join("node2")
    v.run(4.0)
    assert v.brain.c.nodes["node2"].history.failed_job == "b", "it failed under b: not before it was tested"
    assert state(v, "a") is JobStatus.RECOVERING


def test_a_node_that_failed_under_one_job_passes_a_diagnosis_before_another_gets_it() -> None:
    v = Virtual(nodes=3)
    v.submit(nnodes=2, id="a")
    v.run(3.0)
    v.lose_node("node0")
    v.run(10.0)
    assert brain(v, "a").c.job.nodes == ["node2", "node1"]
    v.join("node0")
    v.submit(nnodes=1, id="b")
    v.run(3.0)
    assert state(v, "b") is JobStatus.PENDING
    checks = [send for send in v.sent if isinstance(send.command.order, msg.RunCheck)]
    assert {send.node for send in checks} == {"node0"}, "it is tested as soon as a job waits for it"
    (doc,) = v.brain.diagnoses.all_docs()
    assert "node failure in job a" in doc["why"]
    v.brain.c.history("node0").failed_job = ""  # as an outcome `pass` does: tests/controller/diagnosis
    v.run(1.0)
    assert brain(v, "b").c.job.nodes == ["node0"]


def test_people_let_a_node_in_again_for_every_job() -> None:
    v = Virtual(nodes=3)
    v.submit(nnodes=2, id="a")
    v.run(3.0)
    v.lose_node("node0")
    v.run(10.0)
    v.join("node0")
    v.feed(CordonRequested("node0", False))
    v.submit(nnodes=1, id="b")
    v.run(3.0)
    assert brain(v, "b").c.job.nodes == ["node0"]


def test_a_node_that_is_evicted_for_the_third_time_within_weeks_is_a_lemon() -> None:
    v = Virtual(nodes=3)
    v.submit(nnodes=1, id="a")
    v.run(2.0)
    for n in range(3):
        v.brain.alerts.evict("node2", f"fault {n}", v.instant, quarantined=False, job="a")
        if n < 2:
            v.feed(CordonRequested("node2", False))
        v.run(1.0)
    assert v.brain.c.history("node2").quarantined
    (lemon,) = [i.cause for i in v.incidents if i.cause.kind is t.FindingKind.NODE_LEMON]
    assert "evicted for faults 3 times within 28 days" in lemon.text
    v.feed(CordonRequested("node2", False))
    assert v.brain.c.nodes["node2"].usable, "people decide"
    v.now += 40 * 86400.0
    v.brain.alerts.evict("node2", "much later", v.instant, quarantined=False, job="a")
    assert not v.brain.c.history("node2").quarantined, "what is older than the window does not count"


def test_evictions_by_hand_make_no_lemon() -> None:
    v = Virtual(nodes=3)
    for _ in range(5):
        v.brain.alerts.evict("node2", "by hand", v.instant, quarantined=True, by_hand=True)
        v.feed(CordonRequested("node2", False))
    assert v.incidents == []
    assert not v.brain.c.history("node2").quarantined


# --- orphans -------------------------------------------------------------------------------------------------------


def test_a_node_with_workers_of_another_job_is_given_away_only_once_they_are_gone() -> None:
    v = Virtual(nodes=2)
    v.submit(nnodes=1, id="a")
    v.run(3.0)
    v.kill_agent("node0")
    v.run(12.0)
    assert brain(v, "a").c.job.nodes == ["node1"]
    v.delivering = True  # the order to end them is on its way
    v.join("node0")
    v.brain.c.history("node0").failed_job = ""
    v.submit(nnodes=1, id="b")
    v.feed(Tick())
    assert not v.brain.c.nodes["node0"].usable
    assert brain(v, "b").c.life.placement == []
    v.delivering = False
    v._deliver_all()
    v.run(2.0)
    assert brain(v, "b").c.job.nodes == ["node0"]


@pytest.mark.parametrize("doc", [{}, {"spec": 5, "state": "running"}], ids=["unreadable", "not understood"])
def test_workers_of_a_job_that_the_journal_has_lost_are_left_alone(doc: dict[str, object]) -> None:
    """It runs on; its nodes go to no job until people have stopped it. Other jobs are restored as usual."""
    v = two_jobs()
    running = {w.rank: w.pid for w in v.all_workers() if w.job == "a"}
    v.saved["job", "a"] = doc
    v.restart_controller()
    v.submit(nnodes=1, id="c")
    v.run(5.0)
    assert {w.rank: w.pid for w in v.all_workers() if w.job == "a" and w.running} == running
    assert not orders(v, msg.StopWorkers, "a")
    assert (state(v, "b"), state(v, "c")) == (JobStatus.RUNNING, JobStatus.PENDING)
    for name in ("node0", "node1"):
        v.agents[name].workers.clear()
        v.kill_agent(name)
        v.join(name)
    v.run(3.0)
    assert brain(v, "c").c.job.nodes == ["node0"]


def test_workers_of_a_lost_job_that_was_over_are_orphans() -> None:
    v = two_jobs()
    v.saved["job", "a"] = {"spec": 5, "state": "finished"}
    v.restart_controller()
    v.run(2.0)
    assert set(orders(v, msg.StopWorkers, "a")) == {"node0", "node1"}
