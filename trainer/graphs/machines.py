"""A planner's cluster as Alpa's planners take it: nodes alike, one link within them and one between. Pure."""

from __future__ import annotations

from holdfast.planner.cluster.cluster import Cluster, Level
from holdfast.trainer.graphs.cuts import Machines
from holdfast.trainer.settings.errors import ConfigError


def machines_of(cluster: Cluster, limit_bytes: float = 0.0) -> Machines:
    """The slowest link between nodes stands for all. `limit_bytes`: of a device, 0: all.

    ConfigError for unlike nodes.
    """
    sizes = {node.devices for node in cluster.nodes}
    if len(sizes) > 1:
        raise ConfigError(f"nodes have {min(sizes)} to {max(sizes)} devices: --stages alpa takes nodes alike")
    nics = sorted({node.nic for node in cluster.nodes})
    if len(nics) > 1:
        raise ConfigError(f"nodes have NICs of unlike types, {', '.join(nics)}: --stages alpa takes nodes alike")
    if len({node.speed for node in cluster.nodes}) > 1:
        raise ConfigError("nodes differ in speed: --stages alpa takes nodes alike")
    gpu = cluster.gpu
    found: dict[str, float] = {}
    if Level.NODE in cluster.hops:
        hop = cluster.hops[Level.NODE]
        found |= {"inside_alpha": hop.alpha, "inside_beta": hop.beta}
        found |= {"between_alpha": hop.alpha, "between_beta": hop.beta}  # if there is one node
    if len(cluster.nodes) > 1:
        crossed = cluster.crossed(max(cluster.hops))
        betas = [hop.beta for hop in crossed] + [node.beta for node in cluster.nodes]
        found |= {"between_alpha": sum(hop.alpha for hop in crossed), "between_beta": max(betas)}
    return Machines(len(cluster.nodes), sizes.pop(), gpu.speed, limit_bytes or gpu.memory_bytes, **found)
