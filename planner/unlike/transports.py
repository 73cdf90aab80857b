"""By which transport each group of a job exchanges data, chosen from the NICs of its members. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from holdfast.planner.cluster.cluster import Cluster
from holdfast.planner.cost.groups import lines_of
from holdfast.planner.cost.layout import Layout

_VERBS = ("infiniband", "roce", "rdma")
"""NICs that speak verbs: NCCL's network "IB". Two types of them cannot reach each other by it."""


@dataclass(frozen=True, slots=True)
class Transport:
    """`net` as NCCL_NET and a communicator's netName have it: IB (both InfiniBand and RoCE) or Socket."""

    net: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of NCCL, beside `net`."""

    @property
    def is_rdma(self) -> bool:
        return self.net == "IB"


@dataclass(frozen=True, slots=True)
class GroupTransport:
    """A group of a mesh."""

    axis: str
    """tp, dp or pp; of pp, two ranks that exchange messages."""
    ranks: tuple[int, ...]
    transport: Transport


def transport(nics: frozenset[str]) -> Transport:
    """RDMA for NICs of one type that have it, TCP for unlike ones and for Ethernet. ValueError for none.

    RoCE goes by GID 3, the one of RoCE v2 on the usual drivers; NCCL of 2.21 and later finds it without.
    """
    if not nics:
        raise ValueError("a group without members has no transport")
    if len(nics) > 1 or not nics <= set(_VERBS):
        return Transport("Socket")
    return Transport("IB", {"NCCL_IB_GID_INDEX": "3"} if nics == {"roce"} else {})


def transports(cluster: Cluster, layout: Layout) -> Iterator[GroupTransport]:
    """Of each group of tp and dp with several ranks, and of each pair of ranks that exchange messages."""
    for axis in ("tp", "dp"):
        for row in lines_of(layout.pp, layout.dp, layout.tp, axis).tolist():
            if len(row) > 1:
                yield GroupTransport(axis, tuple(row), transport(cluster.nic_types(row)))
    links = {(min(a, b), max(a, b)) for place in layout.places for a, b in pairwise(place) if a != b}
    for row in lines_of(layout.pp, layout.dp, layout.tp, "pp").tolist():
        for a, b in sorted(links):
            yield GroupTransport("pp", (row[a], row[b]), transport(cluster.nic_types((row[a], row[b]))))
