"""Exit code 2 is final: a program that refuses its input would refuse it again."""

import pytest

from holdfast.controller.state.incidents import IncidentState
from holdfast.controller.state.model import JobStatus
from holdfast.wire import types as t
from tests.controller.support.virtual import Virtual, training, trains_again

USAGE = "usage: train.py [-h] --lr LR\ntrain.py: error: the following arguments are required: --lr\n"


def started(**more: object) -> Virtual:
    """Its workers run, and none has done a step."""
    v = Virtual()
    v.step_seconds = 1e6
    v.submit(nnodes=2, **more)
    v.run(1.0)
    assert (v.job.state, v.job.best_step) == (JobStatus.RUNNING, -1)
    return v


@pytest.mark.parametrize("limit", [-1, 0, 5])
def test_a_script_that_refuses_its_arguments_is_not_started_again(limit: int) -> None:
    v = started(max_restarts=limit)
    v.exit(3, code=2, tail=USAGE)
    v.run(5.0)
    assert (v.job.state, v.job.exit_code, v.job.generation) == (JobStatus.FAILED, 2, 1)
    assert v.job.reason.startswith("exit code 2 is final: rank 3 ")
    assert v.job.reason.endswith("the following arguments are required: --lr")
    (incident,) = v.incidents
    assert (incident.action, incident.state) == ("stop-job", IncidentState.FAILED)
    assert v.brain.c.history("node0").node_failures == []


def test_the_rank_that_says_why_is_quoted_and_not_a_silent_one_before_it() -> None:
    """The embedded trainer: one rank of each node prints the error, and all of them exit."""
    v = started()
    v.exit(5, code=2)
    v.run(0.1)
    v.exit(0, code=2, tail="holdfast train: model.heads is 7\n")
    v.run(5.0)
    assert (v.job.state, v.job.generation) == (JobStatus.FAILED, 1)
    assert v.job.reason.endswith("holdfast train: model.heads is 7")


def test_silent_ranks_alone_end_the_job_too() -> None:
    v = started()
    v.exit(5, code=2)
    v.run(5.0)
    assert (v.job.state, v.job.exit_code, v.job.generation) == (JobStatus.FAILED, 2, 1)


def test_it_is_final_after_steps_too() -> None:
    v = training()
    v.exit(3, code=2, tail="the schedule is used up\n")
    v.run(5.0)
    assert (v.job.state, v.job.generation) == (JobStatus.FAILED, 1)


def test_what_worked_before_may_work_again() -> None:
    """A folder or a rendezvous that is away for a moment: the same settings were good for a step."""
    v = training()
    v.exit(2, signal=9)
    v.step_seconds = 1e6
    v.run(1.0)
    assert v.job.generation == 2
    v.exit(3, code=2, tail="holdfast train: data.path /data: no such folder\n")
    v.step_seconds = 0.3
    trains_again(v, 3)


@pytest.mark.parametrize("code", [1, 3, 64])
def test_other_codes_restart(code: int) -> None:
    v = started()
    v.exit(3, code=code, tail=USAGE)
    v.run(1.0)
    assert (v.job.state, v.job.generation) == (JobStatus.RUNNING, 2)


def test_a_signal_of_that_number_is_no_exit_code() -> None:
    v = started()
    v.exit(3, code=0, signal=2)
    v.run(1.0)
    assert (v.job.state, v.job.generation) == (JobStatus.RUNNING, 2)
    assert v.incidents[-1].cause.kind is t.FindingKind.WORKER_EXIT
