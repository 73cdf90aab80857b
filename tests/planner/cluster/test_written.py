"""A cluster that is written and parsed again is the same, but for the names of its nodes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.planner.cluster.cluster import Cluster, Level
from holdfast.planner.cluster.errors import ClusterError
from holdfast.planner.cluster.file import parse
from holdfast.planner.cluster.gpus import need
from holdfast.planner.cluster.reports import Figure, from_reports
from holdfast.planner.cluster.written import written
from holdfast.wire.types import Gpu, Identity, Nic


def report(name: str, switch: str, layer: str) -> Identity:
    nics = (Nic("mlx5_0", "rdma", 400 * 10**9, link_layer=layer), Nic("eth0", "ethernet", 25 * 10**9))
    gpus = tuple(Gpu(i, f"u{i}", "NVIDIA H100 80GB HBM3", "") for i in range(4))
    return Identity(name, name, "i", gpus=gpus, nics=nics, switch=switch)


def same(one: Cluster, other: Cluster) -> bool:
    assert one.gpu == other.gpu
    assert (one.has_rails, one.cores, one.host) == (other.has_rails, other.cores, other.host)
    assert one.world == other.world
    for a in range(one.world):
        for b in range(one.world):
            mine, found = one.link(a, b), other.link(a, b)
            assert (found.kind, found.nic) == (mine.kind, mine.nic)
            assert (found.alpha, found.beta) == pytest.approx((mine.alpha, mine.beta))
    return True


def test_irregular_switches_pods_and_nics() -> None:
    nodes = [report("n1", "p1/a", "InfiniBand"), report("n2", "p1/a", "InfiniBand"), report("n3", "p1/b", "InfiniBand"),
             report("n4", "p2/a", "InfiniBand"), report("n5", "p2/a", "Ethernet")]  # fmt: skip
    known = from_reports(nodes, [Figure("n2", "pair", "bandwidth", 10e9), Figure("n1", "pair", "bandwidth", 20e9)])
    assert {node.nic for node in known.nodes} == {"infiniband", "roce"}
    assert known.link(0, 4).kind is Level.SWITCH
    assert known.link(0, 8).kind is Level.POD
    assert known.link(0, 12).kind is Level.CLUSTER  # a of pod p2 is another switch than a of p1
    assert known.link(12, 16).nic == "ethernet"
    assert same(known, parse(written(known)))


def test_another_gpu_and_one_node() -> None:
    known = from_reports([report("n1", "", "InfiniBand")])
    other = replace(known, gpu=replace(need("H100"), name="own", reached=0.5), cores=2)
    assert same(other, parse(written(other)))


def test_a_given_speed_stands_for_what_is_not_reported() -> None:
    silent = [replace(report(name, "a", ""), nics=()) for name in ("n1", "n2")]
    with pytest.raises(ClusterError, match="n1 reports no speed of its NICs: run holdfast diagnose, give --link-gbit"):
        from_reports(silent)
    assert from_reports(silent, (), 50e9).link(0, 4).beta == 1 / 50e9


@pytest.mark.parametrize("key", ["switch", "pod"])
def test_a_name_that_is_none(key: str) -> None:
    text = f'gpu = "H100"\n[links.switch]\ngbit_per_s = 1\n[[group]]\nnodes = 1\ngpus_per_node = 1\n{key} = 3\n'
    with pytest.raises(ClusterError, match=f"{key} is 3: must be a name in quotes"):
        parse(text)
