"""Bytes of each node by a plan's links: by hand, by conservation, and against the cost model's bytes by link."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.base.errors import UsageError
from holdfast.plan.plan import Layers, Mesh, Plan
from holdfast.plan.planned_traffic import MOST_BYTES, PlannedTraffic
from holdfast.plan.transformer import Transformer
from holdfast.planner.cluster.cluster import Level
from holdfast.planner.cluster.file import parse
from holdfast.planner.cost.layers import Precision, parts
from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.predict import CostModel
from holdfast.planner.cost.traffic import planned_traffic
from holdfast.planner.placement.expected import node_bytes
from holdfast.planner.placement.sites import Reach, Site, Sites

MODEL = Transformer(layers=8, width=256, heads=8, vocab=512, length=128, tied=True)


def plan(pp: int, dp: int, tp: int, places: list[tuple[int, ...]]) -> Plan:
    stages = tuple(Layers(i, i + 1, rank) for i, rank in enumerate(places[0]))
    return Plan("by hand", Mesh.of(pp=pp, dp=dp, tp=tp), stages, 1, ((),) * pp, tuple(places[1:]))


def of(layout: Layout) -> tuple[Plan, PlannedTraffic]:
    precision = Precision()
    found = planned_traffic(MODEL, layout, parts(MODEL, layout, precision), precision)
    return plan(layout.pp, layout.dp, layout.tp, layout.places), found


def test_by_hand() -> None:
    """pp 2, dp 2, tp 2 on nodes of 2: each is one tp group. node0 and node1 are stage 0, node2 and node3 stage 1."""
    traffic = PlannedTraffic((3.0, 5.0), (10.0, 20.0), message=100.0, tied=1000.0, world=0.25)
    found = node_bytes(plan(2, 2, 2, [(0, 1)]), traffic, 2)
    # Two rings of two over a pair of nodes; both ranks of a node to their places in the other stage; one link of all.
    across = 2 * (100.0 + 1000.0)
    assert found.sent.tolist() == [2 * 10 + across + 0.25] * 2 + [2 * 20 + across + 0.25] * 2
    assert found.received.tolist() == found.sent.tolist()
    links = dict(zip(zip(found.one.tolist(), found.other.tolist(), strict=True), found.amount.tolist(), strict=True))
    assert (links[0, 1], links[1, 0]) == (20.25, 20.0), "the ring of all goes one way"
    assert links[0, 2] == across
    assert (0, 3) not in links
    assert links[1, 2] == 0.25
    whole = node_bytes(plan(2, 2, 2, [(0, 1)]), traffic, 8)
    assert whole.sent.tolist() == [0.0]
    single = node_bytes(plan(2, 2, 2, [(0, 1)]), traffic, 1)
    assert single.sent[0] == 3 + 10 + 1100 + 0.25
    assert single.sent[7] == 5 + 20 + 1100 + 0.25


def test_pipes_that_hold_a_stage_on_several_pipeline_ranks() -> None:
    """Chimera's: stage 0 is on ranks 0 and 1, and so is stage 1. Both add up over all four ranks."""
    found = node_bytes(plan(2, 2, 1, [(0, 1), (1, 0)]), PlannedTraffic((0.0, 0.0), (10.0, 20.0), message=1.0), 1)
    # Both rings visit all ranks in their order; a message each way for each pipe.
    assert found.sent.tolist() == [30.0 + 2.0] * 4


def test_several_stages_on_a_rank() -> None:
    """Interleaved: 0, 1, 0, 1. The way from stage 1 to stage 2 leads back."""
    found = node_bytes(plan(2, 1, 1, [(0, 1, 0, 1)]), PlannedTraffic((0.0, 0.0), (0.0,) * 4, message=1.0), 1)
    assert found.sent.tolist() == [3.0, 3.0]
    turning = node_bytes(
        plan(2, 1, 1, [(0, 1, 1, 0)]), PlannedTraffic((0.0, 0.0), (0.0,) * 4, message=1.0, tied=9.0), 1
    )
    assert turning.sent.tolist() == [2.0, 2.0], "a wave turns on its rank, and ends where it began"


