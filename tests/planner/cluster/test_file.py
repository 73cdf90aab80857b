"""Cluster files: what they mean, and one line for each error."""

from __future__ import annotations

import pytest

from holdfast.base.errors import UsageError
from holdfast.planner.cluster.cluster import Level
from holdfast.planner.cluster.file import parse

GOOD = """
gpu = "H100"
nodes = 7
gpus_per_node = 8
nodes_per_switch = 3
switches_per_pod = 2
nic = "infiniband"
[links.node]
alpha_us = 2
gb_per_s = 360
[links.switch]
gbit_per_s = 400
[links.pod]
alpha_us = 3
gbit_per_s = 200
[links.cluster]
gbit_per_s = 100
[host]
memory_bytes = 256e9
bytes_per_s = 25e9
"""


def test_a_file() -> None:
    one = parse(GOOD)
    assert one.world == 56  # a prime number of nodes is fine
    assert one.gpu.flops == 989.4e12
    assert one.link(0, 7).beta == pytest.approx(1 / 360e9)
    assert one.link(0, 7).alpha == pytest.approx(2e-6)
    assert [one.nodes[i].switch for i in range(7)] == ["0", "0", "0", "1", "1", "1", "2"]
    assert [one.nodes[i].pod for i in range(7)] == ["0"] * 6 + ["1"]
    assert one.link(0, 16).kind is Level.SWITCH
    assert one.link(0, 16).beta == pytest.approx(8 / 400e9)
    assert one.link(0, 24).beta == pytest.approx(8 / 200e9)
    assert one.link(0, 55).beta == pytest.approx(8 / 100e9)
    assert one.devices[0].tiers["host"].bytes == 256e9


def test_groups_of_unlike_nics() -> None:
    one = parse("""
gpu = "A100"
gpus_per_node = 8
ethernet_gbit_per_s = 3
[links.switch]
gbit_per_s = 200
[links.pod]
gbit_per_s = 200
[[group]]
nodes = 2
nic = "infiniband"
[[group]]
nodes = 1
nic = "roce"
gbit_per_s = 100
""")
    assert one.world == 24
    assert one.link(0, 8).beta == pytest.approx(8 / 200e9)
    assert one.link(0, 16).beta == pytest.approx(8 / 3e9)
    assert len(one.domains["nic_type"]) == 2


def test_cpus_that_share_cores() -> None:
    one = parse("""
nodes = 1
gpus_per_node = 8
cores = 2
[gpu]
name = "cpu"
flops = 5e10
memory_bytes = 1e9
memory_bytes_per_s = 1e10
[links.node]
gb_per_s = 1
""")
    assert (one.cores, one.world, one.gpu.name) == (2, 8, "cpu")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('gpu = "H100"', 'gpu = "H900"'), "GPU 'H900' is not known: write one of"),
        (('gpu = "H100"', ""), 'no gpu: write gpu = "H100"'),
        (('gpu = "H100"', "gpu = {flops = 1e12}"), r"\[gpu\] lacks memory_bytes"),
        (("[links.switch]\ngbit_per_s = 400", ""), r"no link at level switch: give \[links.switch\]"),
        (("[links.cluster]\ngbit_per_s = 100", ""), "no link at level cluster"),
        (("gb_per_s = 360", "gb_per_s = 360\ngbit_per_s = 1"), "needs one bandwidth"),
        (("gb_per_s = 360", ""), r"\[links.node\] needs one bandwidth"),
        (("gb_per_s = 360", "gb_per_s = 0"), "gb_per_s is 0: must be above 0"),
        (("gb_per_s = 360", 'gb_per_s = "fast"'), "is fast: must be a number"),
        (("nodes = 7", "nodes = 0"), "nodes is 0: must be a whole number from 1"),
        (("nodes = 7", "nodes = 7.5"), "nodes is 7.5"),
        (("nodes = 7", ""), "no nodes: write nodes = N"),
        (("nodes = 7", "nodes = 7\nnode = 7"), "'node', which is no key of it; did you mean nodes?"),
        (("[links.node]", "[links.rack]"), r"\[links\] has 'rack', which is no key"),
        (('nic = "infiniband"', 'nic = "myrinet"'), "nic is 'myrinet': write one of infiniband, roce, rdma, ethernet"),
        (("alpha_us = 2", "alpha_us = -2"), "alpha_us is -2: must be a number of 0 or more"),
        (("[host]", "[host]\nspeed = 1"), r"\[host\] has 'speed'"),
        (("gpus_per_node = 8", "gpus_per_node = 8\nrails = 3"), "rails is 3: write true or false"),
        (("nodes = 7", "nodes = ["), "is no TOML"),
        (('[links.node]\nalpha_us = 2\ngb_per_s = 360', 'links = 3'), "links must be a table|is no TOML"),
    ],
)  # fmt: skip
def test_one_line_for_each_error(change: tuple[str, str], said: str) -> None:
    assert change[0] in GOOD
    with pytest.raises(UsageError, match=said) as error:
        parse(GOOD.replace(*change), "c.toml")
    assert str(error.value).startswith("c.toml")
    assert "\n" not in str(error.value).strip()


def test_unlike_gpus() -> None:
    text = '[[group]]\ngpu="A100"\nnodes=1\ngpus_per_node=1\n[[group]]\ngpu="H100"\nnodes=1\ngpus_per_node=1\n'
    with pytest.raises(
        UsageError, match="group 2 has H100, group 1 has A100: unlike GPUs are not planned for together"
    ):
        parse(text)
