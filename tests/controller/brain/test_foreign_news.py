"""A node reports on its own ranks only: its reports on other jobs, generations or ranks change nothing."""

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.controller.shell.ingest import held_spans, not_of
from holdfast.controller.state.events import EventSeen, FrameSeen, ResultSeen
from holdfast.controller.state.model import JobStatus
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.controller.shell.test_hostile_messages import over_the_wire
from tests.controller.support.virtual import Virtual, training, trains_again

JOB = "j1"


def with_spare() -> Virtual:
    """node0 and node1 train j1, node2 holds nothing."""
    v = Virtual(nodes=3)
    v.submit(nnodes=2)
    v.run(5.0)
    assert v.job.best_step > 3
    return v


def of_the_job(v: Virtual) -> dict[str, Any]:
    """All that is known of the job, as plain data."""
    c = v.brain.jobs.newest.c
    ranks = {name: str(value) for name, value in vars(c.ranks).items()}
    live = c.book.live()
    return {
        "job": c.job.to_doc(),
        "ranks": ranks,
        "steps": dict(c.ledger.rows),
        "plan": c.plan,
        "time": c.time.to_doc(),
        "life": (c.life.stage, dict(c.life.waiting), set(c.life.unstopped)),
        "live": live.to_doc() if live else None,
        "progress_at": c.progress_at,
    }


def step(number: int, job: str, generation: int = 1, rank: int = 0, loss: float = 1.0) -> t.StepRecord:
    return t.StepRecord(rank, generation, number, 10**18, 0.3, loss, 128, False, job)


def frame(*steps: t.StepRecord, workers: tuple[t.WorkerSample, ...] = ()) -> t.Frame:
    return t.Frame(1, 1, 1, workers=workers, steps=steps)


# --- the four ways in which it went wrong -------------------------------------------------------------------------


def test_workers_of_an_old_job_do_not_count_as_the_new_ones() -> None:
    """node0's agent still has j0's workers, whose ranks and generation are those of j1, too."""
    v = with_spare()
    before = v.job.best_step
    sample = t.WorkerSample(0, 1, 7, step=56, phase=t.Phase.TRAIN, stopped=True, job="j0")
    v.feed(FrameSeen("node0", frame(step(56, "j0"), workers=(sample,))))
    assert v.job.best_step == before
    assert v.brain.jobs.newest.c.ranks.step[0] <= before
    assert not v.brain.jobs.newest.c.ranks.stopped[0]
    assert v.brain.c.dropped == {"stale": 2}


@pytest.mark.parametrize("job", [JOB, ""])
def test_a_node_without_ranks_moves_no_step(job: str) -> None:
    v = with_spare()
    before = of_the_job(v)
    v.feed(FrameSeen("node2", frame(step(5000, job))))
    assert of_the_job(v) == before
    assert v.brain.c.dropped == {"foreign": 1}
    done = v.job.best_step
    v.run(1.0)
    assert v.job.best_step > done  # the true steps count


def test_nor_one_of_a_generation_that_is_over() -> None:
    v = with_spare()
    v.exit(0, signal=9)
    trains_again(v, 2)
    assert v.job.past == [(1, ["node0", "node1"])]
    before = v.job.best_step, v.brain.c.steps_total, v.brain.jobs.newest.c.progress_at
    v.feed(FrameSeen("node2", frame(step(5000, JOB, generation=1))))
    assert (v.job.best_step, v.brain.c.steps_total, v.brain.jobs.newest.c.progress_at) == before
    assert v.brain.c.dropped == {"foreign": 1}
    v.feed(FrameSeen("node1", frame(step(5000, JOB, generation=1, rank=4))))  # last words of one that held it
    assert v.brain.c.steps_total == before[1] + 1


def test_the_ranks_of_each_node_outlive_the_controller() -> None:
    v = with_spare()
    v.exit(0, signal=9)
    trains_again(v, 2)
    v.restart_controller()
    v.run(1.0)
    before = v.brain.c.steps_total
    v.feed(FrameSeen("node2", frame(step(5000, JOB, generation=1))))
    assert v.brain.c.steps_total == before
    assert v.brain.c.dropped == {"foreign": 1}


