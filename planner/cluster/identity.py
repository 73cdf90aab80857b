"""What an agent's report says of a node's place in the network: its type of NIC, its switch's pod. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.wire.types import Identity, Nic

LINK_LAYERS = {"infiniband": "infiniband", "ethernet": "roce"}
"""What RDMA is, by the link layer of its ports."""


def nic_type(nics: Iterable[Nic]) -> str:
    """infiniband, roce, rdma (one of both: an agent of an earlier version does not say which), or ethernet."""
    known = [nic for nic in nics if nic.kind == "rdma"]
    fastest = max(known, key=lambda nic: ("down" not in nic.state.lower(), nic.speed_bps), default=None)
    return "ethernet" if fastest is None else LINK_LAYERS.get(fastest.link_layer.lower(), "rdma")


def nic_types(nodes: Iterable[Iterable[Nic]]) -> list[str]:
    """By node. Where one does not say which RDMA it has, all that have it are alike: agents are upgraded in turn."""
    found = [nic_type(nics) for nics in nodes]
    return ["rdma" if one in LINK_LAYERS.values() else one for one in found] if "rdma" in found else found


def best_nic(nics: Iterable[Nic]) -> Nic | None:
    """The fastest of known speed, RDMA before Ethernet; None without one."""
    known = [nic for nic in nics if nic.kind in ("rdma", "ethernet") and nic.speed_bps > 0]
    return max(known, key=lambda nic: (nic.kind == "rdma", nic.speed_bps), default=None)


def pod_of(identity: Identity) -> str:
    """What stands before the last slash of a switch's name: `pod3/leaf7` is a switch of pod3. Empty without one."""
    return identity.switch.rpartition("/")[0]
