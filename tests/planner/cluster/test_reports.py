"""A cluster from identities and figures."""

from __future__ import annotations

import pytest

from holdfast.planner.cluster.cluster import Level
from holdfast.planner.cluster.errors import ClusterError
from holdfast.planner.cluster.file import parse
from holdfast.planner.cluster.reports import Figure, from_reports
from holdfast.planner.cluster.written import written
from holdfast.wire.types import Gpu, Identity, Nic


def node(
    name: str,
    switch: str = "s",
    gpus: int = 2,
    model: str = "NVIDIA A100-SXM4-80GB",
    speed: int = 200,
    kind: str = "rdma",
) -> Identity:
    nics = (
        *(Nic(f"mlx5_{i}", kind, speed * 10**9) for i in range(2)),
        Nic("eth0", "ethernet", 10 * 10**9),
        Nic("lo", "loopback"),
    )
    return Identity(
        name, name, "i", gpus=tuple(Gpu(i, f"u{i}", model, "") for i in range(gpus)), nics=nics, switch=switch
    )


def test_what_hardware_states() -> None:
    one = from_reports([node("a"), node("b"), node("c", "t")])
    assert one.world == 6
    assert one.link(0, 1).beta == 1 / 300e9
    assert one.link(0, 2).kind is Level.SWITCH
    assert one.link(0, 2).beta == pytest.approx(8 / 200e9)  # two NICs of 200 Gbit/s for two GPUs
    assert one.link(0, 4).kind is Level.POD
    assert one.nic_types([0]) == {"rdma"}


def test_without_figures_each_node_has_what_its_nics_state() -> None:
    """Two NICs for two GPUs; of two nodes the slower one counts."""
    nodes = [node("a", speed=400), node("b", speed=400), node("c", speed=200), node("d", "t", speed=100)]
    found = from_reports(nodes)
    for one in (found, parse(written(found))):
        betas = [one.link(0, 2).beta, one.link(0, 4).beta, one.link(4, 6).beta]
        assert betas == pytest.approx([8 / 400e9, 8 / 200e9, 8 / 100e9])
        assert [node.beta for node in one.nodes] == pytest.approx([8 / n for n in (400e9, 400e9, 200e9, 100e9)])
    for known in (from_reports(nodes, across=20e9), from_reports(nodes, [Figure("a", "all-reduce", "busbw", 20e9)])):
        assert {node.beta for node in known.nodes} == {1 / 20e9}
        assert known.link(0, 6).beta == 1 / 20e9


def test_slow_pairs_count_beside_what_nics_state() -> None:
    """b's pairs carry a quarter of the median, and the median NIC 200 Gbit/s; d's carry half, as its NICs state."""
    pairs = {"a": 20e9, "b": 5e9, "c": 20e9, "d": 10e9, "e": 20e9}
    nodes = [node(name, speed=100 if name == "d" else 200) for name in pairs]
    one = from_reports(nodes, [Figure(name, "pair", "bandwidth", rate) for name, rate in pairs.items()])
    assert [node.beta for node in one.nodes] == pytest.approx([8 / n for n in (200e9, 50e9, 200e9, 100e9, 200e9)])
    assert one.link(0, 4).beta == pytest.approx(8 / 200e9)


def test_measured_figures_calibrate() -> None:
    figures = [Figure("a", "all-to-all", "busbw", 200e9), Figure("b", "all-to-all", "busbw", 240e9),
               Figure("a", "all-reduce", "busbw", 20e9), Figure("a", "pair", "round_trip", 30e-6),
               Figure("a", "pair", "bandwidth", 20e9), Figure("b", "pair", "bandwidth", 20e9),
               Figure("c", "pair", "bandwidth", 10e9), Figure("c", "pair", "bandwidth", 4e9),
               Figure("c", "all-reduce", "busbw", float("nan"))]  # fmt: skip
    one = from_reports([node("a"), node("b"), node("c")], figures)
    assert one.link(0, 1).beta == pytest.approx(1 / 220e9)
    assert one.link(0, 2).beta == pytest.approx(1 / 20e9)
    assert one.link(0, 2).alpha == pytest.approx(15e-6)
    # c's pairs carry 10e9, the median of all is 15e9 or 20e9: it is that much slower.
    assert one.link(0, 4).beta == pytest.approx(1 / 20e9 * 15e9 / 10e9)


def test_no_speed_of_a_nic() -> None:
    with pytest.raises(ClusterError, match="b reports no speed of its NICs: run holdfast diagnose"):
        from_reports([node("a"), Identity("b", "b", "i", gpus=(Gpu(0, "u", "A100", ""),))])
    measured = [Figure("a", "all-reduce", "busbw", 20e9)]
    lone = Identity("b", "b", "i", gpus=(Gpu(0, "u", "A100", ""),))
    assert from_reports([lone, Identity("c", "c", "i", gpus=lone.gpus)], measured).link(0, 1).beta == 1 / 20e9


def test_rdma_and_ethernet_meet_by_ethernet() -> None:
    one = from_reports(
        [node("a"), Identity("b", "b", "i", gpus=(Gpu(0, "u", "A100", ""),), nics=(Nic("eth0", "ethernet", 10**10),))]
    )
    assert one.link(0, 2).nic == "ethernet"
    assert one.link(0, 2).beta == pytest.approx(8 / 5e9)  # 10 Gbit/s for two GPUs


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([], "no node has reported"),
        ([node("a", gpus=0)], "a reports no GPU"),
        ([node("a"), node("b", model="NVIDIA H100 80GB HBM3")], "a has NVIDIA A100.*b has NVIDIA H100.*unlike GPUs"),
        ([node("a", model="Tesla K80")], "'Tesla K80' is not known"),
    ],
)
def test_one_line_for_each_error(nodes: list[Identity], said: str) -> None:
    with pytest.raises(ClusterError, match=said):
        from_reports(nodes)


RAILS = "p/leaf0,p/leaf1"


def test_rails_are_of_one_place_in_all_nodes() -> None:
    """Two GPUs a node; a and b are at the same switches, c at others."""
    nodes = [node("a", RAILS), node("b", RAILS), node("c", "q/leaf0,q/leaf1")]
    one = from_reports(nodes)
    for found in (one, parse(written(one))):
        assert found.has_rails
        kinds = {pair: found.link(*pair).kind for pair in ((0, 1), (0, 2), (1, 3), (0, 3), (0, 4))}
        assert kinds == {(0, 1): Level.NODE, (0, 2): Level.RAIL, (1, 3): Level.RAIL, (0, 3): Level.POD,
                         (0, 4): Level.CLUSTER}  # fmt: skip
        # Two hops of a rail's switch, or one more through the pod: each adds its latency.
        assert found.link(0, 3).alpha - found.link(0, 2).alpha == pytest.approx(found.hops[Level.POD].alpha)
    # Other switches of the same pod are no rails of these.
    assert from_reports([node("a", RAILS), node("b", "p/leaf2,p/leaf3")]).link(0, 2).kind is Level.CLUSTER
    assert not from_reports([node("a"), node("b")]).has_rails


def test_blanks_around_the_names_of_switches() -> None:
    one = from_reports([node("a", "p/leaf0, p/leaf1"), node("b", "p/leaf0 ,p/leaf1")])
    assert one.link(0, 2).kind is Level.RAIL
