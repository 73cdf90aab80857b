"""A controller restarts after a kill: what happened while it was down, what it had written down, the node blamed."""

import copy
import dataclasses
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.base.errors import UsageError
from holdfast.controller.brain import restore
from holdfast.controller.brain.cluster_brain import ClusterBrain
from holdfast.controller.brain.restore import REMEDY
from holdfast.controller.job.stages import Stage
from holdfast.controller.shell.job_report import incident_doc
from holdfast.controller.state.events import EventSeen, Tick
from holdfast.controller.state.incidents import IncidentState
from holdfast.controller.state.model import Instant, JobStatus
from holdfast.controller.state.progress import RestartAttempt
from holdfast.wire import types as t
from holdfast.wire.rollback import Rollback
from tests.controller.support.virtual import Virtual, training, trains_again

RESET = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711"
BUG = 'Traceback (most recent call last):\n  File "train.py", line 7, in step\nValueError: bad batch'


def test_a_controller_that_dies_comes_back_and_training_never_notices() -> None:
    v = training()
    v.restart_controller(away=2.0)
    v.run(2.0)
    trains_again(v, 1)
    (incident,) = v.incidents
    assert incident.cause.kind is t.FindingKind.CONTROLLER_RESTART
    assert incident.state is IncidentState.CLOSED


def test_a_worker_that_dies_while_the_controller_is_away() -> None:
    v = training()
    for agent in v.agents.values():
        agent.alive = False
    v.exit(3, signal=9)
    for agent in v.agents.values():
        agent.alive = True
    v.restart_controller()
    trains_again(v, 2)


def test_what_a_worker_logs_while_the_controller_is_away_is_about_the_exit_that_follows() -> None:
    """A peer's broken connection may be reported before the death that caused it: agents reconnect one by one."""
    v = training()
    v.agents["node1"].alive = False
    v.exit(5, signal=9)
    v.restart_controller()
    line = t.LogMatched("j1", 1, 1, int(v.instant.wall * 1e9), "gloo", "network", t.Severity.CRITICAL, "reset by peer")
    v.feed(EventSeen("node0", line))
    v.run(0.3)
    v.join("node1")
    trains_again(v, 2)
    found = {i.cause.kind: [f.kind for f in i.findings] for i in v.incidents}
    assert t.FindingKind.LOG_RULE in found.pop(t.FindingKind.WORKER_KILLED)
    assert found.keys() <= {t.FindingKind.CONTROLLER_RESTART}


def test_a_kill_that_is_reported_after_its_echo_was_acted_upon() -> None:
    """The agent that knows of it comes back last, when the others end their workers already."""
    v = training()
    v.agents["node1"].alive = False
    v.exit(5, signal=9)
    v.restart_controller()
    v.exit(1, code=1, error=RESET)
    v.run(0.4)
    assert v.brain.jobs.newest.c.life.stage is Stage.DRAINING
    v.join("node1")
    trains_again(v, 2)
    (incident,) = v.incidents
    assert (incident.cause.kind, incident.cause.subject) == (t.FindingKind.WORKER_KILLED, "rank5")


def test_a_line_and_its_exit_while_another_agent_is_yet_to_come_back() -> None:
    v = training()
    v.agents["node1"].alive = False
    v.restart_controller()
    line = t.LogMatched("j1", 1, 1, int(v.instant.wall * 1e9), "cuda-error", "gpu", t.Severity.CRITICAL, "CUDA error")
    v.feed(EventSeen("node0", line))
    v.exit(1, code=1, error=BUG)
    (incident,) = v.incidents
    kinds = {finding.kind for finding in incident.findings}
    assert kinds == {t.FindingKind.CONTROLLER_RESTART, t.FindingKind.WORKER_EXCEPTION, t.FindingKind.LOG_RULE}
    assert incident.cause.kind is t.FindingKind.WORKER_EXCEPTION


def test_a_rank_that_was_done_before_the_controller_died_is_not_missed() -> None:
    v = training()
    v.exit(3, code=0)
    del v.agents["node0"].workers["j1", 1, 3]  # acknowledged, so the agent forgot it
    v.restart_controller()
    v.run(1.0)
    for rank in (0, 1, 2, 4, 5, 6, 7):
        v.exit(rank, code=0)
    v.run(1.0)
    assert v.job.state is JobStatus.FINISHED
    assert v.job.generation == 1


# --- a document that was damaged or edited ---------------------------------------------------------------------------

WRONG: list[Any] = [None, -1, 1 << 70, math.inf, "x", [], {}, True]


def whole_document() -> tuple[Virtual, dict[str, Any]]:
    """A job with every kind of record, from the journal."""
    v = training()
    v.exit(3, signal=9)
    v.run(5.0)
    job = v.job
    job.fired, job.unanswered, job.pauses = {"kill@3:rank1": 5.0}, {"stop@9:rank1": "c1"}, {"rank 0": [1, 2.5]}
    job.rollbacks, job.exit_code = [Rollback(5, 2)], 3
    job.progress.bases, job.progress.attempts = [[1, 7]], [RestartAttempt(1, "ValueError", 5, 2.0, 0)]
    program = dataclasses.replace(job.spec.program, args=("--steps", "5"), env={"A": "b"})
    limits = {"pause_limit": 60.0}
    job.spec = dataclasses.replace(
        job.spec, program=program, faults=("kill@3:rank1",), node_counts=(1,), limits=limits, max_steps=100
    )
    doc: dict[str, Any] = json.loads(json.dumps(job.to_doc()))
    return v, doc


def places(doc: Any) -> Iterator[tuple[str | int, ...]]:
    inner = doc.items() if isinstance(doc, dict) else enumerate(doc) if isinstance(doc, list) else ()
    for key, value in inner:
        yield (key,)
        yield from ((key, *rest) for rest in places(value))


