"""What kind of network a node's NICs are on: the types that matter where nodes of several kinds meet. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.wire.types import Nic

LINK_LAYERS = {"infiniband": "infiniband", "ethernet": "roce"}
"""What RDMA is, by the link layer of its ports."""
TYPES = ("ethernet", "infiniband", "roce", "rdma")
"""All that `nic_type` returns."""
VARIABLE = "HOLDFAST_NIC"
"""In the environment of workers: the type of their node, as its agent reports it."""


def nic_type(nics: Iterable[Nic]) -> str:
    """infiniband, roce, rdma (one of both: an agent of an earlier version does not say which), or ethernet."""
    known = [nic for nic in nics if nic.kind == "rdma"]
    fastest = max(known, key=lambda nic: ("down" not in nic.state.lower(), nic.speed_bps), default=None)
    return "ethernet" if fastest is None else LINK_LAYERS.get(fastest.link_layer.lower(), "rdma")


def comparable(types: Sequence[str]) -> list[str]:
    """The types of several nodes. Where one does not say which RDMA it has, all that have it are alike: agents are
    upgraded in turn."""
    return ["rdma" if one in LINK_LAYERS.values() else one for one in types] if "rdma" in types else list(types)
