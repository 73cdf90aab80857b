"""On which nodes a job with declared sizes starts, and which of its nodes keep their places."""

from __future__ import annotations

import pytest

from holdfast.base.errors import UsageError
from holdfast.controller.cluster.ordering import placement_doc
from holdfast.controller.cluster.placement import natural, place
from holdfast.controller.state.job_size import check_size
from holdfast.controller.state.model import Job, JobSpec, Node
from holdfast.planner.placement.sites import SlowLinks
from holdfast.wire import messages as msg
from holdfast.wire import types as t

NONE = SlowLinks()


def node(name: str, switch: str, layer: str = "") -> Node:
    nics = (t.Nic("mlx5_0", "rdma", 200 * 10**9, link_layer=layer),) if layer else ()
    return Node(
        name, t.Identity(name, name, "i", switch=switch, slots=2, nics=nics), t.NodeState.HEALTHY, connected=True
    )


def spec(nodes: int, counts: tuple[int, ...] = (), **parallel: int) -> JobSpec:
    return JobSpec("j1", "j", msg.Program("x"), nodes, 1, node_counts=counts, parallel=parallel)


FOUR = [node("node0", "a"), node("node1", "b"), node("node2", "a"), node("node3", "b")]


def test_rings_are_under_one_switch_each() -> None:
    chosen, missing = place(spec(4, pp=2, dp=2), FOUR, [], NONE)
    assert missing == ""
    assert [sorted(chosen[:2]), sorted(chosen[2:])] in (
        [["node0", "node2"], ["node1", "node3"]],
        [["node1", "node3"], ["node0", "node2"]],
    )


def test_without_declared_sizes_names_decide() -> None:
    assert place(spec(4), FOUR, [], NONE)[0] == ["node0", "node1", "node2", "node3"]
    assert place(spec(4, pp=2, dp=2), FOUR, [])[0] == ["node0", "node1", "node2", "node3"]  # only: is there room


def test_nothing_gained_nothing_moved() -> None:
    alike = [node(f"node{i}", "a") for i in range(4)]
    assert place(spec(4, pp=2, dp=2), alike, [], NONE)[0] == [f"node{i}" for i in range(4)]
    before = ["node3", "node0", "node2", "node1"]
    assert place(spec(4, pp=2, dp=2), alike, before, NONE)[0] == before


def test_a_lost_node_is_replaced_by_the_nearest_and_the_rest_stays() -> None:
    before = ["node0", "node2", "node1", "node3"]
    others = [node("node4", "c"), node("node5", "b")]
    left = [one for one in FOUR if one.name != "node3"]
    # node4's name comes first, but node5 is where the rest of the ring is.
    assert place(spec(4, pp=2, dp=2), [*left, *others], before, NONE)[0] == ["node0", "node2", "node1", "node5"]


def test_a_spare_that_is_preferred_less_is_not_taken_for_its_place() -> None:
    before = ["node0", "node2", "node1", "node3"]
    lost = node("node3", "b")
    lost.state = t.NodeState.LOST
    left = [one for one in FOUR if one.name != "node3"]
    # node5 is under the switch where a node was just lost.
    chosen, _ = place(spec(4, pp=2, dp=2), [*left, lost, node("node4", "c"), node("node5", "b")], before, NONE)
    assert chosen == ["node0", "node2", "node1", "node4"]


def test_fewer_nodes_are_fewer_replicas() -> None:
    before = ["node0", "node2", "node1", "node3"]
    assert place(spec(4, (2, 3), pp=2, dp=2), FOUR[:2], before[:2], NONE)[0] == ["node0", "node1"]
    assert place(spec(4, (3,), pp=2, dp=2), FOUR[:3], [], NONE)[0] == ["node0", "node1", "node2"]  # 3 fit no pp of 2


