"""Where nodes are, and what it costs that two of them exchange a byte. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from holdfast.planner.placement.traffic import Floats, Ints

Pair = tuple[str, str]


class Reach(IntEnum):
    """How far a message goes: the smallest domain that holds both ends."""

    NODE = 0
    SWITCH = 1
    POD = 2
    CORE = 3
    NICS = 4
    """To a node with another type of NIC: by Ethernet alone, wherever that is (Holmes)."""

    @property
    def word(self) -> str:
        return self.name.lower()


WEIGHTS = (0.0, 1.0, 2.0, 4.0, 32.0)
"""Cost of a byte by its reach. Each switch further is shared by twice as many; between types of NIC, Ethernet of 10 to
25 Gbit/s takes the place of 200 to 400."""
SLOW = 8.0
"""Times that, over a link that a diagnosis found slow. A pair fails with less than half the usual rate, and all its
group waits for it: more than a level is worth, less than a change of NICs."""


@dataclass(frozen=True, slots=True)
class Site:
    """One node. Empty names are of unknown places, which count as one."""

    name: str
    switch: str = ""
    pod: str = ""
    nic: str = ""


@dataclass(frozen=True, slots=True)
class SlowLinks:
    """What diagnoses found slow: ways between two nodes, and between two switches."""

    nodes: frozenset[Pair] = frozenset()
    switches: frozenset[Pair] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.nodes or self.switches)


@dataclass(frozen=True)
class Sites:
    """Nodes by number, in the order given."""

    all: tuple[Site, ...]
    slow: SlowLinks = SlowLinks()

    @cached_property
    def nic(self) -> Ints:
        return _numbered(site.nic for site in self.all)

    @cached_property
    def pod(self) -> Ints:
        return _numbered(site.pod for site in self.all)

    @cached_property
    def switch(self) -> Ints:
        return _numbered((site.pod, site.switch) for site in self.all)

    @cached_property
    def _slow_pairs(self) -> Ints:
        number = {site.name: i for i, site in enumerate(self.all)}
        known = [(number[a], number[b]) for a, b in self.slow.nodes if a in number and b in number]
        return np.array(
            sorted({a * len(self.all) + b for pair in known for a, b in (pair, pair[::-1])}), dtype=np.int64
        )

    @cached_property
    def _slow_switches(self) -> Ints:
        numbers: dict[str, set[int]] = {}
        for i, site in enumerate(self.all):
            numbers.setdefault(site.switch, set()).add(int(self.switch[i]))
        keys = {
            a * len(self.all) + b
            for pair in self.slow.switches
            for one, other in (pair, pair[::-1])
            for a in numbers.get(one, ())
            for b in numbers.get(other, ())
        }
        return np.array(sorted(keys), dtype=np.int64)

    def reach(self, ones: Ints, others: Ints) -> Ints:
        """Of each pair of nodes, as numbers of `Reach`. Arrays that broadcast."""
        found = np.where(self.pod[ones] == self.pod[others], int(Reach.POD), int(Reach.CORE))
        found = np.where(self.switch[ones] == self.switch[others], int(Reach.SWITCH), found)
        found = np.where(self.nic[ones] == self.nic[others], found, int(Reach.NICS))
        return np.where(ones == others, int(Reach.NODE), found).astype(np.int64)

    def is_slow(self, ones: Ints, others: Ints) -> npt.NDArray[np.bool_]:
        """Of each pair of nodes: did a diagnosis find the way between them slow?"""
        count = len(self.all)
        found = np.isin(ones * count + others, self._slow_pairs)
        return found | np.isin(self.switch[ones] * count + self.switch[others], self._slow_switches)

    def cost(self, ones: Ints, others: Ints) -> Floats:
        """Of a byte between each pair of nodes."""
        found = np.array(WEIGHTS)[self.reach(ones, others)]
        return np.where(self.is_slow(ones, others), SLOW * found, found) if self.slow else found


def _numbered(values: Iterable[Hashable]) -> Ints:
    """Equal values by equal numbers, in the order in which they come."""
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(value, len(seen)) for value in values], dtype=np.int64)
