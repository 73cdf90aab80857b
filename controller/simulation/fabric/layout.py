"""Where a simulated job is in a made-up CLOS network, and what its steps send. Pure.

The lowest switches are those of the cluster's shape: hosts under one switch share their rails' lowest switches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.controller.simulation.hosts import ClusterShape
from holdfast.planner.network.clos import Clos
from holdfast.planner.network.flows import Ints
from holdfast.planner.network.traffic import StepTraffic, places

NIC_BYTES_PER_S = 50e9
"""400 Gbit/s."""
SUMS_SHARE, MESSAGES_SHARE = 0.12, 0.03
"""Of a step, were nothing in the way: its rings of replicas, which nothing hides, and one direction of its messages
between stages, which computation does. Made up; MegaScale's steps at 12,288 GPUs are about as much communication."""
BURSTS = 8
"""Micro-batches of a step, each with its messages."""


def clos_for(shape: ClusterShape) -> Clos:
    """A NIC for each GPU, a rail for each place in a host. Uplinks are twice as fast as NICs where three tiers of such
    switches are enough, and as fast as NICs where they are not. Where the cluster is too large for that, too, switches
    are larger: then several of the shape's switches are one."""
    nics = (shape.nodes + shape.spares) * shape.gpus
    split = 2 if shape.per_switch % 2 == 0 and _most(shape.per_switch, 2) >= nics else 1
    ports = 2 * shape.per_switch // split
    while ports < 1024 and nics > ports**3 // 4 * split:
        ports = min(1024, 2 * ports)
    return Clos(nics, ports, split, shape.gpus, split * NIC_BYTES_PER_S)


def _most(below: int, split: int) -> int:
    """NICs of three tiers whose lowest switches have so many each."""
    ports = 2 * below // split
    return ports**3 // 4 * split


def mesh_for(nodes: int, gpus: int) -> tuple[int, int, int]:
    """(pp, dp, tp): tensor parallelism inside a host, two stages where they leave each two replicas or more."""
    pp = 2 if nodes >= 4 and nodes % 2 == 0 else 1
    return pp, nodes // pp, gpus


@dataclass(frozen=True)
class Layout:
    """`seats`: number of the host of each node of the job, in the order of ranks. `calm_s`: seconds of a step."""

    clos: Clos
    seats: tuple[int, ...]
    calm_s: float

    @property
    def gpus(self) -> int:
        return self.clos.rails

    @property
    def traffic(self) -> StepTraffic:
        pp, dp, tp = mesh_for(len(self.seats), self.gpus)
        second = self.calm_s * NIC_BYTES_PER_S
        return StepTraffic(pp, dp, tp, SUMS_SHARE * second, MESSAGES_SHARE * second)

    def place(self) -> Ints:
        """The NIC of each rank, shape (pp, dp, tp)."""
        found = places(self.traffic)
        seats = np.array(self.seats, dtype=np.int64)
        taken: Ints = seats[found // self.gpus] * self.gpus + found % self.gpus
        return taken

    def nics_of(self, host: int) -> Ints:
        return host * self.gpus + np.arange(self.gpus)


def layout_of(shape: ClusterShape, numbers: Sequence[int]) -> Layout:
    """`numbers`: of the job's hosts among all of the cluster's, in the order of ranks."""
    return Layout(clos_for(shape), tuple(numbers), shape.step)
