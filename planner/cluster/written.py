"""A cluster as the text of a cluster file, which `file.parse` takes back. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby

from holdfast.planner.cluster.cluster import Cluster, Node
from holdfast.planner.cluster.errors import ClusterError
from holdfast.planner.cluster.gpus import Gpu, need


def written(cluster: Cluster) -> str:
    """Nodes that follow each other and are alike, with their switch, are one group. Names of nodes are left out."""
    return "\n".join(_lines(cluster)) + "\n"


def _lines(cluster: Cluster) -> Iterator[str]:
    if _is_known(cluster.gpu):
        yield f"gpu = {json.dumps(cluster.gpu.name)}"
    if cluster.has_rails:
        yield "rails = true"
    if cluster.cores:
        yield f"cores = {cluster.cores}"
    if not _is_known(cluster.gpu):
        yield "\n[gpu]"
        for key in Gpu.__slots__:
            yield f"{key} = {json.dumps(getattr(cluster.gpu, key))}"
    if cluster.host is not None:
        yield f"\n[host]\nmemory_bytes = {cluster.host.bytes!r}\nbytes_per_s = {cluster.host.bytes_per_s!r}"
    for level, hop in sorted(cluster.hops.items()):
        yield f"\n[links.{level.word}]  # of one GPU, one direction"
        yield f"alpha_us = {hop.alpha * 1e6!r}\ngb_per_s = {1 / hop.beta / 1e9!r}"
    for _, alike in groupby(cluster.nodes, _kind):
        members = list(alike)
        yield f"\n[[group]]  # {members[0].name}" + (f" to {members[-1].name}" if len(members) > 1 else "")
        yield from _group(members[0], len(members))


def _is_known(gpu: Gpu) -> bool:
    try:
        return need(gpu.name) == gpu
    except ClusterError:
        return False


def _kind(node: Node) -> tuple[object, ...]:
    return node.devices, node.switch, node.pod, node.nic, node.beta, node.ethernet_beta, node.speed


def _group(node: Node, count: int) -> Iterator[str]:
    yield f"nodes = {count}\ngpus_per_node = {node.devices}"
    yield f"switch = {json.dumps(node.switch)}\npod = {json.dumps(node.pod)}\nnic = {json.dumps(node.nic)}"
    if node.beta:
        yield f"gbit_per_s = {8 / node.beta / 1e9!r}"
    if node.ethernet_beta:
        yield f"ethernet_gbit_per_s = {8 / node.ethernet_beta / 1e9!r}"
    if node.speed:
        yield f"speed = {node.speed!r}"
