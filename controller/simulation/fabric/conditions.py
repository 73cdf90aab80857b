"""What is different in a network: links that are lost, slower or lose packets, others' flows, the hash of flows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Flow:
    """What somebody else sends from a NIC to another, all the time, and at most as fast as this."""

    source: int
    target: int
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Conditions:
    """Hashable: equal ones have equal solutions. Links by `Clos`'s numbers."""

    lost: frozenset[int] = frozenset()
    slower: frozenset[tuple[int, float]] = frozenset()
    """Link, and the share of its bytes/s that is left."""
    lossy: frozenset[tuple[int, float]] = frozenset()
    """Link, and the share of packets that arrive broken."""
    others: tuple[Flow, ...] = ()
    seed: int = 0
    """Of the switches' hashes."""

    def losing(self, links: Iterable[int]) -> Conditions:
        return replace(self, lost=self.lost | set(links))

    def having(self, links: Iterable[int]) -> Conditions:
        """These are back."""
        return replace(self, lost=self.lost - set(links))
