"""A CLOS network of equal switches: how many there are, which links a message takes (MegaScale, section 3.6).

Every switch has as many ports down as up. The lowest tier (ToR, one a rail) splits its ports to hosts, so that an
uplink is faster than a NIC. NIC i of a server goes to switch i of its set of servers: those below the same `rails`
switches. A pod is as many of the lowest switches as one of the middle tier has ports down.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.planner.network.errors import NetworkError

MAX_NICS = 1_000_000
"""Arrays of a link a NIC and tier are kept: more than this is no cluster of today."""

Links = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Clos:
    """A network for `nics` NICs. Raises NetworkError where none can be built.

    `uplink_bytes_per_s` is of one port in one direction; a NIC has 1/`split` of it.
    `oversubscription`: so many times the bandwidth up enters a lowest switch from below (1: none).
    """

    nics: int
    ports: int = 64
    split: int = 2
    rails: int = 8
    uplink_bytes_per_s: float = 50e9
    oversubscription: float = 1.0

    def __post_init__(self) -> None:
        if not 1 <= self.nics <= MAX_NICS:
            raise NetworkError(f"network of {self.nics} NICs: 1 to {MAX_NICS:,} are possible")
        if self.ports < 2 or self.ports % 2 or self.ports > 1024:
            raise NetworkError(f"switches of {self.ports} ports: an even number from 2 to 1024 is needed")
        if self.rails < 1 or self.split < 1:
            raise NetworkError(f"{self.rails} rails and ports split by {self.split}: both must be 1 or more")
        if not self.uplink_bytes_per_s > 0:
            raise NetworkError(f"links of {self.uplink_bytes_per_s:g} bytes/s carry nothing: give their bandwidth")
        if not 1 <= self.oversubscription <= self.ports // 2:
            raise NetworkError(
                f"oversubscription {self.oversubscription:g}: 1 to {self.ports // 2} leave a lowest switch an uplink"
            )
        if self.nics > self.most_nics:
            raise NetworkError(
                f"{self.nics:,} NICs: three tiers of switches with {self.ports} ports, split by {self.split}, "
                f"connect {self.most_nics:,} at most"
            )

    @property
    def down(self) -> int:
        """Ports of a switch to the tier below."""
        return self.ports // 2

    @property
    def uplinks(self) -> int:
        """Ports of a lowest switch to the tier above."""
        return max(1, round(self.down / self.oversubscription))

    @property
    def nic_bytes_per_s(self) -> float:
        return self.uplink_bytes_per_s / self.split

    @property
    def below_a_leaf(self) -> int:
        """NICs at one lowest switch, which is as many as there are servers in a set."""
        return self.down * self.split

    @property
    def most_nics(self) -> int:
        """ports^3 / 4 ports of full speed, each split."""
        return self.ports**3 // 4 * self.split

    @property
    def leaves(self) -> int:
        sets = -(-self.nics // (self.below_a_leaf * self.rails))
        return sets * self.rails

    @property
    def pods(self) -> int:
        return -(-self.leaves // self.down)

    @property
    def tiers(self) -> int:
        return 1 if self.leaves == 1 else 2 if self.pods == 1 else 3

    @property
    def switches(self) -> tuple[int, int, int]:
        """Of each tier, the lowest first; tiers that no message needs have none."""
        middle = self.pods * self.uplinks if self.leaves > 1 else 0
        return self.leaves, middle, self.uplinks * self.down if self.pods > 1 else 0

    @property
    def bisection_bytes_per_s(self) -> float:
        """Between two halves of the servers, in one direction: half of what the hosts' links carry, if nothing is
        oversubscribed."""
        return self.nics * self.nic_bytes_per_s / 2 / self.oversubscription

    def leaf_of(self, nic: Links) -> Links:
        """The lowest switch of each NIC; NIC n of a server of `rails` NICs is at rail n % rails."""
        server, rail = np.divmod(nic, self.rails)
        return server // self.below_a_leaf * self.rails + rail

    # Links are numbered in six blocks: NIC up, NIC down, leaf up, leaf down, middle up, middle down.

    @property
    def link_count(self) -> int:
        return 2 * (self.nics + self._leaf_links + self._middle_links)

    @property
    def _leaf_links(self) -> int:
        return self.leaves * self.uplinks

    @property
    def _middle_links(self) -> int:
        return self.pods * self.uplinks * self.down

    def capacity(self) -> NDArray[np.float64]:
        """Bytes/s of each link."""
        found = np.full(self.link_count, self.uplink_bytes_per_s)
        found[: 2 * self.nics] = self.nic_bytes_per_s
        return found

    def paths(self, source: Links, target: Links, choice: NDArray[np.uint64]) -> Links:
        """Links of each message, shape (messages, 6), -1 where there is none.

        `choice` is the hash of a message's connection: it picks the switch of the middle tier and that of the highest,
        as every lowest switch does by itself.
        """
        nics, leaf_links, middle_links = self.nics, self._leaf_links, self._middle_links
        below, above = self.leaf_of(source), self.leaf_of(target)
        same_leaf, same_pod = below == above, below // self.down == above // self.down
        middle = (choice % np.uint64(self.uplinks)).astype(np.int64)
        core = (choice // np.uint64(self.uplinks) % np.uint64(self.down)).astype(np.int64)
        found = np.full((len(source), 6), -1, dtype=np.int64)
        found[:, 0] = source
        found[:, 5] = nics + target
        first = 2 * nics
        found[:, 1] = np.where(same_leaf, -1, first + below * self.uplinks + middle)
        found[:, 4] = np.where(same_leaf, -1, first + leaf_links + above * self.uplinks + middle)
        first += 2 * leaf_links
        for column, leaf, block in ((2, below, 0), (3, above, middle_links)):
            switch = leaf // self.down * self.uplinks + middle
            found[:, column] = np.where(same_pod, -1, first + block + switch * self.down + core)
        found[source == target] = -1
        return found

    def tier_of(self, link: int) -> int:
        """0: between a NIC and its switch; 1 and 2: the tiers above."""
        return 0 if link < 2 * self.nics else 1 if link < 2 * (self.nics + self._leaf_links) else 2

    def links_of_leaf(self, leaf: int) -> Links:
        """All links, up and down, at a lowest switch. Raises NetworkError where there is no such switch."""
        if not 0 <= leaf < self.leaves:
            raise NetworkError(f"lowest switch {leaf}: there are 0 to {self.leaves - 1}")
        nics = np.flatnonzero(self.leaf_of(np.arange(self.nics)) == leaf)
        up = 2 * self.nics + leaf * self.uplinks + np.arange(self.uplinks)
        return np.concatenate([nics, self.nics + nics, up, up + self._leaf_links])

    def links_of_middle(self, pod: int, switch: int) -> Links:
        """All links at a switch of the middle tier."""
        if not (0 <= pod < self.pods and 0 <= switch < self.uplinks):
            raise NetworkError(
                f"middle switch {switch} of pod {pod}: there are 0 to {self.uplinks - 1} in pods 0 to {self.pods - 1}"
            )
        leaves = np.arange(pod * self.down, min((pod + 1) * self.down, self.leaves))
        below = 2 * self.nics + leaves * self.uplinks + switch
        first = 2 * (self.nics + self._leaf_links) + (pod * self.uplinks + switch) * self.down
        above = first + np.arange(self.down)
        return np.concatenate([below, below + self._leaf_links, above, above + self._middle_links])