def test_a_node_without_ranks_finishes_no_job() -> None:
    v = with_spare()
    for node in ("node1", "node2", "ghost"):
        for generation in (0, 1, 2):
            v.feed(EventSeen(node, t.WorkerExited(JOB, generation, 0, 7, 1, 0)))
            v.feed(EventSeen(node, t.WorkerExited(JOB, generation, 0, 7, 1, 1, error="no")))
    v.run(1.0)
    assert (v.job.state, v.job.generation, v.incidents) == (JobStatus.RUNNING, 1, [])


def test_an_incident_is_of_a_job() -> None:
    """The origin of a state is given by job and generation: two jobs have a second generation."""
    v = with_spare()
    v.exit(0, signal=9)
    trains_again(v, 2)
    (incident,) = v.incidents
    assert (incident.job, incident.generation_to) == (JOB, 2)
    v.feed(EventSeen("node0", t.StateRestored("j0", 2, 5, "store", 99.0, 1)))
    assert incident.source != "store" or incident.restore_s != 99.0
    v.feed(EventSeen("node0", t.StateRestored(JOB, 2, 5, "peer", 0.5, 1)))
    assert (incident.source, incident.restore_s) == ("peer", 0.5)
    v.feed(EventSeen("node0", t.ImportsTimed("j0", 2, 9.0, "torch")))
    assert incident.imports_s is None
    v.feed(EventSeen("node0", t.ImportsTimed(JOB, 2, 1.5, "torch")))
    assert (incident.imports_s, incident.frameworks) == (1.5, "torch")


# --- answers ------------------------------------------------------------------------------------------------------


def test_an_answer_counts_from_the_node_that_was_asked_only() -> None:
    v = Virtual(nodes=3)
    v.losing = True  # nothing reaches the agents: all answers are ours to make
    v.submit(nnodes=2)
    store = next(id for id, (what, _) in v.brain.jobs.newest.c.life.waiting.items() if what == "store")
    good = msg.CommandResult(store, True, data={"host": "1.2.3.4", "port": "5"})
    v.feed(ResultSeen("node2", good))
    assert store in v.brain.jobs.newest.c.life.waiting
    assert v.brain.c.dropped == {"answer": 1}
    v.feed(ResultSeen("node0", good))
    assert store not in v.brain.jobs.newest.c.life.waiting
    assert v.brain.jobs.newest.c.life.store == "1.2.3.4:5"
    v.feed(ResultSeen("node0", good))  # the same again
    assert v.brain.c.dropped == {"answer": 2}


# --- spans, notices, whatever there is ----------------------------------------------------------------------------


def test_spans_are_taken_from_those_that_hold_the_rank() -> None:
    v = with_spare()

    def spans(job: str, generation: int, rank: int) -> msg.Spans:
        return msg.Spans((msg.WorkerSpans(rank, generation, 1, 0, 0, 1, ("",), b"", job),), 0, 0)

    for node, part, reason in (
        ("node0", spans(JOB, 1, 0), ""),
        ("node0", spans("", 1, 0), ""),
        ("node0", spans("j0", 1, 0), "stale"),
        ("node0", spans(JOB, 2, 0), "stale"),
        ("node1", spans(JOB, 1, 0), "foreign"),
        ("node2", spans(JOB, 1, 0), "foreign"),
    ):
        refused: dict[str, int] = {}
        kept = held_spans(part, node, v.brain.c, refused)
        assert (len(kept.workers), refused) == ((0, {reason: 1}) if reason else (1, {}))


def test_lines_count_from_the_node_that_holds_the_rank() -> None:
    v = with_spare()
    v.exit(0, signal=9)
    trains_again(v, 2)
    for node, job, generation, rank, reason in (
        ("node0", JOB, 2, 0, ""),
        ("node0", JOB, 1, 3, ""),
        ("node1", JOB, 2, 7, ""),
        ("node0", "j0", 2, 0, "stale"),
        ("node0", JOB, 3, 0, "stale"),
        ("node0", JOB, 2, 4, "foreign"),
        ("node1", JOB, 1, 0, "foreign"),
        ("node2", JOB, 2, 0, "foreign"),
    ):
        assert not_of(msg.LogChunk(job, generation, rank, "out", "x"), node, v.brain.c) == reason


def test_a_line_that_a_rule_knows_is_reported_by_the_node_that_holds_the_rank() -> None:
    v = with_spare()
    line = t.LogMatched(JOB, 1, 0, 1, "cuda-error", "gpu", t.Severity.CRITICAL, "CUDA error")
    for node in ("node1", "node2"):
        v.feed(EventSeen(node, line))
    v.run(10.0)
    assert v.incidents == []
    assert v.brain.c.dropped == {"foreign": 2}
    v.feed(EventSeen("node0", line))
    v.run(10.0)
    assert [(i.cause.kind, i.cause.subject) for i in v.incidents] == [("log-rule", "rank0")]


