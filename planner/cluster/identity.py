"""What an agent's report says of a node's place in the network: its type of NIC, its switch's pod. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.base.config.agent import split_switch
from holdfast.planner.cluster.errors import ClusterError
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


def rails_of(identity: Identity) -> tuple[str, ...]:
    """The switches of its GPUs in their order, where it names one for each; empty if it names one for all."""
    return split_switch(identity.switch) if "," in identity.switch else ()


def pod_of(identity: Identity) -> str:
    """What stands before the last slash of a switch's name: `pod3/leaf7` is a switch of pod3. Empty without one. Of
    several switches, which are of one pod, the first says it."""
    return identity.switch.partition(",")[0].rpartition("/")[0]


def has_rails(identities: Sequence[Identity]) -> bool:
    """Whether GPUs of one place in their nodes share a switch. ClusterError where the names of switches do not say so
    of all nodes alike: some name one for all of their GPUs, not one for each, or GPUs of two places are at one."""
    named = {one.node: rails_of(one) for one in identities}
    if not any(named.values()):
        return False
    places: dict[str, tuple[int, str]] = {}
    for one in identities:
        switches, count = named[one.node], len(one.gpus)
        if not switches:
            other = next(name for name, found in named.items() if found)
            raise ClusterError(f"{one.node} names one switch, {other} one for each GPU: start all agents alike")
        if len(switches) != count:
            raise ClusterError(
                f"{one.node} names {len(switches)} switches for {count} GPUs: one for all, or one for each"
            )
        for place, switch in enumerate(switches):
            known, where = places.setdefault(switch, (place, one.node))
            if known != place:
                raise ClusterError(
                    f"{switch} is the switch of GPU {known} of {where} and of GPU {place} of {one.node}: rails are of "
                    "one place in all nodes; see to the cables, or to --switch of these agents"
                )
    return True
