"""A cluster from what its agents report and its diagnostics measure. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.facts.nics import nic_type
from holdfast.planner.cluster.cluster import Cluster, Hop, Level, Node
from holdfast.planner.cluster.errors import ClusterError
from holdfast.planner.cluster.file import ALPHA_S
from holdfast.planner.cluster.gpus import Gpu, need
from holdfast.planner.cluster.identity import best_nic, has_rails, pod_of, rails_of
from holdfast.wire.types import Identity

ALL_TO_ALL, ALL_REDUCE, PAIR = "all-to-all", "all-reduce", "pair"
"""Checks of diagnostics whose figures calibrate links: within a node, among nodes, between two of them."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure of a check: busbw or bandwidth in bytes per second, round_trip in seconds."""

    node: str
    check: str
    metric: str
    value: float


def from_reports(identities: Iterable[Identity], figures: Iterable[Figure] = (), across: float = 0.0) -> Cluster:
    """Nodes in the order given, each with its GPUs, its switch, and what its NICs carry for each GPU. Of nodes
    that name a switch for each GPU, those with the same ones are a pod with rails.

    The busbw of all-to-all stands for the links within a node, that of all-reduce for those between nodes: by its
    definition it is the bandwidth of one device's link. Where nothing was measured, what the hardware states counts, of
    each node its own. A node whose pairs carried less than the median keeps its own figure. `across`: bytes per second
    of one device between nodes, in place of reports and measurements; 0: none given. ClusterError for nodes without
    GPUs or with unlike ones, for NICs of unknown speed, for rails that are not those of all, and for no node at all.
    """
    nodes, measured = list(identities), list(figures)
    if not nodes:
        raise ClusterError("no node has reported: start agents, or give a cluster file")
    gpu, rails = _model(nodes), has_rails(nodes)
    types = {nic_type(one.nics) for one in nodes}
    speed = {one.node: _nic_share(one) for one in nodes}
    within = _median(measured, ALL_TO_ALL, "busbw") or gpu.link_bytes_per_s
    if not within and max(len(one.gpus) for one in nodes) > 1:
        raise ClusterError(f"nothing is known of the links between GPUs of {nodes[0].node}: run holdfast diagnose")
    hops = {Level.NODE: Hop(ALPHA_S[Level.NODE], 1 / within)} if within else {}
    betas: dict[str, float] = {}
    if len(nodes) > 1:
        known = across or _median(measured, ALL_REDUCE, "busbw")
        unknown = [name for name, rate in speed.items() if not rate]
        if unknown and not known:
            raise ClusterError(
                f"{unknown[0]} reports no speed of its NICs: run holdfast diagnose, give --link-gbit, or a cluster file"
            )
        # As far as NICs say, switches carry what the fastest node sends.
        carried = known or max(speed.values())
        trips = _median(measured, PAIR, "round_trip")
        hops[Level.SWITCH] = Hop(trips / 2 if trips else ALPHA_S[Level.SWITCH], 1 / carried)
        hops[Level.POD] = Hop(ALPHA_S[Level.POD], 1 / carried)
        hops[Level.CLUSTER] = Hop(ALPHA_S[Level.CLUSTER], 1 / carried)
        betas = _betas(speed, known, _by_node(measured, PAIR, "bandwidth"), _median(measured, PAIR, "bandwidth"))
    found = []
    for one in nodes:
        beta = betas[one.node] if betas else 0.0
        ethernet = _ethernet(one) if len(types) > 1 else 0.0
        nic = nic_type(one.nics)
        switch = ",".join(rails_of(one)) if rails else one.switch
        pod = switch if rails else pod_of(one)
        found.append(Node(one.node, len(one.gpus), switch, pod, nic, beta, 1 / ethernet if ethernet else 0.0))
    return Cluster(gpu, tuple(found), hops, has_rails=rails)


def _model(nodes: Sequence[Identity]) -> Gpu:
    """The one GPU that all nodes have."""
    for one in nodes:
        if not one.gpus:
            raise ClusterError(f"{one.node} reports no GPU: for ranks on CPUs give a cluster file with cores")
    names = {gpu.model: one.node for one in nodes for gpu in one.gpus}
    models = {need(name): (name, node) for name, node in names.items()}
    if len(models) > 1:
        (name, node), (other, elsewhere), *_ = models.values()
        raise ClusterError(
            f"{node} has {name}, {elsewhere} has {other}: unlike GPUs are not planned for together; name one kind"
        )
    return next(iter(models))


def _nic_share(one: Identity) -> float:
    """Bytes per second of the best kind of NICs, for each GPU; 0 if no speed is known."""
    best = best_nic(one.nics)
    if best is None:
        return 0.0
    return sum(nic.speed_bps for nic in one.nics if nic.kind == best.kind) / 8 / len(one.gpus)


def _betas(speed: Mapping[str, float], known: float, pairs: Mapping[str, float], usual: float) -> dict[str, float]:
    """By node, seconds per byte of one device between nodes: by the rate that is `known` of all, else by its own NICs.

    One whose `pairs` carried less than is `usual` is so many times as slow as the median node.
    """
    middle = known or statistics.median(speed.values())
    found = {}
    for node, stated in speed.items():
        found[node] = 1 / (known or stated)
        if pairs.get(node, usual) < usual:
            found[node] = max(found[node], usual / pairs[node] / middle)
    return found


def _ethernet(one: Identity) -> float:
    return sum(nic.speed_bps for nic in one.nics if nic.kind == "ethernet") / 8 / len(one.gpus)


def _by_node(figures: Sequence[Figure], check: str, metric: str) -> dict[str, float]:
    """The best figure of each node: a bad partner lowers the others of it."""
    found: dict[str, float] = {}
    for one in figures:
        if (one.check, one.metric) == (check, metric) and math.isfinite(one.value) and one.value > 0:
            found[one.node] = max(found.get(one.node, 0.0), one.value)
    return found


def _median(figures: Sequence[Figure], check: str, metric: str) -> float:
    """Over all figures; 0 without one."""
    known = [
        f.value for f in figures if (f.check, f.metric) == (check, metric) and math.isfinite(f.value) and f.value > 0
    ]
    return statistics.median(known) if known else 0.0
