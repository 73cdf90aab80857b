"""Which alerts are sent: none for short problems, one for lasting ones, and no storm."""

from holdfast.controller.alerts.decide import Decider, Message
from holdfast.controller.job.policy import Move
from holdfast.controller.state.model import Finding, Incident, IncidentState, Instant
from holdfast.wire import types as t

KIND = t.FindingKind


def incident(number: int, opened: float, kind: KIND = KIND.WORKER_HANG, severity: str = "critical") -> Incident:
    finding = Finding(kind, t.Severity(severity), "rank3", "rank 3 made no progress", opened, opened, "node1", 3)
    return Incident(f"i{number}", opened, [finding], action=Move.RESTART.value, reason="start again")


def alert(number: int, at: float, kind: KIND = KIND.LOG_RULE) -> Incident:
    one = incident(number, at, kind, "warning")
    one.action = Move.ALERT.value
    one.end(IncidentState.CLOSED, at)
    return one


def look(decider: Decider, now: float, *incidents: Incident) -> list[Message]:
    return decider.look(incidents, Instant(now, now))


def test_what_is_over_before_a_look_is_news_only() -> None:
    one = incident(1, 100.0)
    decider, curious = Decider(), Decider(least=t.Severity.INFO)
    assert look(decider, 101.0, one) == []
    one.end(IncidentState.CLOSED, 101.3)
    assert look(decider, 102.0, one) == []
    (news,) = look(curious, 102.0, one)
    assert (news.severity, news.title) == (t.Severity.INFO, "worker-hang on rank3: closed after 1.3 s")
    assert look(curious, 103.0, one) == []


def test_what_drags_on_is_reported_once_and_so_is_its_end() -> None:
    one, decider = incident(1, 100.0), Decider(patience=10.0)
    assert look(decider, 109.0, one) == []
    (reported,) = look(decider, 110.0, one)
    assert (reported.key, reported.severity, reported.closed) == ("i1", t.Severity.CRITICAL, None)
    assert reported.title == "worker-hang on rank3: in progress"
    assert "rank 3 made no progress" in reported.text
    assert look(decider, 200.0, one) == []
    one.source, one.step_resumed = "memory", 42
    one.end(IncidentState.CLOSED, 210.0)
    (over,) = look(decider, 211.0, one)
    assert (over.key, over.closed) == ("i1", 210.0)
    assert "training resumed at step 42 from memory" in over.text
    assert look(decider, 212.0, one) == []


def test_a_job_that_is_given_up_is_reported_at_once() -> None:
    one, decider = incident(1, 100.0), Decider()
    one.reason = "the same traceback 3 times"
    one.end(IncidentState.FAILED, 101.0)
    (reported,) = look(decider, 101.0, one)
    assert (reported.severity, reported.title) == (t.Severity.CRITICAL, "worker-hang on rank3: failed")
    assert "3 times" in reported.text


def test_a_storm_of_the_same_alert_is_one_message_and_a_count() -> None:
    decider = Decider(window=600.0)
    storm = [alert(n, 100.0 + n) for n in range(50)]
    assert len(look(decider, 150.0, *storm)) == 1
    (other,) = look(decider, 151.0, *storm, alert(60, 151.0, KIND.CLOCK_OFFSET))
    assert other.kind == "clock-offset"
    late = alert(70, 800.0)
    (reported,) = look(decider, 800.0, *storm, late)
    assert "49 more of this kind" in reported.text


def test_an_earlier_run_reported_its_own() -> None:
    over, live = alert(1, 100.0), incident(2, 100.0)
    decider = Decider()
    decider.forget([over, live])
    assert [one.key for one in look(decider, 200.0, over, live)] == ["i2"]
