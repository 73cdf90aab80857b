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
    gpu = cluster.gpu
    found: dict[str, float] = {}
    if Level.NODE in cluster.hops:
        found |= {"inside_alpha": cluster.hops[Level.NODE].alpha, "inside_beta": cluster.hops[Level.NODE].beta}
    if len(cluster.nodes) > 1:
        crossed = cluster.crossed(max(cluster.hops))
        nics = [node.beta for node in cluster.nodes]
        found |= {"between_alpha": sum(hop.alpha for hop in crossed),
                  "between_beta": max(*(hop.beta for hop in crossed), *nics)}  # fmt: skip
    return Machines(len(cluster.nodes), sizes.pop(), gpu.speed, limit_bytes or gpu.memory_bytes, **found)
