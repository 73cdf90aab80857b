"""Why there is no layout, and what would be possible instead."""

from __future__ import annotations

from dataclasses import replace

from holdfast.base.errors import UsageError
from holdfast.plan.transformer import Transformer
from holdfast.planner.cluster.cluster import Cluster
from holdfast.planner.cluster.errors import ClusterError
from holdfast.planner.cost.layout import Layout, LayoutError
from holdfast.planner.cost.predict import CostModel
from holdfast.planner.search.space import Space, families
from holdfast.planner.unlike.blocks import is_unlike, obstacle

_TIMES = (2, 4, 8, 16, 32, 64)
"""So many times the nodes are tried where a model does not fit."""


class NothingFits(UsageError):
    """No layout is possible; the text says what would be."""


class NothingFound(NothingFits):
    """Time was up before a layout was found that fits; there may be one."""


def no_family(model: Transformer, cluster: Cluster, samples: int, space: Space) -> str:
    """Of a cluster on which nothing divides: how many of its nodes would do, or which batch."""
    text = f"no layout has {samples:,} samples in a step on {cluster.world:,} devices"
    if is_unlike(cluster):
        text += f" ({obstacle(cluster)})"
    if space.pp or space.dp or space.tp or space.micro_batch_sizes:
        anything = replace(space, pp=(), dp=(), tp=(), micro_batch_sizes=())
        if next(families(model, cluster, samples, anything), None) is not None:
            return f"{text} with the axes that were asked for: leave some of pp, dp, tp and micro-batch sizes open"
    for idle in range(space.idle_nodes + 1, len(cluster.nodes)):
        if next(
            families(model, _first(cluster, len(cluster.nodes) - idle), samples, replace(space, idle_nodes=0)), None
        ):
            used = len(cluster.nodes) - idle
            return (
                f"{text} and {model.heads} heads: {used} of {len(cluster.nodes)} nodes would do (--idle-nodes {idle})"
            )
    return f"{text}: dp must divide the samples, tp {model.kv_heads or model.heads} heads, pp be {model.layers} at most"


def no_member(model: Transformer, cluster: Cluster, samples: int) -> str:
    """Of a search in which every layout was refused for what it combines."""
    return (
        f"no schedule takes {samples:,} samples in a step on {cluster.world:,} devices with these settings: leave "
        "schedule, chunks, ZeRO stage or recompute open"
    )


def no_time(looked_at: int, all_of_them: int, limit: float, held: float | None) -> str:
    """Of a search that time ended. `held`: bytes of the smallest of those that are too large, at least."""
    smallest = "" if held is None else f", and the smallest of them needs {_gb(held)} or more"
    return (
        f"time was up before a layout was found that fits in {_gb(limit)} a device: {looked_at:,} of {all_of_them:,} "
        f"were looked at{smallest}; more time looks at the rest"
    )


def too_large(costs: CostModel, model: Transformer, held: float, layout: Layout, limit: float) -> str:
    """Of a model that no layout fits: what the smallest needs at least, and how many nodes would do."""
    text = (
        f"no layout fits in {_gb(limit)} a device: the smallest (pp={layout.pp} dp={layout.dp} tp={layout.tp} "
        f"{layout.schedule}, ZeRO {layout.zero}, recompute {layout.recompute}) needs {_gb(held)} or more"
    )
    for times in _TIMES:
        found = _on(costs, model, layout, times)
        if found is not None and found <= limit:
            nodes = len(costs.cluster.nodes) * times
            return f"{text}; {nodes:,} nodes like these would do"
    return f"{text}; take fewer samples in a micro-batch, shorter ones, or a smaller model"


def _on(costs: CostModel, model: Transformer, layout: Layout, times: int) -> float | None:
    """Bytes of the fullest rank on so many times the nodes, states shared out and layers recomputed; None if no layout
    can be there, or if nothing is known of links between nodes. By the bound, which is exact for 1F1B."""
    cluster = costs.cluster
    try:
        larger = CostModel(replace(cluster, nodes=cluster.nodes * times), costs.precision, costs.profile)
    except ClusterError:
        return None
    best = None
    for pp in sorted({layout.pp, min(model.layers, layout.pp * times)}):
        world = cluster.world * times
        if world % (pp * layout.tp):
            continue
        dp = world // (pp * layout.tp)
        spread = Layout(pp, dp, layout.tp, micro_batches=dp * 2 * pp, zero=3 if dp > 1 else 0, recompute="full",
                        sequence=layout.sequence, shard_vocabulary=layout.shard_vocabulary)  # fmt: skip
        try:
            spread.check(model)
        except LayoutError:
            continue
        held = larger.least_bytes(model, spread)
        best = held if best is None else min(best, held)
    return best


def _first(cluster: Cluster, nodes: int) -> Cluster:
    return replace(cluster, nodes=cluster.nodes[:nodes])


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.3g} GB"
