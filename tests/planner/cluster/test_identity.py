"""What agents' reports say of NICs, as agents of several versions write them."""

from __future__ import annotations

import pytest

from holdfast.facts.nics import nic_type
from holdfast.planner.cluster.errors import ClusterError
from holdfast.planner.cluster.identity import has_rails, nic_types, pod_of, rails_of
from holdfast.wire.types import Gpu, Identity, Nic

IB = Nic("mlx5_0", "rdma", 400_000_000_000, link_layer="InfiniBand")
ROCE = Nic("mlx5_1", "rdma", 400_000_000_000, link_layer="Ethernet")
OLDER = Nic("mlx5_0", "rdma", 400_000_000_000)
PLAIN = Nic("eth0", "ethernet", 25_000_000_000)


def test_a_port_that_is_down_gives_no_type() -> None:
    down = Nic("mlx5_9", "rdma", 400_000_000_000, state="DOWN", link_layer="Ethernet")
    assert nic_type([down, IB, PLAIN]) == nic_type([IB, down]) == "infiniband"
    assert nic_type([down]) == "roce"
    assert nic_type([PLAIN]) == "ethernet"


def test_agents_that_do_not_say_which_rdma_they_have_make_no_cluster_unlike() -> None:
    assert nic_types([[IB], [ROCE], [PLAIN]]) == ["infiniband", "roce", "ethernet"]
    assert nic_types([[IB], [OLDER], [PLAIN]]) == ["rdma", "rdma", "ethernet"]


def node(name: str, switch: str, gpus: int = 2) -> Identity:
    return Identity(name, name, "i", gpus=tuple(Gpu(i, f"u{i}", "A100", "") for i in range(gpus)), switch=switch)


def test_the_pod_of_a_switch_and_of_several() -> None:
    assert [pod_of(node("a", one)) for one in ("", "leaf7", "row/p3/leaf7", "p3/leaf0,p3/leaf1")] == [
        "", "", "row/p3", "p3",
    ]  # fmt: skip
    assert rails_of(node("a", "p3/leaf0")) == rails_of(node("a", "")) == ()
    assert rails_of(node("a", "p3/leaf0, p3/leaf1")) == ("p3/leaf0", "p3/leaf1")


def test_rails_are_what_all_nodes_have() -> None:
    assert not has_rails([])
    assert not has_rails([node("a", ""), node("b", "t")])
    assert has_rails([node("a", "l0,l1"), node("b", "l0,l1"), node("c", "l2,l3")])
    assert has_rails([node("a", "l0,l1,l2", 3)])


@pytest.mark.parametrize(
    ("switches", "said"),
    [
        (["l0,l1", "l0"], "b names one switch, a one for each GPU"),
        (["", "l0,l1"], "a names one switch, b one for each GPU"),
        (["l0,l1", "l0,l1,l2"], "b names 3 switches for 2 GPUs: one for all, or one for each"),
        (["l0,l1", "l2,l0"], "l0 is the switch of GPU 0 of a and of GPU 1 of b"),
        (["l0,l1", "l1,l0"], "l1 is the switch of GPU 1 of a and of GPU 0 of b"),
    ],
)
def test_rails_that_are_not_those_of_all(switches: list[str], said: str) -> None:
    with pytest.raises(ClusterError, match=said):
        has_rails([node(name, switch) for name, switch in zip("ab", switches, strict=True)])
