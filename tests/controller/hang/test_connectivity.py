"""No rank moves, every agent reaches the controller: only the node that is cut off from its peers is named."""

import pytest

from holdfast.controller.hang.connectivity import cut_off
from holdfast.wire import types as t
from tests.controller.support.virtual import Virtual, trains_again

NODES = [f"node{i}" for i in range(8)]


def probes(away: set[str], nodes: list[str] = NODES) -> dict[tuple[str, str], str]:
    """Each probes at the next three."""
    pairs = [(a, nodes[(i + step) % len(nodes)]) for i, a in enumerate(nodes) for step in (1, 2, 3)]
    return {pair: "unreachable" if away & set(pair) else "answers" for pair in pairs}


@pytest.mark.parametrize("away", [set(), {"node0"}, {"node3", "node4"}])
def test_nodes_that_no_node_reaches_and_that_reach_no_node(away: set[str]) -> None:
    assert cut_off(probes(away)) == sorted(away)


def test_a_frozen_agent_is_not_cut_off() -> None:
    heard = {pair: "frozen" if pair[1] == "node2" else behind for pair, behind in probes(set()).items()}
    assert cut_off(heard) == []


def test_a_node_is_not_blamed_by_its_own_report_alone_nor_by_peer_reports_alone() -> None:
    for side in (0, 1):
        heard = {pair: "unreachable" if pair[side] == "node2" else "answers" for pair in probes(set())}
        assert cut_off(heard) == []


def test_halves_that_do_not_reach_each_other_are_no_single_nodes_fault() -> None:
    left = set(NODES[:4])
    assert cut_off({(a, b): "answers" if (a in left) == (b in left) else "unreachable" for a, b in probes(set())}) == []
    assert cut_off(probes(set(NODES))) == []


def standing(spares: int, cut: set[str]) -> Virtual:
    v = Virtual(nodes=6 + spares, slots=1)
    v.submit(nnodes=6, nproc=1)
    v.run(5.0)
    v.behind = dict.fromkeys(v.agents, "answers")
    v.cut_off = cut
    v.reports = True
    v.sleep_worker(2)  # all ranks stall; by the graph it would be this one
    v.run(4.0)
    return v


def test_the_node_goes_and_a_spare_takes_its_place() -> None:
    v = standing(1, {"node4"})
    (incident,) = v.incidents
    assert (incident.cause.kind, incident.cause.subject) == (t.FindingKind.NODE_CUT_OFF, "node4")
    assert incident.action == "evict"
    assert v.job.nodes == ["node0", "node1", "node2", "node3", "node6", "node5"]
    assert not v.brain.c.history("node4").quarantined
    trains_again(v, 2)


def test_without_a_spare_it_starts_again_in_place() -> None:
    v = standing(0, {"node4"})
    assert (v.incidents[0].cause.kind, v.incidents[0].action) == (t.FindingKind.NODE_CUT_OFF, "restart")


def test_where_all_reach_each_other_the_worker_is_named() -> None:
    v = standing(1, set())
    assert (v.incidents[0].cause.kind, v.incidents[0].cause.subject) == (t.FindingKind.WORKER_HANG, "rank2")
