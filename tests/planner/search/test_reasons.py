"""Why there is no layout: what is said, against layouts that are named here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.plan.transformer import Transformer
from holdfast.planner.cluster.cluster import Cluster
from holdfast.planner.cluster.file import parse
from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.predict import CostModel
from holdfast.planner.search.reasons import no_family, no_member, too_large
from holdfast.planner.search.space import Space

MODEL = Transformer(layers=16, width=1024, heads=4, vocab=1024, length=128)


def cluster(nodes: int, gpus: int) -> Cluster:
    return parse(f'gpu = "A100"\nnodes = {nodes}\ngpus_per_node = {gpus}\n[links.switch]\ngbit_per_s = 200\n')


def test_axes_that_were_asked_for_are_named_if_others_would_do() -> None:
    for space in (Space(pp=(3,)), Space(tp=(8,)), Space(dp=(5,)), Space(micro_batch_sizes=(7,))):
        text = no_family(MODEL, cluster(2, 4), 16, space)
        assert text == (
            "no layout has 16 samples in a step on 8 devices with the axes that were asked for: "
            "leave some of pp, dp, tp and micro-batch sizes open"
        )


def test_the_most_nodes_that_would_do_are_named() -> None:
    """24 and 20 devices have a factor of 3 or 5 that neither 16 samples, 4 heads nor 2 layers have."""
    text = no_family(replace(MODEL, layers=2), cluster(6, 4), 16, Space(idle_nodes=0))
    assert text.endswith("on 24 devices and 4 heads: 4 of 6 nodes would do (--idle-nodes 2)")
    text = no_family(replace(MODEL, layers=2), cluster(6, 4), 16, Space(idle_nodes=1))
    assert text.endswith("4 of 6 nodes would do (--idle-nodes 2)")


@pytest.mark.parametrize(("kv_heads", "heads"), [(0, 4), (2, 2)])
def test_what_must_divide_is_named_where_no_number_of_nodes_would_do(kv_heads: int, heads: int) -> None:
    model = replace(MODEL, layers=2, kv_heads=kv_heads)
    text = no_family(model, cluster(1, 7), 16, Space())
    assert text == (
        "no layout has 16 samples in a step on 7 devices: "
        f"dp must divide the samples, tp {heads} heads, pp be 2 at most"
    )
    assert no_member(model, cluster(1, 7), 1600).startswith("no schedule takes 1,600 samples in a step on 7 devices")


def fullest(nodes: int, layout: Layout) -> float:
    return max(one.total for one in CostModel(cluster(nodes, 8)).memory(MODEL, layout))


@pytest.mark.parametrize(
    ("asked", "spread"),
    [
        # On twice the nodes as many stages with more replicas, or twice the stages.
        (Layout(2, 2, 2), [Layout(2, 4, 2, micro_batches=16, zero=3), Layout(4, 2, 2, micro_batches=16, zero=3)]),
        # 16 stages fill them: there is no replica to share states with.
        (Layout(8, 1, 1), [Layout(8, 2, 1, micro_batches=32, zero=3), Layout(16, 1, 1, micro_batches=32, zero=0)]),
        (Layout(4, 1, 2), [Layout(4, 2, 2, micro_batches=16, zero=3), Layout(8, 1, 2, micro_batches=16, zero=0)]),
        # 16 layers are 16 stages at most.
        (Layout(16, 1, 1), [Layout(16, 1, 1, micro_batches=32, zero=0)]),
    ],
)
def test_the_smallest_number_of_nodes_that_would_do_is_named(asked: Layout, spread: list[Layout]) -> None:
    needed = min(fullest(2, replace(one, recompute="full")) for one in spread)
    costs = CostModel(cluster(1, 8))
    text = too_large(costs, MODEL, 12.34e9, asked, needed)
    assert text == (
        f"no layout fits in {needed / 1e9:.3g} GB a device: the smallest (pp={asked.pp} dp={asked.dp} "
        f"tp={asked.tp} 1f1b, ZeRO 1, recompute none) needs 12.3 GB or more; 2 nodes like these would do"
    )
    more = too_large(costs, MODEL, 12.34e9, asked, needed * (1 - 1e-6))
    assert "; 2 nodes" not in more
    assert too_large(costs, MODEL, 12.34e9, asked, 1.0).endswith(
        "take fewer samples in a micro-batch, shorter ones, or a smaller model"
    )


def test_no_more_nodes_are_named_where_no_link_between_nodes_is_known() -> None:
    alone = CostModel(parse('gpu = "A100"\nnodes = 1\ngpus_per_node = 8\n'))
    text = too_large(alone, MODEL, 12.34e9, Layout(2, 2, 2), 10e9)
    assert text == (
        "no layout fits in 10 GB a device: the smallest (pp=2 dp=2 tp=2 1f1b, ZeRO 1, "
        "recompute none) needs 12.3 GB or more; take fewer samples in a micro-batch, shorter ones, or a smaller model"
    )