def test_groups_keep_to_one_type_of_nic() -> None:
    mixed = [node("node0", "a", "InfiniBand"), node("node1", "a", "Ethernet"),
             node("node2", "b", "InfiniBand"), node("node3", "b", "Ethernet")]  # fmt: skip
    chosen, _ = place(spec(4, pp=2, dp=2), mixed, [], NONE)
    assert {frozenset(chosen[:2]), frozenset(chosen[2:])} == {
        frozenset({"node0", "node2"}), frozenset({"node1", "node3"})
    }  # fmt: skip


def test_a_slow_link_moves_as_few_as_it_takes() -> None:
    alike = [node(f"node{i}", "a") for i in range(6)]
    before = [f"node{i}" for i in range(6)]
    slow = SlowLinks(frozenset({("node0", "node1")}))
    chosen, _ = place(spec(6, pp=2, dp=3), alike, before, slow)
    assert chosen != before
    assert sum(one != other for one, other in zip(chosen, before, strict=True)) == 2
    assert place(spec(6, pp=2, dp=3), alike, chosen, slow)[0] == chosen
    doc = placement_doc(Job(spec(6, pp=2, dp=3), nodes=chosen), {n.name: n for n in alike}, before, slow)
    assert doc is not None
    assert doc["slow"] == 0.0
    assert doc["naive_slow"] > 0


def test_a_slow_link_moves_two_of_many_that_lie_badly() -> None:
    """64 nodes in the order of names round four switches: a better order is not worth that kept ones move."""
    before = [f"node{i}" for i in range(64)]
    nodes = [node(name, f"s{i % 4}") for i, name in enumerate(before)]
    assert place(spec(64, pp=4), nodes, before, NONE)[0] == before
    chosen, _ = place(spec(64, pp=4), nodes, before, SlowLinks(frozenset({("node0", "node1")})))
    assert sum(one != other for one, other in zip(chosen, before, strict=True)) == 2
    assert place(spec(64, pp=4), nodes, before, SlowLinks(frozenset({("node0", "node9")})))[0] == before


def test_a_node_that_just_came_moves_before_one_that_holds_ranks() -> None:
    before = [f"node{i}" for i in range(12)]
    left = [node(f"node{i}", "s") for i in range(13) if i != 7]
    chosen, _ = place(spec(12, pp=1), left, before, SlowLinks(frozenset({("node0", "node1")})))
    assert sum(one != other for one, other in zip(chosen, before, strict=True) if other != "node7") == 1


def test_a_node_that_goes_moves_none_for_a_slow_link_elsewhere() -> None:
    before = [f"node{i}" for i in range(16)]
    nodes = [node(name, f"s{i % 4}") for i, name in enumerate(before)]
    left = [*(one for one in nodes if one.name != "node5"), node("node16", "s9")]
    slow = SlowLinks(frozenset({("node2", "node9")}))
    chosen, _ = place(spec(16, pp=2), left, before, slow)
    assert chosen == [*before[:5], "node16", *before[6:]]


def test_what_is_shown_of_a_job() -> None:
    known = {one.name: one for one in FOUR}
    job = Job(spec(4, pp=2, dp=2), nodes=["node0", "node2", "node1", "node3"])
    doc = placement_doc(job, known, sorted(job.nodes, key=natural), NONE)
    assert doc is not None
    assert doc["parallel"] == {"pp": 2, "dp": 2, "tp": 1}
    levels = {one["level"]: (one["total"], one["naive"]) for one in doc["levels"]}
    assert levels == {"switch": pytest.approx((0.8, 0.2)), "pod": pytest.approx((0.2, 0.8))}  # dp 4 times pp
    assert placement_doc(Job(spec(4), nodes=job.nodes), known, job.nodes, NONE) is None
    assert placement_doc(job, {}, job.nodes, NONE) is None


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"pp": 3}, "4 workers are not pp 3 x tp 1: the product"),
        ({"pp": 2, "dp": 4}, "4 workers are not pp 2 x dp 4 x tp 1"),
        ({"pp": 0}, "parallel size pp is 0: must be 1 or more"),
        ({"ep": 2}, "parallel sizes are of pp, dp, tp, not of 'ep'"),
    ],
)
def test_sizes_that_cannot_be(sizes: dict[str, int], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_size(spec(4, **sizes))
