"""A network as it is now: what is lost, and the ways that connections take around it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from holdfast.planner.network.clos import Clos
from holdfast.planner.network.ecmp import hashes
from holdfast.planner.network.errors import NetworkError
from holdfast.planner.network.flows import Floats, Ints

_REHASHED = 64
"""A connection whose way is lost tries so many others; with half of all ways lost, 2^-64 of them find none."""


@dataclass(frozen=True)
class Network:
    """`connections`: between the same two ends, each of them with its own hash (NCCL_IB_QPS_PER_CONNECTION)."""

    clos: Clos
    lost: frozenset[int] = frozenset()
    """Links without capacity."""
    seed: int = 0
    connections: int = 1

    def __post_init__(self) -> None:
        if self.connections < 1:
            raise NetworkError(f"{self.connections} connections between two ends: 1 or more are needed")

    def without(self, links: Ints) -> Network:
        return replace(self, lost=self.lost | frozenset(links.tolist()))

    def without_leaf(self, leaf: int) -> Network:
        """A lowest switch is lost, and with it the network of the NICs at it."""
        return self.without(self.clos.links_of_leaf(leaf))

    def without_middle(self, pod: int, switch: int) -> Network:
        return self.without(self.clos.links_of_middle(pod, switch))

    @cached_property
    def gone(self) -> NDArray[np.bool_]:
        found = np.zeros(self.clos.link_count, dtype=bool)
        found[list(self.lost)] = True
        return found

    def capacity(self) -> Floats:
        """Bytes/s of each link."""
        return np.where(self.gone, 0.0, self.clos.capacity())

    def paths(self, source: Ints, target: Ints, connection: int = 0) -> Ints:
        """As `Clos.paths`; hashes spread over the ways that are left, as they do once routing has converged.

        A message whose ends lost their switch, or that has no way left, keeps a lost link in its path.
        """
        choice = hashes(source, target, self.seed, connection)
        found = self.clos.paths(source, target, choice)
        if not self.lost:
            return found
        for attempt in range(1, _REHASHED):
            stuck = np.flatnonzero((self.gone[found[:, 1:5]] & (found[:, 1:5] >= 0)).any(axis=1))
            if not len(stuck):
                break
            choice[stuck] = hashes(choice[stuck].astype(np.int64), target[stuck], self.seed, attempt)
            found[stuck] = self.clos.paths(source[stuck], target[stuck], choice[stuck])
        return found
