"""The network of a cluster that is known by its links: switches as MegaScale has them. Pure."""

from __future__ import annotations

from holdfast.planner.cluster.cluster import Cluster, Level
from holdfast.planner.network.clos import Clos
from holdfast.planner.network.errors import NetworkError


def clos_of(cluster: Cluster, ports: int = 64, split: int = 2) -> Clos:
    """A NIC for each device, a rail for each place in a node. What `pod` links have less than `switch` links is
    oversubscription. NetworkError for nodes of unlike size or without a link between nodes."""
    sizes = {node.devices for node in cluster.nodes}
    if len(sizes) > 1:
        raise NetworkError(f"nodes have {min(sizes)} to {max(sizes)} devices: a network of rails needs equal ones")
    hop = cluster.hops.get(Level.SWITCH)
    if hop is None or not hop.beta:
        raise NetworkError("the cluster has no link between nodes: give [links.switch] gbit_per_s")
    above = cluster.hops.get(Level.POD)
    share = max(1.0, above.beta / hop.beta) if above is not None else 1.0
    return Clos(cluster.world, ports, split, sizes.pop(), split / hop.beta, share)
