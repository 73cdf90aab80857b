"""What the ranks of a job send each other in a step: rings of replicas, and messages between stages.

Tensor parallelism stays inside a server and is no traffic here. A ring sends at the pace of its slowest edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np

from holdfast.planner.network.clos import Clos
from holdfast.planner.network.errors import NetworkError
from holdfast.planner.network.flows import Floats, Ints, Transfers
from holdfast.planner.network.network import Network

ORDERS = tuple("-".join(order) for order in permutations(("tp", "dp", "pp")))
"""Which axis counts fastest over neighbouring GPUs, first. `tp-dp-pp` is MegaScale's: replicas before stages."""
BEST = "tp-dp-pp"


@dataclass(frozen=True, slots=True)
class StepTraffic:
    """A job's axes, and bytes that a rank sends in a step.

    `sums`: on its edge of the ring of its replicas (2 (d - 1) / d of what is all-reduced); `messages`: to the next
    stage, and as many to the one before.
    """

    pp: int
    dp: int
    tp: int
    sums: float
    messages: float

    def __post_init__(self) -> None:
        if min(self.pp, self.dp, self.tp) < 1:
            raise NetworkError(f"pp {self.pp}, dp {self.dp}, tp {self.tp}: each must be 1 or more")

    @property
    def world(self) -> int:
        return self.pp * self.dp * self.tp


def places(traffic: StepTraffic, order: str = BEST) -> Ints:
    """The NIC of each rank, shape (pp, dp, tp), in an order of `ORDERS`."""
    if order not in ORDERS:
        raise NetworkError(f"order of ranks {order!r}: one of {', '.join(ORDERS)}")
    sizes = {"pp": traffic.pp, "dp": traffic.dp, "tp": traffic.tp}
    slowest_first = order.split("-")[::-1]
    counted = np.arange(traffic.world, dtype=np.int64).reshape([sizes[axis] for axis in slowest_first])
    return counted.transpose([slowest_first.index(axis) for axis in ("pp", "dp", "tp")])


Edges = tuple[Ints, Ints, Ints]
"""Of each edge the NIC that sends, the NIC that receives, and the transfer that it is a part of."""


def ring_edges(traffic: StepTraffic, place: Ints) -> Edges:
    """Rings of replicas, each of them one transfer: edges within a server too, which no NIC sees."""
    ends = place.transpose(0, 2, 1).reshape(-1, traffic.dp)
    source, target = ends.ravel(), np.roll(ends, -1, axis=1).ravel()
    return source, target, np.repeat(np.arange(len(ends)), traffic.dp)


def message_edges(place: Ints) -> Edges:
    """A transfer for each pair of ranks of neighbouring stages and direction."""
    early, late = place[:-1].ravel(), place[1:].ravel()
    source, target = np.concatenate([early, late]), np.concatenate([late, early])
    return source, target, np.arange(len(source))


def sums(traffic: StepTraffic, place: Ints, network: Network) -> Transfers:
    """One transfer for each ring of replicas; an edge's bytes are shared by the network's connections."""
    if traffic.dp == 1:
        return _none()
    source, target, ring = ring_edges(traffic, place)
    return _over(network, source, target, ring, np.full(traffic.pp * traffic.tp, traffic.sums))


def messages(traffic: StepTraffic, place: Ints, network: Network) -> Transfers:
    """One transfer for each pair of ranks of neighbouring stages and direction."""
    if traffic.pp == 1:
        return _none()
    source, target, number = message_edges(place)
    return _over(network, source, target, number, np.full(len(source), traffic.messages))


def _over(network: Network, source: Ints, target: Ints, number: Ints, size: Floats) -> Transfers:
    clos, connections = network.clos, network.connections
    apart = source // clos.rails != target // clos.rails  # GPUs of one server have faster ways than NICs
    source, target, number = source[apart], target[apart], number[apart]
    paths = [network.paths(source, target, pair) for pair in range(connections)]
    return Transfers.of_paths(np.concatenate(paths), np.tile(number, connections), size, 1 / connections)


def _none() -> Transfers:
    return Transfers.of_paths(np.empty((0, 6), dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0))


def edges_above(clos: Clos, place: Ints) -> tuple[int, int]:
    """Edges of the rings of replicas whose ends have another lowest switch, and those in another pod.

    By leaves alone, without paths: what `sums` must agree with.
    """
    target = np.roll(place, -1, axis=1)
    apart = place // clos.rails != target // clos.rails
    below, above = clos.leaf_of(place), clos.leaf_of(target)
    return int((apart & (below != above)).sum()), int((apart & (below // clos.down != above // clos.down)).sum())