def with_value(doc: Any, place: tuple[str | int, ...], value: Any) -> Any:
    doc = copy.deepcopy(doc)
    at = doc
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    return doc


def taken_up(v: Virtual, doc: dict[str, Any]) -> ClusterBrain:
    brain = ClusterBrain("b9", v.options)
    documents = {**v.saved, ("job", "j1"): doc}
    brain.restore([(kind, key, one) for (kind, key), one in documents.items()], v.steps, v.instant)
    return brain


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_whatever_is_wrong_with_the_newest_job_is_one_line_or_harmless(wrong: Any) -> None:
    """In each place of its document. A controller that ends in another way is started again and again."""
    v, doc = whole_document()
    assert taken_up(v, doc).c.newest == v.job
    refused: dict[str, str] = {}
    for place in places(doc):
        try:
            brain = taken_up(v, with_value(doc, place, wrong))
        except UsageError as error:
            refused[".".join(map(str, place))] = str(error)
            continue
        for n in range(3):
            brain.handle(Tick(), Instant(v.now + n, v.instant.wall + n))
        if brain.c.newest is not None:
            json.dumps(brain.c.newest.to_doc())
    must = {"spec", "spec.program", "spec.nproc", "spec.nnodes", "past.0", "rollbacks.0", "progress.attempts.0"}
    assert must <= refused.keys()
    assert all(REMEDY in why and "\n" not in why for why in refused.values())


def whole_incident() -> tuple[Virtual, dict[str, Any]]:
    """The live one of a job that recovers, with stacks and evidence."""
    v = training()
    v.exit(3, signal=9)
    v.run(0.2)
    (incident,) = v.incidents
    assert incident.live
    row = {"depth": 0, "ranks": "0-7", "frame": "train.py:5 step"}
    incident.stacks = {"at": 5.0, "job": "j1", "generation": 1, "missing": {"node1": "away"}, "states": {"3": "S"},
                       "rows": [row]}  # fmt: skip
    evidence = {"life": "busy", "reason": "signal", "step": 5, "values": [1, {"a": None}]}
    incident.findings[0] = dataclasses.replace(incident.findings[0], evidence=evidence)
    doc: dict[str, Any] = json.loads(json.dumps(incident.to_doc()))
    return v, doc


def with_incident(v: Virtual, doc: dict[str, Any]) -> ClusterBrain:
    brain = ClusterBrain("b9", v.options)
    documents = {**v.saved, ("incident", "i1"): doc}
    brain.restore([(kind, key, one) for (kind, key), one in documents.items()], v.steps, v.instant)
    return brain


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_whatever_is_wrong_with_an_incident_it_is_left_out_and_named_or_harmless(wrong: Any) -> None:
    """In each place of its document; the job goes on as ever."""
    v, doc = whole_incident()
    assert with_incident(v, doc).damaged == []
    refused: dict[str, str] = {}
    for place in places(doc):
        brain = with_incident(v, with_value(doc, place, wrong))
        if brain.damaged:
            (why,) = brain.damaged
            refused[".".join(map(str, place))] = why
            assert why.startswith("incident i1: ")
            assert "\n" not in why
        assert ("i1" in brain.c.book.incidents) is not bool(brain.damaged), "no other one has its id"
        for n in range(3):
            brain.handle(Tick(), Instant(v.now + n, v.instant.wall + n))
        for incident in brain.c.book.incidents.values():
            json.dumps(incident.to_doc(), allow_nan=False)
            json.dumps(incident_doc(incident), allow_nan=False)
        assert brain.c.newest is not None
    must = {"findings", "findings.0", "findings.0.kind", "findings.0.evidence", "phases.0", "state", "stacks.rows.0"}
    assert must <= refused.keys() | ({"stacks.rows.0", "findings.0.evidence"} if wrong == {} else set())
    is_text, is_number = isinstance(wrong, str), wrong == -1
    for place, is_right in (
        ("id", False), ("opened", is_number), ("findings.0.since", is_number), ("findings.0.text", is_text),
        ("phases.0.1", is_number), ("root", False), ("stacks.rows.0.frame", is_text), ("stacks.missing.node1", is_text),
        ("findings.0.evidence.life", is_text), ("findings.0.evidence.step", is_number), ("step_at_fault", is_number),
    ):  # fmt: skip
        assert (place in refused) is not is_right, place


def test_an_incident_under_another_id_is_left_out() -> None:
    v, doc = whole_incident()
    assert with_incident(v, {**doc, "id": "i7"}).damaged == ["incident i1: ValueError id cannot be 'i7'"]


def test_numbers_of_a_job_are_within_bounds() -> None:
    v, doc = whole_document()
    for place, value in (
        (("spec", "nproc"), 10**7), (("spec", "nnodes"), 1), (("spec", "node_counts"), [5]), (("generation",), -1),
        (("generation",), 1 << 40), (("nodes",), ["a", "b", "c"]), (("submitted_at",), math.nan),
        (("spec", "limits", "pause_limit"), "60"), (("progress", "attempts"), [{"generation": 1}]),
    ):  # fmt: skip
        with pytest.raises(UsageError, match="newest job cannot be"):
            taken_up(v, with_value(doc, place, value))


def test_a_bug_in_taking_up_a_job_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    v, doc = whole_document()

    def broken(*_: object) -> None:
        raise AssertionError("not possible")

    monkeypatch.setattr(restore, "fresh_table", broken)
    with pytest.raises(UsageError, match=r"cannot be restored \(AssertionError not possible\); stop the job's workers"):
        taken_up(v, doc)
