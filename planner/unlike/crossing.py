"""Bytes of a step that go from one type of NIC to another, by closed form. Pure.

Of a layout that keeps its groups (`blocks.keeps`): activations and their gradients,
2 N b s h x bytes of a number for each boundary between stages of unlike types (with N micro-batches of b samples of s
tokens over all replicas; as often as tp without sequence parallelism, since each tp rank sends the whole). A tied table
adds its sum if the first and the last stage are of unlike types; loss and norm are some bytes, and are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from holdfast.plan.transformer import Transformer
from holdfast.planner.cluster.cluster import Cluster
from holdfast.planner.cost.groups import lines_of
from holdfast.planner.cost.layers import Precision
from holdfast.planner.cost.layout import Layout
from holdfast.planner.unlike.blocks import types_by_stage


@dataclass(frozen=True, slots=True)
class Crossing:
    """Bytes of a step over all ranks, both ways."""

    boundaries: int
    """Between stages on unlike types."""
    pipeline: float
    tied: float = 0.0

    @property
    def total(self) -> float:
        return self.pipeline + self.tied


def crossing(model: Transformer, layout: Layout, cluster: Cluster, precision: Precision) -> Crossing:
    """ValueError for a layout with a group that spans types."""
    types = types_by_stage(cluster, layout.pp, layout.dp, layout.tp)
    places = layout.places[0]
    count = sum(types[a] != types[b] for a, b in pairwise(places))
    copies = 1 if layout.sequence else layout.tp
    unit = layout.micro_batch_size * model.length * model.width * precision.weight
    tied = 0.0
    if model.tied and types[places[0]] != types[places[-1]]:
        tables = (1 if layout.shard_vocabulary else layout.tp) * (layout.replicas if layout.zero == 0 else 1)
        tied = 2.0 * model.table_parameters * precision.weight * tables
    return Crossing(count, 2.0 * layout.micro_batches * unit * copies * count, tied)


def ring_bytes(cluster: Cluster, pp: int, dp: int, tp: int, summed: float) -> float:
    """Bytes that sums over replicas send across types in any order of nodes: 2 (dp - 1) / dp x `summed` for each edge
    of a ring whose ends are unlike. `summed`: bytes of gradients of a rank."""
    if dp == 1:
        return 0.0
    edges = 0
    for row in lines_of(pp, dp, tp, "dp").tolist():
        nics = [next(iter(cluster.nic_types((rank,)))) for rank in row]
        edges += sum(a != b for a, b in zip(nics, nics[1:] + nics[:1], strict=True))
    return edges * 2.0 * (dp - 1) / dp * summed
