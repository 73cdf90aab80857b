"""A silent node: what its peers find there tells a cut network from a dead host."""

import pytest

from holdfast import messages as msg
from tests.controller.virtual import Virtual


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
    asked = [send.node for send in v.sent if isinstance(send.command.order, msg.KnockAt)]
    assert asked == ["node0", "node2"]


def test_a_cut_that_heals_is_one_closed_incident() -> None:
    v = silenced("answers")
    v.agents["node1"].frozen = False
    v.run(3.0)
    (incident,) = v.incidents
    assert not incident.live
    assert v.job.generation == 1


def test_nobody_is_asked_where_nobody_can_tell() -> None:
    v = silenced("answers", nodes=2)
    assert [send.node for send in v.sent if isinstance(send.command.order, msg.KnockAt)] == ["node0"]
    alone = Virtual(nodes=1)
    alone.submit(nnodes=1)
    alone.run(5.0)
    alone.agents["node0"].frozen = True
    alone.run(1.6)
    assert kinds(alone) == ["node-silent"]
