"""Ranks in blocks of like NICs, and which meshes keep their groups inside one block. Pure.

Holmes (Yang et al., ICPP 2024, arXiv 2312.03549): NICs of unlike types meet by Ethernet only, so tensor-parallel ranks
and replicas share a type, and only messages between stages cross. Nodes of one type are placed side by side, pp is the
slowest axis, and then a mesh does so exactly if dp x tp, the ranks of a pipeline rank, divides every type's devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from holdfast.planner.cluster.cluster import Cluster, Ints
from holdfast.planner.cost.groups import lines_of

_NAMED = 4
"""So many nodes of a block are named in messages."""


@dataclass(frozen=True, slots=True)
class Block:
    """Neighbouring ranks whose NICs are of one type."""

    nic: str
    first: int
    """Its first rank."""
    devices: int
    nodes: tuple[str, ...]

    @property
    def text(self) -> str:
        """As messages name it."""
        names = ", ".join(self.nodes[:_NAMED])
        if len(self.nodes) > _NAMED:
            names += f" and {len(self.nodes) - _NAMED:,} more to {self.nodes[-1]}"
        return f"ranks {self.first} to {self.first + self.devices - 1} on {names} ({self.nic})"


def is_unlike(cluster: Cluster) -> bool:
    """Whether there are two types of NIC, or more."""
    return len({node.nic for node in cluster.nodes}) > 1


def by_type(cluster: Cluster) -> Cluster:
    """The same nodes, those of one type side by side: types, and nodes of a type, in the order in which they come.

    Ranks sit on devices in the order of nodes, so this is the order in which a job's nodes are to be taken.
    """
    types = list(dict.fromkeys(node.nic for node in cluster.nodes))
    return replace(cluster, nodes=tuple(sorted(cluster.nodes, key=lambda node: types.index(node.nic))))


def blocks(cluster: Cluster, world: int = 0) -> tuple[Block, ...]:
    """Of the first `world` devices (0: all), in the order of ranks. A type whose nodes lie apart has several."""
    found: list[Block] = []
    first, world = 0, world or cluster.world
    for node in cluster.nodes:
        devices = min(node.devices, world - first)
        if devices <= 0:
            break
        if found and found[-1].nic == node.nic:
            last = found[-1]
            found[-1] = replace(last, devices=last.devices + devices, nodes=(*last.nodes, node.name))
        else:
            found.append(Block(node.nic, first, devices, (node.name,)))
        first += devices
    return tuple(found)


def keeps(cluster: Cluster, dp: int, tp: int, world: int = 0) -> bool:
    """Whether no group of replicas or of tp ranks spans types, in this order of nodes. `world` as in `blocks`."""
    return all(one.devices % (dp * tp) == 0 for one in blocks(cluster, world))


def spanning(cluster: Cluster, pp: int, dp: int, tp: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Axis and ranks of each group of dp or tp that spans types: what `keeps` must agree with."""
    types = _types(cluster)
    for axis in ("dp", "tp"):
        lines = lines_of(pp, dp, tp, axis)
        own = types[lines]
        for row in np.flatnonzero(own.min(axis=1) != own.max(axis=1)).tolist():
            yield axis, tuple(lines[row].tolist())


def types_by_stage(cluster: Cluster, pp: int, dp: int, tp: int) -> tuple[str, ...]:
    """The type of NIC of each pipeline rank. ValueError for a mesh with a group that spans types."""
    if not keeps(cluster, dp, tp, pp * dp * tp):
        raise ValueError(f"dp={dp} tp={tp}: {obstacle(cluster, pp * dp * tp)}")
    nodes = cluster.node_of[np.arange(pp) * dp * tp]
    return tuple(cluster.nodes[node].nic for node in nodes.tolist())


def obstacle(cluster: Cluster, world: int = 0) -> str:
    """In words: by how many ranks a pipeline rank can have, and why."""
    own = blocks(cluster, world)
    sizes = " and ".join(f"{one.devices:,} devices with {one.nic}" for one in own)
    most = gcd(*(one.devices for one in own))
    return f"replicas and tp ranks share a type of NIC, so dp x tp must divide {sizes}: {most} and what divides it"


def _types(cluster: Cluster) -> Ints:
    """By device, equal numbers for equal types."""
    names = sorted({node.nic for node in cluster.nodes})
    own: Ints = np.array([names.index(node.nic) for node in cluster.nodes], dtype=np.int64)
    return own[cluster.node_of]
