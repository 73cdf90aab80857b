"""A cluster: devices, the links between them, and the domains that share a link. Pure, and fast at 12,288 GPUs.

A message between two devices crosses hops: out of the node, through its switch, between switches of a pod, between
pods. Its link has the slowest hop's seconds per byte, and the latencies of all hops added up. Nothing here is of the
size of all pairs: links follow from where two devices sit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from holdfast.planner.cluster.errors import ClusterError
from holdfast.planner.cluster.gpus import Gpu

Ints = npt.NDArray[np.int64]


class Level(IntEnum):
    """How far a message goes: the smallest domain that holds both ends. A higher one crosses more hops."""

    SELF = 0
    NODE = 1
    RAIL = 2
    """Devices of one place in their nodes, under one rail switch of a pod."""
    SWITCH = 3
    POD = 4
    CLUSTER = 5

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Hop:
    """One level of the network, as a message of one device sees it."""

    alpha: float
    """Seconds that crossing it adds to any message."""
    beta: float
    """Seconds per byte, of one device while all others of its domain send as well."""

    def __post_init__(self) -> None:
        if self.alpha < 0 or self.beta < 0:
            raise ClusterError(f"a hop has alpha {self.alpha} s and beta {self.beta} s/byte: neither can be negative")


@dataclass(frozen=True, slots=True)
class Link:
    """From one device to another: a message of n bytes takes alpha + n beta seconds."""

    kind: Level
    alpha: float
    beta: float
    nic: str = ""
    """Type of NIC that it goes through; empty within a node."""

    def seconds(self, num_bytes: float) -> float:
        return self.alpha + num_bytes * self.beta


@dataclass(frozen=True, slots=True)
class Tier:
    """A level of memory that a device reaches."""

    bytes: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Device:
    id: int
    node: int
    place: int
    """In its node."""
    model: Gpu
    tiers: Mapping[str, Tier] = field(default_factory=dict)
    """device, and host where it is known: its share of the node's memory."""


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    devices: int
    switch: str = ""
    pod: str = ""
    nic: str = "ethernet"
    """infiniband, roce, rdma (one of both) or ethernet. Unlike ones meet by Ethernet only (Holmes)."""
    beta: float = 0.0
    """Seconds per byte of one device's share of the NICs."""
    ethernet_beta: float = 0.0
    """The same by Ethernet, for what goes to nodes with another type of NIC; 0: it has none."""
    speed: float = 0.0
    """What its devices were measured to reach in a job on NICs of its type alone, in any unit that all nodes share; 0:
    not measured."""


