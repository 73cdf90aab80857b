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
    pp: int = 1
    """Pipeline ranks: each has as many of all ranks, in their order."""

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
    if tuple(name for name, _ in plan.mesh.axes) != AXES or plan.mesh.tps:
        raise UsageError("the bytes of nodes are known of a mesh of pp, dp and tp, alike for all pipeline ranks")
    if per_node < 1 or world % per_node:
        raise UsageError(f"{world} ranks do not fill nodes of {per_node}")
    places = [[stage.rank for stage in plan.stages], *(list(pipe) for pipe in plan.replicas)]
    stages = len(plan.stages)
    if any(len(pipe) != stages or max(pipe, default=0) >= sizes[0] for pipe in places):
        raise UsageError(f"a stage lies on none of {sizes[0]} pipeline ranks")
    if (len(traffic.tensor), len(traffic.replicas)) != (sizes[0], stages):
        raise UsageError("the traffic of a plan is of other stages")
    nodes = world // per_node
    keys: Ints = np.zeros(0, dtype=np.int64)
    sums: Floats = np.zeros(0)
    for ones, others, amount in _links(np.arange(world, dtype=np.int64).reshape(sizes), places, traffic):
        ones, others = ones.ravel() // per_node, others.ravel() // per_node
        leaves = ones != others
        found = np.concatenate([keys, ones[leaves] * nodes + others[leaves]])
        keys, place = np.unique(found, return_inverse=True)
        weights = np.concatenate([sums, np.full(int(leaves.sum()), amount)])
        sums = np.bincount(place.ravel(), weights, len(keys)).astype(np.float64)
    return NodeBytes(nodes, keys // nodes, keys % nodes, sums, sizes[0])


def _links(ranks: Ints, places: Sequence[Sequence[int]], traffic: PlannedTraffic) -> Iterator[_Links]:
    for own, amount in zip(ranks, traffic.tensor, strict=True):
        yield own, np.roll(own, -1, axis=1), amount
    for stage, amount in enumerate(traffic.replicas):
        held = ranks[sorted(pipe[stage] for pipe in places)]
        ring = held.reshape(-1, held.shape[-1])  # by pipeline rank and dp; each column of tp is a ring
        yield ring, np.roll(ring, -1, axis=0), amount
    for pipe in places:
        for here, there in pairwise(pipe):
            if here != there:
                yield ranks[here], ranks[there], traffic.message
                yield ranks[there], ranks[here], traffic.message
    first, last = (places[0][0], places[0][-1]) if places[0] else (0, 0)
    if traffic.tied and first != last:
        yield ranks[first], ranks[last], traffic.tied
        yield ranks[last], ranks[first], traffic.tied
    yield ranks.ravel(), np.roll(ranks.ravel(), -1), traffic.world
