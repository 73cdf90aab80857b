"""A store that fails is reported once, whichever node reports it, until it can be written again."""

from holdfast.controller.state.events import Action, EventSeen, Record, StopRequested
from holdfast.controller.state.incidents import Incident, IncidentState
from holdfast.wire import types as t
from tests.controller.support.virtual import Virtual, training, trains_again


def fails(v: Virtual, node: str) -> list[Action]:
    v.brain.c.nodes[node].host["checkpoint_failing"] = 1.0
    text = "checkpoints of job j1 cannot be stored: No space left on device; retrying, the snapshots wait in memory"
    notice = t.AgentNotice(int(v.instant.wall * 1e9), "checkpoint-store", t.Severity.WARNING, text)
    return v.feed(EventSeen(node, notice))


def works(v: Virtual, node: str) -> None:
    there = v.brain.c.nodes[node]
    there.host["checkpoint_failing"], there.host_at = 0.0, v.now


def of_the_store(v: Virtual) -> list[Incident]:
    return [one for one in v.incidents if one.cause.kind is t.FindingKind.STORE]


def test_it_is_one_incident_for_all_nodes_and_its_end_is_reported() -> None:
    v = training()
    assert any(isinstance(one, Record) for one in fails(v, "node0"))
    v.run(1.0)
    assert fails(v, "node1") == []
    v.run(20.0)
    (incident,) = of_the_store(v)
    assert (incident.state, incident.action, incident.cause.subject) == (IncidentState.OPEN, "alert", "store")
    assert "No space left on device" in incident.cause.text
    works(v, "node0")
    v.run(10.0)
    assert incident.is_open
    works(v, "node1")
    v.run(4.0)
    assert incident.state is IncidentState.CLOSED
    assert incident.closed is not None
    assert "can be stored again, after 3" in incident.reason
    assert v.job.generation == 1
    fails(v, "node0")
    assert len(of_the_store(v)) == 2


def test_faults_of_the_job_are_mended_meanwhile() -> None:
    v = training()
    fails(v, "node0")
    v.exit(5, signal=9)
    trains_again(v, 2)
    (store,) = of_the_store(v)
    assert store.is_open
    (other,) = [one for one in v.incidents if one is not store]
    assert (other.cause.kind, other.state) == (t.FindingKind.WORKER_KILLED, IncidentState.CLOSED)


def test_a_node_that_is_gone_does_not_keep_it_open() -> None:
    v = training(nodes=3)
    fails(v, "node1")
    v.lose_node("node1")
    v.run(30.0)
    assert not of_the_store(v)[0].is_open


def test_a_node_that_says_nothing_has_not_written() -> None:
    v = training()
    fails(v, "node0")
    v.brain.c.nodes["node0"].host.clear()  # another daemon, which has not tried yet
    v.run(10.0)
    (incident,) = of_the_store(v)
    assert incident.is_open
    v.kill_agent("node0")
    v.run(5.0)
    assert incident.is_open
    v.join("node0")
    v.run(1.0)
    works(v, "node0")
    v.run(4.0)
    assert not incident.is_open


def test_a_gauge_from_before_the_failure_is_no_success() -> None:
    v = training()
    works(v, "node0")
    v.run(1.0)
    text = "checkpoints of job j1 cannot be stored: No space left on device"
    notice = t.AgentNotice(int(v.instant.wall * 1e9), "checkpoint-store", t.Severity.WARNING, text)
    v.feed(EventSeen("node0", notice))
    v.run(10.0)
    assert of_the_store(v)[0].is_open


def test_it_ends_with_the_job() -> None:
    v = training()
    fails(v, "node0")
    v.feed(StopRequested(1.0))
    v.run(10.0)
    (incident,) = of_the_store(v)
    assert not incident.is_open
    assert "the job ended, after" in incident.reason


def test_a_new_controller_knows_of_it() -> None:
    v = training()
    fails(v, "node0")
    v.restart_controller()
    v.run(10.0)
    (incident,) = of_the_store(v)
    assert incident.is_open  # no node has reported yet that it works
    for node in ("node0", "node1"):
        works(v, node)
    v.run(4.0)
    assert not incident.is_open
