"""Restarts because ranks connect, or because an operation that all have entered does not end, use up no attempt."""

import pytest

from holdfast.controller.state.events import Found
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Job, JobStatus, Options
from holdfast.wire import types as t
from tests.controller.support.virtual import Virtual


def starting(options: Options | None = None, **more: object) -> Virtual:
    """The ranks never make a step: they connect."""
    v = Virtual(options=options)
    v.step_seconds = 1e9
    v.submit(**more)  # type: ignore[arg-type]
    v.run(1.0)
    return v


def wait(v: Virtual, **evidence: object) -> None:
    at = v.instant.wall
    text = "all ranks have entered init_process_group, and it does not end"
    v.feed(Found(Finding(t.FindingKind.WORKER_HANG, t.Severity.CRITICAL, "job", text, at, at, signature="hang",
                         evidence=evidence), "j1"))  # fmt: skip


CONNECTING = {"life": "dead", "reason": "connecting"}
TRANSFER = {"life": "dead", "reason": "transfer"}
AT_START = {"life": "idle", "reason": "outside", "option": "--idle-limit-start"}


@pytest.mark.parametrize("evidence", [CONNECTING, TRANSFER, AT_START])
def test_a_job_is_never_failed_for_them_and_its_attempts_begin_later_each_time(evidence: dict[str, str]) -> None:
    v = starting(Options(restart_backoff=8.0))
    for generation, seconds in enumerate((0.0, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0), 2):
        wait(v, **evidence)
        if seconds:
            v.run(seconds - 0.2)
            assert v.job.generation == generation - 1
        v.run_until(lambda generation=generation: v.job.generation == generation, 1.0)
        v.run(1.0)
        assert v.job.state is JobStatus.RUNNING
    assert v.job.fruitless == 0
    assert not any(history.node_failures for history in v.brain.c.histories.values())
    last = v.incidents[-1]
    assert "counts as no attempt" in last.reason
    assert "does not end" in last.cause.text
    assert Job.from_doc(v.job.to_doc()).network_waits == 8


def test_steps_in_between_reset_the_wait() -> None:
    v = starting(Options(restart_backoff=8.0))
    for _ in range(3):
        wait(v, **TRANSFER)
        v.run(4.0)
    v.step_seconds = 0.3
    v.run_until(lambda: v.job.life_steps > 0)
    generation = v.job.generation
    wait(v, **TRANSFER)
    v.run_until(lambda: v.job.generation == generation + 1, 0.6)


def test_they_do_not_count_towards_the_restarts_of_a_job() -> None:
    v = starting(max_restarts=1)
    for generation in (2, 3, 4):
        wait(v, **CONNECTING)
        v.run_until(lambda generation=generation: v.job.generation == generation, 10.0)
        v.run(1.0)
    assert (v.job.restarts, v.job.uncounted_restarts) == (3, 3)


def test_with_no_restart_left_people_are_alerted_once_and_the_job_runs_on() -> None:
    v = starting(max_restarts=0)
    for _ in range(5):
        wait(v, **CONNECTING)
        v.run(1.0)
    assert (v.job.state, v.job.generation) == (JobStatus.RUNNING, 1)
    assert [incident.action for incident in v.incidents] == ["alert"]


def test_other_hangs_count_as_ever() -> None:
    v = starting()
    for _ in range(5):
        wait(v, life="dead", reason="order")
        v.run(3.0)
    assert v.job.state is JobStatus.FAILED
