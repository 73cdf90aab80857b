"""A rank that ends with 0 in mid-run is the culprit of the ranks that lose it; one that finished is no culprit."""

import pytest

from holdfast.controller.detectors.workers.exits import exit_finding
from holdfast.controller.job.leavers import WITHIN_S
from holdfast.controller.state.events import EventSeen
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, JobStatus
from holdfast.wire import types as t
from tests.controller.support.virtual import Virtual, training, trains_again

LOST = (
    'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    dist.all_reduce(x)\n'
    "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:3041"
)
STORE = 'Traceback (most recent call last):\n  File "s3.py", line 1, in put\nConnectionResetError: reset by peer'
BUG = 'Traceback (most recent call last):\n  File "train.py", line 3, in main\nValueError: a bug'


def test_the_rank_that_left_is_named_and_not_its_peer() -> None:
    v = training()
    v.exit(5, code=0)
    v.run(0.2)
    v.exit(4, code=1, error=LOST)
    trains_again(v, 2)
    (incident,) = v.incidents
    assert (incident.cause.kind, incident.cause.subject) == (t.FindingKind.WORKER_LEFT, "rank5")
    assert incident.cause.node == "node1"
    assert "rank 5 ended with exit code 0 after step" in incident.cause.text
    assert "while 7 ranks were still training" in incident.cause.text
    assert incident.cause.evidence["still_training"] == 7
    assert incident.cause.evidence["lost_by"] == "rank4"
    assert v.brain.c.history("node1").node_failures == []  # the program's own doing


def test_the_news_of_it_may_come_from_another_node_a_moment_later() -> None:
    v = training()
    left = v._exit(v.worker(5), code=0)
    v.worker(5).running = False
    v.exit(1, code=1, error=LOST)
    v.run(0.1)
    v.feed(EventSeen("node1", left))
    (incident,) = v.incidents
    assert incident.cause.subject == "rank5"
    trains_again(v, 2)


def test_it_says_so_each_time_and_the_job_is_given_up_in_the_end() -> None:
    v = training()
    for _ in range(3):
        v.exit(5, code=0)
        v.exit(4, code=1, error=LOST)
        v.run(0.2)
    assert v.job.state is JobStatus.FAILED
    assert "rank 5 ended with exit code 0" in v.job.reason


def test_ranks_that_finish_one_after_the_other_are_no_ranks_fault() -> None:
    v = training()
    for rank in range(8):
        v.exit(rank, code=0)
        v.run(2.0)
    assert v.job.state is JobStatus.FINISHED
    assert v.incidents == []


def test_a_last_rank_that_fails_in_its_own_last_save_is_the_culprit() -> None:
    v = training()
    for rank in range(1, 8):
        v.exit(rank, code=0)
    v.exit(0, code=1, error=BUG)
    v.run(0.5)
    assert v.incidents[-1].cause.subject == "rank0"
    assert v.incidents[-1].cause.kind is t.FindingKind.WORKER_EXCEPTION


@pytest.mark.parametrize("error", [STORE, BUG])
def test_who_fails_for_another_reason_is_the_culprit(error: str) -> None:
    v = training()
    v.exit(5, code=0)
    v.exit(4, code=1, error=error)
    v.run(1.0)
    assert v.incidents[-1].cause.subject == "rank4"


def test_who_went_on_without_it_did_not_need_it() -> None:
    v = training()
    v.exit(5, code=0)
    for worker in v.all_workers():
        worker.step += 5
        worker.progress_at = v.now
    v.exit(4, code=1, error=LOST)
    v.run(1.0)
    assert v.incidents[-1].cause.subject == "rank4"


def test_when_most_are_done_the_late_one_is_the_culprit() -> None:
    v = training()
    for rank in range(3, 8):
        v.exit(rank, code=0)
    v.exit(0, code=1, error=LOST)
    v.run(1.0)
    assert v.incidents[-1].cause.subject == "rank0"


def test_ranks_that_end_early_by_design_end_nothing() -> None:
    v = Virtual()
    v.submit()
    v.run(3.0)
    for rank in range(1, 8):
        v.exit(rank, code=0)
    v.run(1.0)  # rank 0 goes on alone
    assert v.job.state is JobStatus.RUNNING
    assert v.incidents == []
    v.exit(0, code=0)
    v.run(0.5)
    assert v.job.state is JobStatus.FINISHED


def test_a_rank_whose_node_was_asked_to_end_was_preempted() -> None:
    v = training()
    notice = t.AgentNotice(int(v.instant.wall * 1e9), "drain", t.Severity.WARNING, "the agent is stopping")
    v.feed(EventSeen("node1", notice))
    for rank in (4, 5, 6, 7):
        v.exit(rank, code=0)  # a handler of SIGTERM that ends with 0
    v.exit(1, code=1, error=LOST)
    v.run(0.2)
    live = v.incidents[-1]
    assert (live.cause.kind, live.cause.node) == (t.FindingKind.WORKER_PREEMPTED, "node1")
    assert "its agent was stopping" in live.cause.text


def echo(v: Virtual, rank: int, later: float) -> Finding:
    """What a rank fails with, so many seconds from now by the clock of its host."""
    at = int((v.instant.wall + later) * 1e9)
    ended = t.WorkerExited("j1", 1, rank, 1, at, 1, error=LOST)
    return exit_finding(ended, "node1", Instant(v.now, v.instant.wall + max(0.0, later)))


@pytest.mark.parametrize(
    ("later", "is_for_want_of_it"), [(-1.0, True), (30.0, True), (WITHIN_S + 1, False), (-5.0, False)]
)
def test_only_what_follows_soon_is_due_to_it(later: float, is_for_want_of_it: bool) -> None:
    v = training()
    v.exit(5, code=0)
    cause = v.brain.jobs.newest.exits.leavers.cause_of(
        echo(v, 4, later), v.job, v.brain.jobs.newest.c.ranks, (), v.instant
    )
    assert (cause is not None) == is_for_want_of_it
