"""What an agent's report says of a node's place in the network: its type of NIC, its switch's pod. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.base.config.agent import split_switch
from holdfast.facts.nics import comparable, nic_type
from holdfast.planner.cluster.errors import ClusterError
from holdfast.wire.types import Identity, Nic


def nic_types(nodes: Iterable[Iterable[Nic]]) -> list[str]:
    """By node, comparable with each other."""
    return comparable([nic_type(nics) for nics in nodes])


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
