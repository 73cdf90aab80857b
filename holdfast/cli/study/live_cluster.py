"""The cluster that a controller's agents are: what the API says of its nodes, and what diagnoses measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.base.errors import UsageError
from holdfast.cli.common.client import Client, Json
from holdfast.cli.common.output import note

if TYPE_CHECKING:  # numpy takes time to import
    from holdfast.planner.cluster.cluster import Cluster
    from holdfast.planner.cluster.reports import Figure
    from holdfast.wire.types import Identity

LIVE = "live"
_UNUSED = ("faulty", "cordoned", "lost")
_NAMED = 3
_DIAGNOSES = 8
"""The newest that are looked at: a figure is of the newest that has it."""


def read_live(client: Client, across: float = 0.0) -> Cluster:
    """`across`: bytes per second of one GPU between nodes, in place of what is reported and measured; 0: none given.

    Nodes that no job can use now are left out. They come as a job's nodes are ordered: by type of NIC, then switch.
    """
    from holdfast.facts.nics import nic_type
    from holdfast.planner.cluster.errors import ClusterError
    from holdfast.planner.cluster.reports import from_reports

    nodes = client.nodes()
    if not nodes:
        raise UsageError(f"no agent has reported to {client.address}: start agents, or give --cluster a file")
    left_out = [str(node["name"]) for node in nodes if not _is_used(node)]
    used = [identity_of(node) for node in nodes if _is_used(node)]
    if not used:
        raise UsageError(f"none of the {len(nodes)} nodes of {client.address} can be used now: see holdfast nodes")
    if left_out:
        more = f" and {len(left_out) - _NAMED} more" if len(left_out) > _NAMED else ""
        note(f"left out, for no job can use them now: {', '.join(left_out[:_NAMED])}{more}")
    used.sort(key=lambda one: (nic_type(one.nics), one.switch))  # stable: of one switch in the order of names
    try:
        return from_reports(used, _figures(client), across)
    except ClusterError as error:
        raise ClusterError(f"--cluster live: {error}") from None


def _is_used(node: Json) -> bool:
    return bool(node["connected"]) and node["state"] not in _UNUSED


def identity_of(node: Json) -> Identity:
    """Of the API's document, what a cluster is made of."""
    from holdfast.wire.types import Gpu, Identity, Nic

    return Identity(
        str(node["name"]),
        str(node["hostname"]),
        "",
        gpus=tuple(Gpu(g["index"], g["uuid"], g["model"], g["pci"], g["memory_bytes"]) for g in node["gpus"]),
        nics=tuple(
            Nic(n["name"], n["kind"], n["speed_bps"], n["numa_node"], n["state"], n.get("link_layer", ""))
            for n in node["nics"]
        ),
        switch=str(node["switch"]),
    )


def _figures(client: Client) -> list[Figure]:
    """The newest of each node, check and metric."""
    from holdfast.planner.cluster.reports import Figure

    done = [one["id"] for one in client.diagnoses() if one["state"] == "done"][:_DIAGNOSES]
    found: dict[tuple[str, str, str, str], Figure] = {}
    for id in done:
        for verdict in client.diagnosis(id)["verdicts"]:
            if verdict["value"] is None or verdict["component"].startswith("link "):
                continue
            key = verdict["node"], verdict["check"], verdict["metric"], verdict["component"]
            found.setdefault(key, Figure(*key[:3], float(verdict["value"])))
    return list(found.values())
