"""The plan that a job reports: kept for the job, through restarts of the controller, and shown as JSON."""

import contextlib
from types import SimpleNamespace
from typing import Any

from holdfast.controller.shell.report import Report
from holdfast.controller.state.events import EventSeen
from holdfast.plan.plan import Action, Layers, Mesh, Op, Plan
from holdfast.wire import types as t
from holdfast.wire.plans import encode_plan
from tests.controller.support.virtual import Virtual

PLAN = Plan(
    "1f1b",
    Mesh.of(pp=1, dp=8),
    (Layers(0, 4, 0),),
    1,
    ((Action(Op.FORWARD, 0, 0), Action(Op.BACKWARD, 0, 0), Action(Op.STEP, 0)),),
)


def report(v: Virtual, data: bytes, generation: int | None = None, job: str = "") -> None:
    reported = t.PlanPublished(job or v.job.spec.id, v.job.generation if generation is None else generation, data)
    v.feed(EventSeen("node0", reported))


def shown(v: Virtual) -> Any:
    shell: Any = SimpleNamespace(brain=v.brain)
    return Report(shell, max_restarts=0).plan()


def test_a_plan_is_shown_for_its_job_only() -> None:
    v = Virtual()
    assert shown(v) is None
    v.submit()
    v.run(3.0)
    report(v, encode_plan(PLAN), job="another")
    report(v, encode_plan(PLAN), generation=v.job.generation + 1)
    assert shown(v) is None
    report(v, encode_plan(PLAN))
    assert shown(v) == {
        "job": v.job.spec.id,
        "generation": v.job.generation,
        "schedule": "1f1b",
        "micro_batches": 1,
        "axes": [["pp", 1], ["dp", 8], ["tp", 1]],
        "stages": [{"first": 0, "stop": 4, "rank": 0}],
        "orders": [["0F0", "0B0", "0STEP"]],
        "replicas": [],
    }
    v.restart_controller()
    assert shown(v)["orders"] == [["0F0", "0B0", "0STEP"]]


def test_what_cannot_be_read_is_shown_as_none_and_the_job_goes_on() -> None:
    v = Virtual()
    v.submit()
    v.run(3.0)
    report(v, b"\xff\xff")
    with contextlib.redirect_stderr(None):
        assert shown(v) is None
    assert not v.incidents
