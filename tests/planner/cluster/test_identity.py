"""What agents' reports say of NICs, as agents of several versions write them."""

from __future__ import annotations

from holdfast.facts.nics import nic_type
from holdfast.planner.cluster.identity import nic_types
from holdfast.wire.types import Nic

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
