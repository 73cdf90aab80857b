"""What each node of a job sends and receives in a step, by the links of its plan. Pure.

Rank i sits on node i // per_node, as everywhere in this package; bytes inside a node are on no NIC.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from holdfast.base.errors import UsageError
from holdfast.plan.plan import Plan
from holdfast.plan.planned_traffic import PlannedTraffic
from holdfast.planner.placement.sites import Reach, Sites
from holdfast.planner.placement.traffic import AXES, Floats, Ints

_Links = tuple[Ints, Ints, float]
"""Ranks that send, those that receive, and the bytes of each."""


@dataclass(frozen=True)
class NodeBytes:
    """Bytes of a step between nodes, by position; each pair and direction once."""

    nodes: int
    one: Ints
    other: Ints
    amount: Floats
    """From `one` to `other`."""
    sizes: tuple[int, ...] = ()
    """Ranks of each pipeline rank, in their order. Empty: one has all."""

    @property
    def pp(self) -> int:
        """Pipeline ranks."""
        return max(1, len(self.sizes))

    @cached_property
    def sent(self) -> Floats:
        return np.bincount(self.one, self.amount, self.nodes).astype(np.float64)

    @cached_property
    def received(self) -> Floats:
        return np.bincount(self.other, self.amount, self.nodes).astype(np.float64)

    def sent_by_level(self, sites: Sites, order: Sequence[int]) -> dict[Reach, Floats]:
        """What each position sends, by how far it goes. `order`: the number of the node at each position."""
        at = np.asarray(order, dtype=np.int64)
        reach = sites.reach(at[self.one], at[self.other])
        found = {}
        for level in Reach:
            of = reach == level
            if of.any():
                found[level] = np.bincount(self.one[of], self.amount[of], self.nodes).astype(np.float64)
        return found


def node_bytes(plan: Plan, traffic: PlannedTraffic, per_node: int) -> NodeBytes:
    """UsageError for a plan whose ranks fill no whole nodes, or whose traffic is of another layout."""
    sizes, world = tuple(size for _, size in plan.mesh.axes), plan.mesh.world
    if tuple(name for name, _ in plan.mesh.axes) != AXES:
        raise UsageError("the bytes of nodes are known of a mesh of pp, dp and tp")
    tps = plan.mesh.tps or (sizes[2],) * sizes[0]
    if per_node < 1 or world % per_node:
        raise UsageError(f"{world} ranks do not fill nodes of {per_node}")
    places = [[stage.rank for stage in plan.stages], *(list(pipe) for pipe in plan.replicas)]
    stages = len(plan.stages)
    if any(len(pipe) != stages or max(pipe, default=0) >= sizes[0] for pipe in places):
        raise UsageError(f"a stage lies on none of {sizes[0]} pipeline ranks")
    if (len(traffic.tensor), len(traffic.replicas)) != (sizes[0], stages) or (
        (traffic.messages or plan.mesh.tps) and len(traffic.messages) != stages - 1
    ):
        raise UsageError("the traffic of a plan is of other stages")
    if plan.mesh.tps and plan.replicas:
        raise UsageError("replicas of a stage differ in tp")
    nodes = world // per_node
    keys: Ints = np.zeros(0, dtype=np.int64)
    sums: Floats = np.zeros(0)
    edges = np.cumsum([sizes[1] * tp for tp in tps])
    ranks = [one.reshape(sizes[1], tp) for one, tp in zip(np.split(np.arange(world), edges[:-1]), tps, strict=True)]
    for ones, others, amount in _links(ranks, places, traffic, per_node):
        ones, others = ones.ravel() // per_node, others.ravel() // per_node
        leaves = ones != others
        found = np.concatenate([keys, ones[leaves] * nodes + others[leaves]])
        keys, place = np.unique(found, return_inverse=True)
        weights = np.concatenate([sums, np.full(int(leaves.sum()), amount)])
        sums = np.bincount(place.ravel(), weights, len(keys)).astype(np.float64)
    return NodeBytes(nodes, keys // nodes, keys % nodes, sums, tuple(map(len, map(np.ravel, ranks))))


def _links(
    ranks: Sequence[Ints], places: Sequence[Sequence[int]], traffic: PlannedTraffic, per_node: int
) -> Iterator[_Links]:
    """`ranks`: by pipeline rank, those of each replica in a row."""
    for own, amount in zip(ranks, traffic.tensor, strict=True):
        yield own, np.roll(own, -1, axis=1), amount
    for stage, amount in enumerate(traffic.replicas):
        # By pipeline rank and dp; each column of tp is a ring.
        ring = np.concatenate([ranks[place] for place in sorted(pipe[stage] for pipe in places)])
        yield ring, np.roll(ring, -1, axis=0), amount
    for pipe in places:
        for boundary, (here, there) in enumerate(pairwise(pipe)):
            if here == there:
                continue
            for ones, others in ((ranks[here], ranks[there]), (ranks[there], ranks[here])):
                if not traffic.messages:
                    yield ones, others, traffic.message
                elif traffic.split:
                    yield from _parts(ones, others, traffic.messages[boundary])
                else:
                    yield from _copies(ones, others, traffic.messages[boundary], per_node)
    first, last = (places[0][0], places[0][-1]) if places[0] else (0, 0)
    if traffic.tied and first != last:
        yield from _tied(ranks[first], ranks[last], traffic.tied)
    whole = np.concatenate([one.ravel() for one in ranks])
    yield whole, np.roll(whole, -1), traffic.world


def _parts(ones: Ints, others: Ints, amount: float) -> Iterator[_Links]:
    """Each has its part of what crosses. Place i of n has [i/n, (i+1)/n): two exchange what both of these have."""
    have, want = ones.shape[1], others.shape[1]
    for i in range(have):
        for j in range(i * want // have, -(-(i + 1) * want // have)):
            common = min((i + 1) * want, (j + 1) * have) - max(i * want, j * have)  # in parts of 1 / (have * want)
            yield ones[:, i], others[:, j], amount * common / (have * want)


def _copies(ones: Ints, others: Ints, amount: float, per_node: int) -> Iterator[_Links]:
    """All have all of what crosses. As many pair off; else it crosses into each node once, from the one to the next,
    and not into one where it is (Zhuang et al., MLSys 2023)."""
    if ones.shape == others.shape:
        yield ones, others, amount
        return
    chains = []
    for row, to in zip(ones, others, strict=True):
        nodes = np.setdiff1d(to // per_node, row // per_node)
        chains.append(np.concatenate([row[:1], nodes * per_node]))  # a rank on each
    yield np.concatenate([one[:-1] for one in chains]), np.concatenate([one[1:] for one in chains]), amount


def _tied(first: Ints, last: Ints, amount: float) -> Iterator[_Links]:
    if first.shape == last.shape:
        yield first, last, amount
        yield last, first, amount
        return
    ring = np.concatenate([first, last], axis=1)
    yield ring, np.roll(ring, -1, axis=1), amount
