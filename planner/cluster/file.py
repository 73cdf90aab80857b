"""A cluster from a file. Pure: the text comes in, a cluster or one clear line goes out.

Links are of one device and one direction. What the file leaves out comes from the table of known GPUs, or from the
latencies below; a bandwidth between nodes has no default.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from holdfast.base.settings import nearest
from holdfast.planner.cluster.cluster import Cluster, Hop, Level, Node, Tier
from holdfast.planner.cluster.errors import ClusterError
from holdfast.planner.cluster.gpus import Gpu, need

ALPHA_S = {Level.NODE: 3e-6, Level.SWITCH: 8e-6, Level.POD: 4e-6, Level.CLUSTER: 4e-6}
"""Latency of each hop where nothing is known: of NCCL within and between nodes, and of a further switch."""
MOST_NODES = 1 << 20
_NICS = ("infiniband", "roce", "rdma", "ethernet")
_TOP = ("gpu", "nodes", "gpus_per_node", "nodes_per_switch", "switches_per_pod", "nic", "rails", "cores", "links",
        "group", "host", "ethernet_gbit_per_s")  # fmt: skip
_GPU = ("name", "flops", "memory_bytes", "memory_bytes_per_s", "link_bytes_per_s", "cache_bytes", "reached")
_LINK = ("alpha_us", "gb_per_s", "gbit_per_s")
_GROUP = ("gpu", "nodes", "gpus_per_node", "nodes_per_switch", "switch", "pod", "nic", "gbit_per_s",
          "ethernet_gbit_per_s", "speed")  # fmt: skip


def parse(text: str, name: str = "cluster file") -> Cluster:
    """The cluster that a file describes. ClusterError says what is wrong, where, and what would be right."""
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ClusterError(f"{name} is no TOML: {error}") from None
    except RecursionError:
        raise ClusterError(f"{name} is nested too deeply") from None
    try:
        return _cluster(found)
    except ClusterError as error:
        raise ClusterError(f"{name}: {error}") from None


def _cluster(top: Mapping[str, Any]) -> Cluster:
    _known(top, _TOP, "the file")
    groups = top.get("group", [top])
    if not isinstance(groups, list) or not groups:
        raise ClusterError("group must be a list of tables: write [[group]]")
    gpus = [_gpu(group.get("gpu", top.get("gpu"))) for group in groups if _is_table(group, "group")]
    for number, one in enumerate(gpus[1:], 2):
        if one != gpus[0]:
            raise ClusterError(
                f"group {number} has {one.name}, group 1 has {gpus[0].name}: unlike GPUs are not planned for together; "
                "write one file for each kind"
            )
    links = top.get("links", {})
    _known(links if _is_table(links, "links") else {}, [one.word for one in ALPHA_S], "[links]")
    hops = dict(_hops(links, gpus[0]))
    nodes: list[Node] = []
    for group in groups:
        if group is not top:
            _known(group, _GROUP, "[[group]]")
        nodes += _nodes({**top, **group}, len(nodes), hops.get(Level.SWITCH), group is not top)
    host = top.get("host")
    tier = None if host is None else _host(host)
    return Cluster(gpus[0], tuple(nodes), hops, _flag(top, "rails"), tier, _count(top, "cores", 0, least=0))


def _gpu(entry: object) -> Gpu:
    if isinstance(entry, str):
        return need(entry)
    if entry is None:
        raise ClusterError('no gpu: write gpu = "H100", or a table [gpu] with flops, memory_bytes, memory_bytes_per_s')
    if not isinstance(entry, dict):
        raise ClusterError("gpu must be a name or a table")
    _known(entry, _GPU, "[gpu]")
    for key in ("flops", "memory_bytes", "memory_bytes_per_s"):
        if key not in entry:
            raise ClusterError(f"[gpu] lacks {key}: give flops, memory_bytes and memory_bytes_per_s")
    numbers = {key: _number(entry, key, "[gpu]") for key in _GPU if key in entry and key != "name"}
    return Gpu(str(entry.get("name", "gpu")), **numbers)


def _hops(links: Mapping[str, Any], gpu: Gpu) -> Iterator[tuple[Level, Hop]]:
    for level, alpha in ALPHA_S.items():
        entry = links.get(level.word)
        if entry is None:
            if level is Level.NODE and gpu.link_bytes_per_s:
                yield level, Hop(alpha, 1 / gpu.link_bytes_per_s)
            continue
        where = f"[links.{level.word}]"
        _known(entry if _is_table(entry, where) else {}, _LINK, where)
        yield level, Hop(_number(entry, "alpha_us", where, alpha * 1e6) * 1e-6, 1 / _bandwidth(entry, where))


def _bandwidth(entry: Mapping[str, Any], where: str) -> float:
    """Bytes per second."""
    if ("gb_per_s" in entry) == ("gbit_per_s" in entry):
        raise ClusterError(f"{where} needs one bandwidth of a GPU and direction: gb_per_s (10^9 bytes) or gbit_per_s")
    key, unit = ("gb_per_s", 1e9) if "gb_per_s" in entry else ("gbit_per_s", 1e9 / 8)
    found = _number(entry, key, where) * unit
    if not found > 0:
        raise ClusterError(f"{where} {key} is {entry[key]}: must be above 0")
    return found


def _nodes(own: Mapping[str, Any], before: int, hop: Hop | None, is_group: bool) -> list[Node]:
    count, devices = _count(own, "nodes"), _count(own, "gpus_per_node")
    if before + count > MOST_NODES:
        raise ClusterError(f"{before + count:,} nodes: {MOST_NODES:,} at most")
    nic = own.get("nic", "ethernet")
    if nic not in _NICS:
        raise ClusterError(f"nic is {str(nic)[:40]!r}: write one of {', '.join(_NICS)}")
    of_switch, of_pod = _count(own, "nodes_per_switch", count), _count(own, "switches_per_pod", MOST_NODES)
    beta = 0.0 if hop is None else hop.beta
    if is_group and "gbit_per_s" in own:
        beta = 1 / _bandwidth({"gbit_per_s": own["gbit_per_s"]}, "[[group]]")
    ethernet = 0.0
    if "ethernet_gbit_per_s" in own:
        ethernet = 1 / _bandwidth({"gbit_per_s": own["ethernet_gbit_per_s"]}, "ethernet")
    speed = _number(own, "speed", "[[group]]", 0.0)
    if "speed" in own and not speed > 0:
        raise ClusterError(f"[[group]] speed is {own['speed']}: must be above 0, such as measured TFLOPS of a device")
    found = []
    for i in range(count):
        switch = i // of_switch
        at = f"{before}-{switch}" if is_group else str(switch)
        # Groups whose pods are not said to end are in one.
        pod = f"{before}-{switch // of_pod}" if is_group and "switches_per_pod" in own else str(switch // of_pod)
        at, pod = _name(own, "switch", at), _name(own, "pod", pod)
        found.append(Node(f"node{before + i}", devices, at, pod, nic, beta, ethernet, speed))
    return found


def _name(entry: Mapping[str, Any], key: str, default: str) -> str:
    value = entry.get(key, default)
    if not isinstance(value, str):
        raise ClusterError(f"{key} is {str(value)[:40]}: must be a name in quotes")
    return value


def _host(entry: object) -> Tier:
    if not isinstance(entry, dict):
        raise ClusterError("host must be a table: [host] memory_bytes and bytes_per_s, of one device's share")
    _known(entry, ("memory_bytes", "bytes_per_s"), "[host]")
    numbers = [_number(entry, key, "[host]") for key in ("memory_bytes", "bytes_per_s")]
    if not min(numbers) > 0:
        raise ClusterError("[host] memory_bytes and bytes_per_s must be above 0")
    return Tier(*numbers)


def _is_table(entry: object, where: str) -> bool:
    if not isinstance(entry, dict):
        raise ClusterError(f"{where} must be a table")
    return True


def _known(entry: Mapping[str, Any], names: Collection[str], where: str) -> None:
    for key in entry:
        if key not in names:
            raise ClusterError(f"{where} has {key[:40]!r}, which is no key of it{nearest(key[:40], names)}")


def _number(entry: Mapping[str, Any], key: str, where: str, default: float | None = None) -> float:
    value = entry.get(key, default)
    if value is None:
        raise ClusterError(f"{where} lacks {key}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e30:
        raise ClusterError(f"{where} {key} is {str(value)[:40]}: must be a number of 0 or more")
    return float(value)


def _count(entry: Mapping[str, Any], key: str, default: int | None = None, least: int = 1) -> int:
    value = entry.get(key, default)
    if value is None:
        raise ClusterError(f"no {key}: write {key} = N")
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST_NODES:
        raise ClusterError(f"{key} is {str(value)[:40]}: must be a whole number from {least} to {MOST_NODES:,}")
    return value


def _flag(entry: Mapping[str, Any], key: str) -> bool:
    value = entry.get(key, False)
    if not isinstance(value, bool):
        raise ClusterError(f"{key} is {str(value)[:40]}: write true or false")
    return value
