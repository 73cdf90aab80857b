"""What an agent's report says of a node's place in the network: its type of NIC, its switch's pod. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.facts.nics import comparable, nic_type
from holdfast.wire.types import Identity, Nic


def nic_types(nodes: Iterable[Iterable[Nic]]) -> list[str]:
    """By node, comparable with each other."""
    return comparable([nic_type(nics) for nics in nodes])


def best_nic(nics: Iterable[Nic]) -> Nic | None:
    """The fastest of known speed, RDMA before Ethernet; None without one."""
    known = [nic for nic in nics if nic.kind in ("rdma", "ethernet") and nic.speed_bps > 0]
    return max(known, key=lambda nic: (nic.kind == "rdma", nic.speed_bps), default=None)


def pod_of(identity: Identity) -> str:
    """What stands before the last slash of a switch's name: `pod3/leaf7` is a switch of pod3. Empty without one."""
    return identity.switch.rpartition("/")[0]
