"""Which links a layout's groups cross: the levels of tp, dp and pp groups on a cluster. Pure.

Rings go through a group in the order of ranks. Groups of one axis are compared as arrays, without a loop over ranks;
the slowest one stands for all, since all wait for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.planner.cluster.cluster import Cluster, Hop, Ints, Level
from holdfast.planner.cost.collectives import Collective, Ring, hierarchical

_SAMPLE = float(1 << 20)
"""Bytes by which groups are compared."""


@dataclass(frozen=True, slots=True)
class GroupCost:
    """The groups of one axis of a mesh."""

    size: int
    levels: tuple[Ring, ...]
    """Of the slowest group: its part in one node, and its nodes. Together as many devices as the group has."""
    crossing: Mapping[Level, float]
    """Of the links from each rank to the next in its ring, over all groups: the share of each level."""

    def seconds(self, op: Collective, num_bytes: float) -> float:
        return hierarchical(op, num_bytes, self.levels)


def lines_of(pp: int, dp: int, tp: int, axis: str) -> Ints:
    """The groups of "tp", "dp", "pp" or "world", one a row of ranks."""
    ranks = np.arange(pp * dp * tp, dtype=np.int64).reshape(pp, dp, tp)
    if axis == "world":
        return ranks.reshape(1, -1)
    moved = np.moveaxis(ranks, ("pp", "dp", "tp").index(axis), -1)
    return np.ascontiguousarray(moved.reshape(-1, moved.shape[-1]))


def replica_lines(pp: int, dp: int, tp: int, pipes: Sequence[Sequence[int]]) -> Ints:
    """The ranks that hold a stage, in all of its pipes, one stage and place in tp a row. `pipes`: ranks of stages."""
    ranks = np.arange(pp * dp * tp, dtype=np.int64).reshape(pp, dp, tp)
    held = np.sort(np.array(pipes, dtype=np.int64), axis=0)  # in the order of ranks, as all groups
    rows = ranks[held.T].transpose(0, 3, 1, 2)  # stage, tp, pipe, dp
    return np.ascontiguousarray(rows.reshape(held.shape[1] * tp, -1))


def group_cost(cluster: Cluster, lines: Ints) -> GroupCost:
    """Groups of equal size, one a row of ranks; rank i is device i."""
    size = lines.shape[1]
    if size == 1:
        return GroupCost(1, (), {})
    levels = cluster.levels(lines, np.roll(lines, -1, axis=1))
    nodes = np.sort(cluster.node_of[lines], axis=1)
    spread = 1 + (np.diff(nodes, axis=1) != 0).sum(axis=1)
    is_even, top = _is_even(nodes, spread), levels.max(axis=1)
    if cluster.has_rails:
        # Nodes of an even group meet device by device, each with those of its own place.
        pods = cluster.pod_of[lines]
        top = np.where(is_even & (spread < size) & (spread > 1) & (pods.min(axis=1) == pods.max(axis=1)),
                       int(Level.RAIL), top)  # fmt: skip
    rows = zip(spread.tolist(), is_even.tolist(), top.tolist(), _betas(cluster, nodes).tolist(), strict=True)
    kinds = [_levels(cluster, size, *kind) for kind in sorted(set(rows))]
    slowest = max(kinds, key=lambda one: hierarchical(Collective.ALL_REDUCE, _SAMPLE, one))
    return GroupCost(size, slowest, _shares(levels))


def message_cost(cluster: Cluster, lines: Ints) -> tuple[Hop, Mapping[Level, float]]:
    """The slowest link from a rank to the next one in its row, and the shares of the levels."""
    ones, nexts = lines[:, :-1], lines[:, 1:]
    if lines.shape[1] == 1:
        return Hop(0.0, 0.0), {}
    levels = cluster.levels(ones, nexts)
    ends = np.sort(np.stack([cluster.node_of[ones].ravel(), cluster.node_of[nexts].ravel()], axis=1), axis=1)
    flat, betas = levels.ravel(), _betas(cluster, ends)
    # Of one level the slowest device's hop is the slowest.
    hops = [_hop(cluster, Level(level), float(betas[flat == level].max())) for level in np.unique(flat).tolist()]
    return max(hops, key=lambda hop: hop.alpha + _SAMPLE * hop.beta), _shares(levels)


def _shares(levels: Ints) -> dict[Level, float]:
    counts = np.bincount(levels.ravel(), minlength=len(Level)).tolist()
    return {level: counts[level] / levels.size for level in Level if counts[level]}


def _is_even(nodes: Ints, spread: Ints) -> npt.NDArray[np.bool_]:
    """Whether each node of a group has as many of its ranks as the others. `nodes` sorted in each row."""
    found = np.zeros(len(nodes), dtype=bool)
    for count in np.unique(spread).tolist():
        if nodes.shape[1] % count == 0:
            rows = np.flatnonzero(spread == count)
            parts = nodes[rows].reshape(len(rows), count, -1)
            found[rows] = (parts == parts[:, :, :1]).all(axis=(1, 2))
    return found


def _betas(cluster: Cluster, nodes: Ints) -> npt.NDArray[np.float64]:
    """Of each row of nodes: the slowest device's share of NICs, by Ethernet where the types differ."""
    own, other, numbers = cluster.nic_betas
    if not numbers.any():  # NICs of one type
        return np.asarray(own[nodes].max(axis=1))
    types = numbers[nodes]
    is_mixed = types.min(axis=1) != types.max(axis=1)
    found: npt.NDArray[np.float64] = np.where(is_mixed[:, None], other[nodes], own[nodes]).max(axis=1)
    return found


def _hop(cluster: Cluster, level: Level, beta: float) -> Hop:
    """Of a message between devices of one level, whose NICs are so fast."""
    if level <= Level.NODE:
        return cluster.hops[Level.NODE] if level is Level.NODE else Hop(0.0, 0.0)
    crossed = cluster.crossed(level)
    return Hop(sum(one.alpha for one in crossed), max(beta, *(one.beta for one in crossed)))


def _levels(cluster: Cluster, size: int, nodes: int, is_even: bool, top: int, beta: float) -> tuple[Ring, ...]:
    """Within the node, and over nodes. A group that is not spread evenly is one ring over its slowest link."""
    if nodes == 1:
        return (Ring(size, cluster.hops[Level.NODE]),)
    over = _hop(cluster, Level(top), beta)
    if not is_even:
        return (Ring(size, over),)
    within = (Ring(size // nodes, cluster.hops[Level.NODE]),) if size > nodes else ()
    return (*within, Ring(nodes, over))