@pytest.mark.parametrize(
    "layout",
    [
        Layout(pp=2, dp=4, tp=2, micro_batches=8, sequence=True),
        Layout(pp=4, dp=2, tp=2, schedule="interleaved", chunks=2, micro_batches=8, zero=0),
        Layout(pp=2, dp=4, tp=2, schedule="chimera", micro_batches=16),
        Layout(pp=1, dp=8, tp=2, micro_batches=8, zero=3),
        Layout(pp=1, dp=2, tp=8, micro_batches=8, sequence=True),
    ],
)
def test_what_leaves_nodes_is_what_the_cost_model_has_between_them(layout: Layout) -> None:
    """Stages that are cut alike: then the share of an axis' links that leave nodes is that of its bytes."""
    cluster = parse('gpu = "A100"\nnodes = 4\ngpus_per_node = 4\n[links.switch]\ngbit_per_s = 200\n')
    wire = CostModel(cluster, precision=Precision()).predict(MODEL, layout).wire
    one, traffic = of(layout)
    found = node_bytes(one, traffic, 4)
    between = sum(value for level, value in wire.by_link.items() if level > Level.NODE)
    assert found.sent.sum() == pytest.approx(found.received.sum())
    assert found.sent.sum() == pytest.approx(between, rel=1e-9)


def test_levels() -> None:
    one, traffic = of(Layout(pp=1, dp=16, tp=1, micro_batches=16))
    found = node_bytes(one, traffic, 4)
    sites = Sites(tuple(Site(f"n{i}", switch="ab"[i // 2]) for i in range(4)))
    levels = found.sent_by_level(sites, [0, 1, 2, 3])
    ring = traffic.replicas[0] + traffic.world
    assert {level: values.tolist() for level, values in levels.items()} == {
        Reach.SWITCH: [ring, 0.0, ring, 0.0], Reach.POD: [0.0, ring, 0.0, ring],
    }  # fmt: skip
    apart = found.sent_by_level(sites, [0, 2, 1, 3])
    assert list(apart) == [Reach.POD]
    assert apart[Reach.POD].tolist() == [ring, ring, ring, ring]
    assert np.sum([values for values in levels.values()]) == pytest.approx(found.sent.sum())


def test_what_is_refused() -> None:
    one, traffic = of(Layout(pp=2, dp=2, micro_batches=2))
    for wrong, per_node, says in (
        (traffic, 3, "4 ranks do not fill nodes of 3"),
        (traffic, 0, "4 ranks do not fill nodes of 0"),
        (PlannedTraffic((1.0,), (1.0, 1.0)), 2, "of other stages"),
        (PlannedTraffic((1.0, 1.0), (1.0,)), 2, "of other stages"),
    ):
        with pytest.raises(UsageError, match=says):
            node_bytes(one, wrong, per_node)
    with pytest.raises(UsageError, match="none of 2 pipeline ranks"):
        node_bytes(plan(2, 2, 1, [(0, 5)]), traffic, 2)
    for mesh in (Mesh.of(pp=2, dp=2, cp=2), Mesh.of(pp=2, dp=1, tp=2, tps=(1, 2))):
        other = Plan("1f1b", mesh, one.stages, 1, ((), ()))
        with pytest.raises(UsageError, match="a mesh of pp, dp and tp"):
            node_bytes(other, traffic, 1)
    for amount in (-1.0, float("nan"), 2 * MOST_BYTES):
        with pytest.raises(ValueError, match=r"message of .* bytes: must be from 0"):
            PlannedTraffic(message=amount)
        with pytest.raises(ValueError, match=r"tensor of .* bytes: must be from 0"):
            PlannedTraffic((amount,))
    with pytest.raises(ValueError, match="replicas has 65537 entries"):
        PlannedTraffic(replicas=(0.0,) * 65537)
