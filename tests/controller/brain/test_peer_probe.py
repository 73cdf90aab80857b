"""A silent node: the probes of its peers distinguish a cut network from a dead host."""

import pytest

from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.controller.support.virtual import Virtual


def silenced(behind: str, nodes: int = 3, seconds: float = 1.6) -> Virtual:
    v = Virtual(nodes=nodes)
    v.submit(nnodes=2)
    v.run(5.0)
    v.behind["node1"] = behind
    v.agents["node1"].frozen = True
    v.run(seconds)
    return v


def kinds(v: Virtual) -> list[str]:
    return [finding.kind.value for incident in v.incidents for finding in incident.findings]


@pytest.mark.parametrize(
    ("behind", "also"),
    [("answers", ["node-partitioned"]), ("unreachable", ["node-unreachable"]), ("frozen", []), ("refused", [])],
)
def test_what_peers_find_joins_the_incident_as_evidence(behind: str, also: list[str]) -> None:
    v = silenced(behind)
    assert kinds(v) == ["node-silent", *also]
    (incident,) = v.incidents
    assert (incident.cause.kind, incident.cause.node) == ("node-silent", "node1")
    asked = [send.node for send in v.sent if isinstance(send.command.order, msg.ProbePeer)]
    assert asked == ["node0", "node2"]


def test_a_cut_that_heals_is_one_closed_incident() -> None:
    v = silenced("answers")
    v.agents["node1"].frozen = False
    v.run(3.0)
    (incident,) = v.incidents
    assert not incident.live
    assert v.job.generation == 1


def test_no_node_is_asked_where_none_can_know() -> None:
    v = silenced("answers", nodes=2)
    assert [send.node for send in v.sent if isinstance(send.command.order, msg.ProbePeer)] == ["node0"]
    alone = Virtual(nodes=1)
    alone.submit(nnodes=1)
    alone.run(5.0)
    alone.agents["node0"].frozen = True
    alone.run(1.6)
    assert kinds(alone) == ["node-silent"]


def unplugged() -> Virtual:
    """A host of three is gone without a word; its stream stays open, as a kernel notices that late."""
    v = silenced("unreachable", seconds=0.0)
    for worker in v.agents["node1"].workers.values():
        worker.running = False
    answer = v._deliver
    v._deliver = lambda send: None if send.node == "node1" else answer(send)  # type: ignore[method-assign]
    return v


def test_no_answer_is_awaited_of_a_node_that_is_given_up() -> None:
    v = unplugged()
    v.run(9.0)
    assert v.job.nodes == ["node0", "node2"]
    (incident,) = v.incidents
    assert (incident.cause.kind, incident.action, incident.live) == ("node-silent", "evict", False)
    stops = [s for s in v.sent if s.node == "node1" and isinstance(s.command.order, msg.StopWorkers)]
    assert stops  # should the order reach it later


def test_one_whose_stream_breaks_after_it_was_given_up_is_not_waited_for_again() -> None:
    v = unplugged()
    v.behind["node2"] = "answers"
    while v.brain.c.nodes["node1"].state is not t.NodeState.LOST:
        v.run(0.05)
    v.kill_agent("node1")
    v.run(2.0)
    assert v.job.nodes == ["node0", "node2"]


def test_one_that_speaks_again_while_the_others_end_has_to_end_its_own_first() -> None:
    v = Virtual(nodes=2)
    v.submit(nnodes=2)
    v.run(5.0)
    v.agents["node1"].frozen = True
    answer, silent = v._deliver, {"node1"}
    v._deliver = lambda send: None if send.node in silent else answer(send)  # type: ignore[method-assign]
    for worker in v.agents["node1"].workers.values():
        worker.stopped_at = v.now  # no rank trains without them
    while v.brain.c.nodes["node1"].state is not t.NodeState.LOST:
        v.run(0.05)
    v.run(1.0)
    assert v.job.generation == 1
    silent.clear()
    v.agents["node1"].frozen = False
    v.run(3.0)
    assert (v.job.generation, v.job.nodes) == (2, ["node0", "node1"])
