"""How far what a job sends goes, with one order of its nodes and with another. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.planner.placement.order import slow_bytes
from holdfast.planner.placement.sites import Reach, Sites
from holdfast.planner.placement.traffic import AXES, Shape, traffic_of


@dataclass(frozen=True, slots=True)
class LevelBytes:
    """What ends at one level: bytes of a step over all ranks, or shares of all where bytes are not known."""

    level: str
    by_axis: dict[str, float]
    """Of pp, dp and tp, with the order asked for."""
    naive: float
    """Of all three, with the other one."""

    @property
    def total(self) -> float:
        return sum(self.by_axis.values())


@dataclass(frozen=True, slots=True)
class Comparison:
    levels: tuple[LevelBytes, ...]
    """Those of which something is, the nearest first."""
    slow: float
    naive_slow: float
    """Over links that a diagnosis found slow."""
    in_bytes: bool


def compared(shape: Shape, per_node: int, sites: Sites, order: Sequence[int], naive: Sequence[int]) -> Comparison:
    """`order` and `naive`: numbers of the nodes at each position. UsageError as `traffic_of` has it."""
    traffic = traffic_of(shape, per_node)
    ours, others = _by_level(shape, per_node, sites, order), _by_level(shape, per_node, sites, naive)
    whole = 1.0 if traffic.in_bytes else sum(sum(part.values()) for part in ours.values()) or 1.0
    levels = [
        LevelBytes(reach.word, {axis: ours[reach][axis] / whole for axis in AXES}, sum(others[reach].values()) / whole)
        for reach in Reach
        if sum(ours[reach].values()) or sum(others[reach].values())
    ]
    slow, naive_slow = (slow_bytes(traffic, sites, one) / whole for one in (order, naive))
    return Comparison(tuple(levels), slow, naive_slow, traffic.in_bytes)


def _by_level(shape: Shape, per_node: int, sites: Sites, order: Sequence[int]) -> dict[Reach, dict[str, float]]:
    traffic, at = traffic_of(shape, per_node), np.asarray(order, dtype=np.int64)
    found = {reach: dict.fromkeys(AXES, 0.0) for reach in Reach}
    for axis in AXES:
        one, other, amounts = traffic.by_axis[axis]
        sums = np.bincount(sites.reach(at[one], at[other]), amounts, len(Reach))
        for reach in Reach:
            found[reach][axis] = float(sums[reach])
        found[Reach.NODE][axis] += traffic.within[axis]
    return found
