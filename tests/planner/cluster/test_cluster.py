"""Links and domains of clusters, by hand and against a pair-by-pair rule."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.planner.cluster.cluster import Cluster, Hop, Level, Node, Tier
from holdfast.planner.cluster.errors import ClusterError
from holdfast.planner.cluster.gpus import find, known, need

A100 = need("A100")
HOPS = {Level.NODE: Hop(3e-6, 1 / 300e9), Level.SWITCH: Hop(8e-6, 1 / 25e9), Level.POD: Hop(4e-6, 1 / 20e9),
        Level.CLUSTER: Hop(5e-6, 1 / 22e9)}  # fmt: skip


def cluster(nodes: int, switches: int, pods: int, devices: int = 2, rails: bool = False) -> Cluster:
    """Nodes are dealt to switches in rows, switches to pods."""
    made = tuple(
        Node(f"n{i}", devices, str(i * switches // nodes), str(i * pods // nodes), "infiniband", 1 / 25e9)
        for i in range(nodes)
    )
    return Cluster(A100, made, HOPS, rails)


def test_link_is_the_slowest_hop_and_all_latencies() -> None:
    one = cluster(8, 4, 2)
    assert one.link(0, 0).seconds(100) == 0
    near = one.link(0, 1)
    assert (near.kind, near.alpha, near.beta, near.nic) == (Level.NODE, 3e-6, 1 / 300e9, "")
    under = one.link(1, 2)
    assert (under.kind, under.alpha, under.beta, under.nic) == (Level.SWITCH, 8e-6, 1 / 25e9, "infiniband")
    across = one.link(0, 4)
    assert (across.kind, across.alpha, across.beta) == (Level.POD, pytest.approx(12e-6), 1 / 20e9)
    far = one.link(15, 0)
    assert (far.kind, far.alpha, far.beta) == (Level.CLUSTER, pytest.approx(17e-6), 1 / 20e9)
    assert far.seconds(2e9) == pytest.approx(17e-6 + 0.1)
    with pytest.raises(ValueError, match="not in a cluster of 16"):
        one.link(0, 16)


def test_rails_meet_without_the_switches_above() -> None:
    one = cluster(4, 1, 1, devices=4, rails=True)
    assert one.link(1, 5).kind is Level.RAIL
    assert one.link(1, 5).alpha == 8e-6
    assert one.link(1, 6).kind is Level.POD
    assert one.link(1, 6).alpha == pytest.approx(12e-6)


def test_unlike_nics_meet_by_ethernet() -> None:
    nodes = (
        Node("a", 1, nic="infiniband", beta=1e-11, ethernet_beta=1e-9),
        Node("b", 1, nic="roce", beta=1e-11, ethernet_beta=2e-9),
        Node("c", 1, nic="ethernet", beta=3e-9),
    )
    one = Cluster(A100, nodes, {**HOPS, Level.SWITCH: Hop(0, 1e-11)})
    assert (one.link(0, 1).beta, one.link(0, 1).nic) == (2e-9, "ethernet")
    assert one.link(0, 2).beta == 3e-9
    assert one.nic_types([0, 1]) == {"infiniband", "roce"}
    assert one.nic_types([2]) == {"ethernet"}
    with pytest.raises(ClusterError, match=r"NICs of types infiniband and roce .* and b has no Ethernet"):
        Cluster(A100, (nodes[0], Node("b", 1, nic="roce", beta=1e-11)), HOPS)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 3), st.integers(1, 4), st.booleans(), st.data())
def test_levels_by_their_definition(
    nodes: int, switches: int, pods: int, devices: int, rails: bool, data: st.DataObject
) -> None:
    one = cluster(nodes, max(switches, pods), pods, devices, rails)
    a, b = (data.draw(st.integers(0, one.world - 1)) for _ in range(2))
    link = one.link(a, b)
    shared = {name for name, groups in one.domains.items() if any({a, b} <= group for group in groups)}
    expected = Level.CLUSTER
    if "pod" in shared:
        expected = Level.POD
    if "switch" in shared and not rails:
        expected = Level.SWITCH
    if rails and "rail" in shared:
        expected = Level.RAIL
    if "node" in shared:
        expected = Level.NODE
    if a == b:
        expected = Level.SELF
    assert link.kind is expected
    assert link == one.link(b, a)
    for groups in one.domains.values():
        assert sorted(device for group in groups for device in group) == list(range(one.world))


def test_devices_have_their_tiers() -> None:
    one = Cluster(A100, (Node("a", 2),), HOPS, host=Tier(128e9, 20e9))
    assert [(d.id, d.node, d.place) for d in one.devices] == [(0, 0, 0), (1, 0, 1)]
    assert one.devices[1].tiers == {"device": Tier(80e9, 2.039e12), "host": Tier(128e9, 20e9)}


def test_what_links_lack_is_said() -> None:
    two = (Node("a", 1, "s1"), Node("b", 1, "s2"))
    with pytest.raises(ClusterError, match=r"no link at level pod: give \[links.pod\]"):
        Cluster(A100, two, {Level.SWITCH: Hop(0, 0)})
    with pytest.raises(ClusterError, match="no link within a node"):
        Cluster(A100, (Node("a", 2),), {})
    with pytest.raises(ClusterError, match="at least one node"):
        Cluster(A100, (), HOPS)
    with pytest.raises(ClusterError, match="neither can be negative"):
        Hop(-1, 0)


def test_12288_devices_take_no_time_of_their_square() -> None:
    began = time.process_time()
    one = cluster(1536, 48, 4, devices=8)
    assert len(one.devices) == 12288
    assert [one.link(i, 12287 - i).kind for i in range(0, 6000, 60)].count(Level.NODE) == 0
    assert sum(map(len, one.domains["rail"])) == 12288
    assert time.process_time() - began < 5  # all pairs would be 151 million


def test_table_of_gpus() -> None:
    assert len(known()) >= 10
    assert find("NVIDIA A100-SXM4-80GB") is A100
    assert find("NVIDIA H100 PCIe").flops == 756e12  # the special form before the plain one
    assert find("NVIDIA L40S").flops == 362e12
    assert find("Tesla K80") is None
    with pytest.raises(ClusterError, match=r"GPU 'K80' is not known: write one of H100 PCIe, .*or its flops"):
        need("K80")
