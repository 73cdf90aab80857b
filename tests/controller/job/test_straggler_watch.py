"""A straggler's incident is ongoing until the rank is well, and says what it has cost so far."""

from holdfast.controller.detectors.base.table import finding
from holdfast.controller.state.events import Found, Record, StopRequested, StragglersSeen
from holdfast.controller.state.incidents import Incident, IncidentState
from holdfast.wire import types as t
from tests.controller.support.virtual import Virtual, training

KEY = "rank6 straggler compute"


def reported(v: Virtual) -> Incident:
    slow = finding(
        t.FindingKind.STRAGGLER, "rank6", "rank 6 is slow", v.instant, node="node1", rank=6,
        signature="straggler compute",
    )  # fmt: skip
    v.feed(Found(slow, v.job.spec.id))
    return v.incidents[-1]


def looked(v: Virtual, costs: dict[str, float]) -> list[Record]:
    return [one for one in v.feed(StragglersSeen(v.job.spec.id, 10.0, costs)) if isinstance(one, Record)]


def test_it_lasts_until_the_rank_is_well_with_its_cost_so_far() -> None:
    v = training()
    incident = reported(v)
    assert (incident.state, incident.phase, incident.live) == (IncidentState.OPEN, "ongoing", False)
    assert looked(v, {KEY: 0.5, "rank1 straggler compute": 3.0}), "the journal has it"
    looked(v, {KEY: 0.25})
    assert incident.reason == "ongoing: it has cost 0.75 s, 3.8% of the steps so far; a restart would not help"
    assert incident.is_open
    reported(v)
    assert len(v.incidents) == 1, "known already"
    looked(v, {})
    assert incident.is_open, "one look without it may be chance"
    looked(v, {KEY: 0.25})
    looked(v, {})
    assert incident.is_open
    looked(v, {})
    assert incident.state is IncidentState.CLOSED
    assert incident.reason == "the rank is well again; it cost 1 s, 1.7% of the steps"
    assert v.job.generation == 1


def silenced(v: Virtual) -> Incident:
    """The incident of an agent that says nothing: the job goes on."""
    v.agents["node1"].frozen = True
    v.run_until(lambda: bool(v.incidents) and v.incidents[-1].live)
    return v.incidents[-1]


def test_slowness_that_outlasts_the_incident_it_was_evidence_in_gets_its_own() -> None:
    v = training()
    silence = silenced(v)
    assert reported(v) is silence, "evidence in it"
    looked(v, {KEY: 0.5})
    assert v.incidents == [silence]
    v.agents["node1"].frozen = False
    v.run_until(lambda: not silence.live)
    looked(v, {KEY: 0.5})
    (_, incident) = v.incidents
    assert (incident.cause.kind, incident.phase, incident.action) == (t.FindingKind.STRAGGLER, "ongoing", "alert")
    assert incident.cause.evidence["lost_s"] == 0.5
    looked(v, {KEY: 0.5})
    assert len(v.incidents) == 2


def test_slowness_that_ends_before_that_incident_gets_none() -> None:
    v = training()
    silence = silenced(v)
    reported(v)
    looked(v, {})
    v.agents["node1"].frozen = False
    v.run_until(lambda: not silence.live)
    looked(v, {KEY: 0.5})
    assert v.incidents == [silence]


def test_it_is_taken_up_by_the_next_run_of_the_controller_and_ends_with_the_job() -> None:
    v = training()
    reported(v)
    looked(v, {KEY: 0.5})
    v.restart_controller()
    v.run(3.0)
    (incident,) = [one for one in v.incidents if one.cause.kind is t.FindingKind.STRAGGLER]
    assert incident.is_open
    looked(v, {KEY: 0.5})
    assert incident.cause.evidence["lost_s"] == 1.0
    v.feed(StopRequested(0.0))
    v.run(5.0)
    assert incident.state is IncidentState.CLOSED
    assert incident.reason == "the job ended; it has cost 1 s, 5.0% of the steps so far"
