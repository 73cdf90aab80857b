"""Links of groups whose nodes have unlike NICs."""

from __future__ import annotations

import numpy as np

from holdfast.planner.cluster.cluster import Cluster, Hop, Level, Node
from holdfast.planner.cluster.gpus import need
from holdfast.planner.cost.collectives import Ring
from holdfast.planner.cost.groups import group_cost

HOPS = {Level.NODE: Hop(3e-6, 1 / 300e9), Level.SWITCH: Hop(8e-6, 1e-12)}
NODES = (
    Node("a", 1, nic="infiniband", beta=1e-11, ethernet_beta=1e-9),
    Node("b", 1, nic="infiniband", beta=2e-11, ethernet_beta=1e-9),
    Node("c", 1, nic="roce", beta=3e-11, ethernet_beta=2e-9),
)


def test_only_groups_of_unlike_nics_meet_by_ethernet() -> None:
    """The slower of both nodes: by its own NICs where the types are alike, by Ethernet where they are not."""
    known = Cluster(need("A100"), NODES, HOPS)
    assert group_cost(known, np.array([[0, 1]])).levels == (Ring(2, Hop(8e-6, 2e-11)),)
    assert group_cost(known, np.array([[1, 2]])).levels == (Ring(2, Hop(8e-6, 2e-9)),)