@dataclass(frozen=True)
class Cluster:
    """Devices are numbered node by node, in the order of `nodes`; ranks of a job sit on them in that order."""

    gpu: Gpu
    nodes: tuple[Node, ...]
    hops: Mapping[Level, Hop]
    """NODE, SWITCH, POD and CLUSTER; those above SWITCH are needed only where messages go so far."""
    has_rails: bool = False
    """Whether devices of one place share a switch, and others of a pod meet above it."""
    host: Tier | None = None
    """Host memory of one device's share of its node."""
    cores: int = 0
    """Of each node, shared by its devices' computations: for ranks on CPUs that are more than the cores. 0: every
    device computes by itself."""

    def __post_init__(self) -> None:
        if not self.nodes or any(node.devices < 1 for node in self.nodes):
            raise ClusterError("a cluster has at least one node, and each node at least one device")
        if max(node.devices for node in self.nodes) > 1 and Level.NODE not in self.hops:
            raise ClusterError("no link within a node: give [links.node] alpha_us and gb_per_s")
        for level in self._needed():
            if level not in self.hops:
                raise ClusterError(f"no link at level {level.word}: give [links.{level.word}] alpha_us and gbit_per_s")
        unknown = [node.name for node in self.nodes if not node.speed]
        if 0 < len(unknown) < len(self.nodes):
            raise ClusterError(f"{unknown[0]} has no speed, and others have: give every [[group]] one, or none")
        types = sorted({node.nic for node in self.nodes})
        lacking = [node.name for node in self.nodes if node.nic != "ethernet" and not node.ethernet_beta]
        if len(types) > 1 and lacking:
            raise ClusterError(
                f"NICs of types {' and '.join(types)} cannot exchange messages, and {lacking[0]} has no "
                "Ethernet beside: give ethernet_gbit_per_s"
            )

    def _needed(self) -> list[Level]:
        if len(self.nodes) == 1:
            return []
        pods = {(n.pod, n.switch) for n in self.nodes}
        found = [Level.SWITCH]
        if self.has_rails or len(pods) > len({pod for pod, _ in pods}):
            found.append(Level.POD)
        return found + [Level.CLUSTER] * (len({pod for pod, _ in pods}) > 1)

    @property
    def world(self) -> int:
        """Devices in all."""
        return int(self.first[-1])

    @cached_property
    def first(self) -> Ints:
        """Number of each node's first device; one more entry for the end."""
        return np.concatenate([[0], np.cumsum([node.devices for node in self.nodes])]).astype(np.int64)

    @cached_property
    def node_of(self) -> Ints:
        """By device: the number of its node."""
        return np.repeat(np.arange(len(self.nodes)), [node.devices for node in self.nodes]).astype(np.int64)

    @cached_property
    def place_of(self) -> Ints:
        """By device: its place in its node."""
        return np.arange(self.world) - self.first[self.node_of]

    @cached_property
    def slowness(self) -> npt.NDArray[np.float64]:
        """By device: how many times as long as on the fastest nodes its computations take; 1 without speeds."""
        own = np.array([node.speed or 1.0 for node in self.nodes])
        found: npt.NDArray[np.float64] = (own.max() / own)[self.node_of]
        return found

    @cached_property
    def _switch_of(self) -> Ints:
        return _numbered((node.pod, node.switch) for node in self.nodes)[self.node_of]

    @cached_property
    def pod_of(self) -> Ints:
        """By device: the number of its pod."""
        return _numbered(node.pod for node in self.nodes)[self.node_of]

    @cached_property
    def _nic_of(self) -> Ints:
        return _numbered(node.nic for node in self.nodes)[self.node_of]

    @cached_property
    def nic_betas(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], Ints]:
        """By node: seconds per byte of a device's NICs, the same to nodes with others, and the type's number."""
        own = np.array([node.beta for node in self.nodes])
        other = np.array([node.beta if node.nic == "ethernet" else node.ethernet_beta for node in self.nodes])
        return own, other, _numbered(node.nic for node in self.nodes)

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        tiers = {"device": Tier(self.gpu.memory_bytes, self.gpu.memory_bytes_per_s)}
        if self.host is not None:
            tiers["host"] = self.host
        nodes, places = self.node_of.tolist(), self.place_of.tolist()
        return tuple(Device(i, nodes[i], places[i], self.gpu, tiers) for i in range(self.world))

    @cached_property
    def domains(self) -> dict[str, tuple[frozenset[int], ...]]:
        """Devices by what they share: node, rail, switch, pod, cluster, nic_type."""
        rails = self.pod_of * (int(self.place_of.max()) + 1) + self.place_of
        keys = {"node": self.node_of, "rail": rails, "switch": self._switch_of, "pod": self.pod_of}
        keys |= {"cluster": np.zeros(self.world, dtype=np.int64), "nic_type": self._nic_of}
        return {name: _grouped(values) for name, values in keys.items()}

    def levels(self, ones: Ints, others: Ints) -> Ints:
        """The level of each pair of devices, as numbers of `Level`. Arrays of any equal shape."""
        is_rail = self.place_of[ones] == self.place_of[others] if self.has_rails else np.zeros(ones.shape, dtype=bool)
        is_pod = self.pod_of[ones] == self.pod_of[others]
        is_switch = (self._switch_of[ones] == self._switch_of[others]) & (not self.has_rails)
        found = np.where(is_pod, int(Level.POD), int(Level.CLUSTER))
        found = np.where(is_pod & is_rail, int(Level.RAIL), np.where(is_switch, int(Level.SWITCH), found))
        found = np.where(self.node_of[ones] == self.node_of[others], int(Level.NODE), found)
        return np.where(ones == others, int(Level.SELF), found).astype(np.int64)

    def link(self, one: int, other: int) -> Link:
        """From a device to another one. ValueError for a device that the cluster lacks."""
        for device in (one, other):
            if not 0 <= device < self.world:
                raise ValueError(f"device {device} is not in a cluster of {self.world}")
        level = Level(int(self.levels(np.array([one]), np.array([other]))[0]))
        if level is Level.SELF:
            return Link(level, 0.0, 0.0)
        if level is Level.NODE:
            return Link(level, self.hops[level].alpha, self.hops[level].beta)
        ends = [self.nodes[int(self.node_of[device])] for device in (one, other)]
        is_alike = ends[0].nic == ends[1].nic
        own = [n.beta if is_alike or n.nic == "ethernet" else n.ethernet_beta for n in ends]
        crossed = self.crossed(level)
        beta = max([hop.beta for hop in crossed] + own)
        return Link(level, sum(hop.alpha for hop in crossed), beta, ends[0].nic if is_alike else "ethernet")

    def crossed(self, level: Level) -> list[Hop]:
        """The hops above the node that a message of this level crosses."""
        last = {Level.RAIL: Level.SWITCH}.get(level, level)
        return [self.hops[at] for at in (Level.SWITCH, Level.POD, Level.CLUSTER) if at <= last and at in self.hops]

    def nic_types(self, ranks: Iterable[int]) -> frozenset[str]:
        """Types of NIC among these devices."""
        return frozenset(self.nodes[int(self.node_of[rank])].nic for rank in ranks)


def _numbered(values: Iterable[object]) -> Ints:
    """Equal values by equal numbers, in the order in which they come."""
    seen: dict[object, int] = {}
    return np.array([seen.setdefault(value, len(seen)) for value in values], dtype=np.int64)


def _grouped(keys: Ints) -> tuple[frozenset[int], ...]:
    found: dict[int, list[int]] = {}
    for device, key in enumerate(keys.tolist()):
        found.setdefault(key, []).append(device)
    return tuple(frozenset(devices) for devices in found.values())
