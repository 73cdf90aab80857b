"""A node with a full disk: the finding reports it, and a job that ends because the disk is full goes on elsewhere."""

from holdfast.controller.state.events import EventSeen, FrameSeen
from holdfast.controller.state.model import JobStatus
from holdfast.wire import types as t
from tests.controller.support.virtual import Virtual, training

FULL = (
    'Traceback (most recent call last):\n  File "train.py", line 9, in save\n    file.write(data)\n'
    "OSError: [Errno 28] No space left on device: '/data/x'"
)


def says_full(v: Virtual, node: str) -> None:
    text = "cannot write /s/logs/j1/g1/rank4.out: No space left on device; workers continue"
    v.feed(EventSeen(node, t.AgentNotice(int(v.instant.wall * 1e9), "disk-full", t.Severity.CRITICAL, text)))


def test_a_full_state_folder_is_reported_and_ends_nothing() -> None:
    v = training()
    says_full(v, "node1")
    v.run(3.0)
    says_full(v, "node1")
    (incident,) = v.incidents
    assert (incident.cause.kind, incident.cause.subject) == (t.FindingKind.DISK_FULL, "node1")
    assert incident.action == "alert"
    assert (v.job.state, v.job.generation) == (JobStatus.RUNNING, 1)


def test_a_worker_that_ends_on_a_full_disk_leaves_the_node() -> None:
    v = training(nodes=3)
    says_full(v, "node1")
    v.exit(5, code=1, error=FULL)
    v.run(3.0)
    assert v.job.state is JobStatus.RUNNING
    assert v.job.nodes == ["node0", "node2"]
    incident = v.incidents[-1]
    assert (incident.cause.kind, incident.cause.subject) == (t.FindingKind.DISK_FULL, "node1")
    assert "No space left on device" in incident.cause.text
    assert incident.action == "evict"
    assert v.brain.c.history("node1").node_failures == []


def test_the_gauges_say_it_too() -> None:
    v = training(nodes=3)
    host = {"disk_free_bytes/data": 0.0, "disk_total_bytes/data": 1e12}
    v.feed(FrameSeen("node1", t.Frame(1, int(v.instant.wall * 1e9), int(v.now * 1e9), host=host)))
    v.exit(5, code=1, error=FULL)
    v.run(3.0)
    assert v.job.nodes == ["node0", "node2"]


def test_where_no_disk_is_full_it_is_a_store_of_the_programs_own() -> None:
    v = training(nodes=3)
    v.exit(5, code=1, error=FULL)
    v.run(3.0)
    assert v.job.nodes == ["node0", "node1"]
    assert v.incidents[-1].cause.kind is t.FindingKind.WORKER_EXCEPTION


def test_without_another_node_it_starts_again_in_place() -> None:
    v = training()
    says_full(v, "node1")
    v.exit(5, code=1, error=FULL)
    v.run(3.0)
    assert (v.job.state, v.job.generation) == (JobStatus.RUNNING, 2)
    assert v.incidents[-1].cause.kind is t.FindingKind.DISK_FULL