def test_a_store_that_fails_is_reported_by_nodes_of_the_job() -> None:
    v = with_spare()

    def failing(job: str) -> t.AgentNotice:
        return t.AgentNotice(1, "checkpoint-store", t.Severity.WARNING, "no room", job)

    v.feed(EventSeen("node2", failing(JOB)))
    v.feed(EventSeen("node0", failing("j0")))
    assert v.incidents == []
    assert v.brain.c.dropped == {"foreign": 1, "stale": 1}
    v.feed(EventSeen("node0", failing(JOB)))
    assert [i.cause.kind for i in v.incidents] == ["store"]


JOBS = st.sampled_from(["", JOB, "j0", "j2"])
WHOLE = st.integers(0, 9)
CODE, NINE, SEVERITY = st.sampled_from([0, 1, -1]), st.sampled_from([0, 9]), st.sampled_from(t.Severity)
EVENT = st.one_of(
    st.builds(t.WorkerExited, JOBS, WHOLE, WHOLE, WHOLE, WHOLE, CODE, NINE, error=st.just("no")),
    st.builds(t.LogMatched, JOBS, WHOLE, WHOLE, WHOLE, st.just("rule"), st.just("kind"), SEVERITY, st.just("a line")),
    st.builds(t.PlanPublished, JOBS, WHOLE, st.just(b"plan")),
    st.builds(t.StateRestored, JOBS, WHOLE, WHOLE, st.just("peer"), st.just(1.0), WHOLE),
    st.builds(t.ImportsTimed, JOBS, WHOLE, st.just(1.0), st.just("torch")),
    st.builds(t.ProgressSeen, JOBS, WHOLE, WHOLE, WHOLE, st.just("checkpoint"), WHOLE, WHOLE, st.just("x")),
    st.builds(t.AgentNotice, WHOLE, st.just("checkpoint-store"), SEVERITY, st.just("x"), JOBS),
)
RECORD = st.builds(
    t.StepRecord, rank=WHOLE, generation=WHOLE, step=st.integers(0, 6000), end_wall_ns=WHOLE, seconds=st.just(0.3),
    loss=st.sampled_from([1.0, math.inf]), tokens=WHOLE, is_counted=st.booleans(), job=JOBS,
)  # fmt: skip
SAMPLE = st.builds(
    lambda rank, generation, at, stopped, job: t.WorkerSample(rank, generation, 7, at, stopped=stopped, job=job),
    WHOLE, WHOLE, WHOLE, st.booleans(), JOBS,
)  # fmt: skip
LIES = st.builds(lambda w, s: frame(*s, workers=tuple(w)), st.lists(SAMPLE, max_size=4), st.lists(RECORD, max_size=4))
RESULT = st.builds(
    msg.CommandResult, id=st.sampled_from([f"b1-{n}" for n in range(1, 12)]), ok=st.booleans(), error=st.just("no"),
    data=st.just({"host": "h", "port": "1", "stacks": "[]", "states": "{}"}),
)  # fmt: skip


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(st.lists(st.one_of(EVENT, LIES, RESULT), min_size=1, max_size=8), st.booleans())
def test_a_node_that_holds_nothing_changes_nothing_of_the_job(news: list[Any], recovering: bool) -> None:
    v = with_spare()
    if recovering:
        v.exit(0, signal=9)
        trains_again(v, 2)
    before = of_the_job(v)
    for one in news:
        match one:
            case t.Frame():
                message, _ = over_the_wire(one)
                assert isinstance(message, t.Frame)
                v.feed(FrameSeen("node2", t.Frame(1, 1, 1, workers=message.workers, steps=message.steps)))
            case msg.CommandResult():
                v.feed(ResultSeen("node2", one))
            case _:
                v.feed(EventSeen("node2", one))
    assert of_the_job(v) == before


def test_the_same_news_from_the_holder_of_the_rank_do_change_it() -> None:
    """Lest the test above passes because nothing ever changes anything."""
    v = training()
    before = of_the_job(v)
    v.feed(FrameSeen("node0", frame(step(v.job.best_step + 1, JOB))))
    assert of_the_job(v) != before
