"""Bytes of each node by a plan's links: by hand, by conservation, and against the cost model's bytes by link."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

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
from holdfast.planner.placement.expected import NodeBytes, node_bytes
from holdfast.planner.placement.sites import Reach, Site, Sites
from holdfast.trainer.pipeline.crossings import crossing_plan

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


def unlike(tps: tuple[int, ...], dp: int = 1) -> Plan:
    stages = tuple(Layers(i, i + 1, i) for i in range(len(tps)))
    mesh = Mesh.of(pp=len(tps), dp=dp, tp=max(tps), tps=tps)
    return Plan("by hand", mesh, stages, 1, ((),) * len(tps))


def between(found: NodeBytes) -> dict[tuple[int, int], float]:
    return dict(zip(zip(found.one.tolist(), found.other.tolist(), strict=True), found.amount.tolist(), strict=True))


def test_messages_of_each_boundary_by_hand() -> None:
    """Three stages whose messages differ, two replicas, a rank on each node."""
    traffic = PlannedTraffic((0.0,) * 3, (1.0, 2.0, 4.0), message=999.0, messages=(100.0, 10.0))
    found = between(node_bytes(plan(3, 2, 1, [(0, 1, 2)]), traffic, 1))
    assert found == {
        (0, 1): 1.0, (1, 0): 1.0, (2, 3): 2.0, (3, 2): 2.0, (4, 5): 4.0, (5, 4): 4.0,
        (0, 2): 100.0, (2, 0): 100.0, (1, 3): 100.0, (3, 1): 100.0,
        (2, 4): 10.0, (4, 2): 10.0, (3, 5): 10.0, (5, 3): 10.0,
        (1, 2): 0.0, (3, 4): 0.0, (5, 0): 0.0,
    }  # fmt: skip


def test_pipeline_ranks_that_differ_in_tp_by_hand() -> None:
    """tp 4 and 2, two replicas, nodes of 4: ranks 0-3 and 4-7 are stage 0, 8-9 and 10-11 stage 1."""
    traffic = PlannedTraffic((3.0, 5.0), (10.0, 20.0), tied=7.0, world=0.25, messages=(100.0,))
    found = node_bytes(unlike((4, 2), dp=2), traffic, 4)
    assert (found.sizes, found.pp) == ((8, 4), 2)
    # Four columns of tp between node0 and node1; node2 has both replicas of stage 1. A message enters a node once. The
    # ring of a tied table, 0 1 2 3 8 9 and 4 5 6 7 10 11, leaves each end's node once.
    once = 100.0 + 7.0
    assert between(found) == {
        (0, 1): 40.25, (1, 0): 40.0, (0, 2): once, (2, 0): once + 0.25, (1, 2): once + 0.25, (2, 1): once,
    }  # fmt: skip
    # With positions split, the same bytes in all: a half of each message to each of two.
    split = node_bytes(unlike((4, 2), dp=2), replace(traffic, split=True), 4)
    assert between(split) == between(found)


def test_ranks_that_differ_in_tp_on_nodes_of_their_own() -> None:
    """tp 4 and 2: tensor rings, messages by the positions that two have in common, and the ring of all."""
    traffic = PlannedTraffic((3.0, 5.0), (0.0, 0.0), messages=(100.0,), split=True)
    rings = {(0, 1): 3.0, (1, 2): 3.0, (2, 3): 3.0, (3, 0): 3.0, (4, 5): 5.0, (5, 4): 5.0, (3, 4): 0.0, (5, 0): 0.0}
    crossing = {(i, 4 + i // 2): 25.0 for i in range(4)} | {(4 + i // 2, i): 25.0 for i in range(4)}
    found = between(node_bytes(unlike((4, 2)), traffic, 1))
    assert found == {key: rings.get(key, 0.0) + crossing.get(key, 0.0) for key in {*rings, *crossing}}
    tied = between(node_bytes(unlike((4, 2)), PlannedTraffic((0.0, 0.0), (0.0, 0.0), tied=7.0, messages=(0.0,)), 1))
    assert {key: value for key, value in tied.items() if value} == {(i, (i + 1) % 6): 7.0 for i in range(6)}
    # Boundaries that differ: halves of 100 between ranks 0 and 1 and rank 2, and of 10 between that and 3 and 4.
    three = PlannedTraffic((0.0,) * 3, (0.0,) * 3, messages=(100.0, 10.0), split=True)
    assert node_bytes(unlike((2, 1, 2)), three, 1).sent.tolist() == [50.0, 50.0, 110.0, 5.0, 5.0]


@pytest.mark.parametrize("tps", [(1, 2), (4, 2), (2, 6), (6, 4), (3, 2), (2, 2), (4, 8), (4, 4, 2)])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("per_node", [1, 2, 4, 5])
def test_messages_between_unlike_tp_are_those_of_the_transfer_plan(
    tps: tuple[int, ...], split: bool, per_node: int
) -> None:
    """By node, against the messages that the trainer's ranks send each other: (batch, positions, width) of 4 bytes.
    Where one replica fills nodes, stages share some: 6 and 4 ranks on nodes of 5."""
    dp = per_node if sum(tps) % per_node else 1
    one, shape = unlike(tps, dp), (2, 24, 8)
    whole = float(2 * 24 * 8 * 4)
    sent: dict[int, float] = {}
    received: dict[int, float] = {}
    hosts = [rank // per_node for rank in range(one.mesh.world)]
    rows = [[[one.mesh.rank(pp=p, dp=d, tp=t) for t in range(tp)] for d in range(dp)] for p, tp in enumerate(tps)]
    for here, there in [*pairwise(rows), *((b, a) for a, b in pairwise(rows))]:
        for sources, targets in zip(here, there, strict=True):
            moves = crossing_plan(sources, targets, shape, split, hosts, 4)
            for message in (message for move in moves.moves for message in moves.messages(move)):
                if hosts[message.source] != hosts[message.target]:
                    count = 4.0 * (message.stop - message.start)
                    sent[hosts[message.source]] = sent.get(hosts[message.source], 0.0) + count
                    received[hosts[message.target]] = received.get(hosts[message.target], 0.0) + count
    stages = len(tps)
    traffic = PlannedTraffic((0.0,) * stages, (0.0,) * stages, messages=(whole,) * (stages - 1), split=split)
    found = node_bytes(one, traffic, per_node)
    assert found.received == pytest.approx([received.get(node, 0.0) for node in range(found.nodes)])
    assert found.sent == pytest.approx([sent.get(node, 0.0) for node in range(found.nodes)])


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
    with pytest.raises(UsageError, match="a mesh of pp, dp and tp"):
        node_bytes(Plan("1f1b", Mesh.of(pp=2, dp=2, cp=2), one.stages, 1, ((), ())), traffic, 1)
    other = Plan("1f1b", Mesh.of(pp=2, dp=1, tp=2, tps=(1, 2)), one.stages, 1, ((), ()))
    for wrong in (traffic, replace(traffic, messages=(1.0, 1.0))):
        with pytest.raises(UsageError, match="of other stages"):
            node_bytes(other, wrong, 1)
    with pytest.raises(UsageError, match="of other stages"):
        node_bytes(one, replace(traffic, messages=(1.0, 1.0)), 1)
    with pytest.raises(UsageError, match="replicas of a stage differ in tp"):
        node_bytes(replace(other, replicas=((1, 0),)), replace(traffic, messages=(1.0,)), 1)
    for amount in (-1.0, float("nan"), 2 * MOST_BYTES):
        with pytest.raises(ValueError, match=r"message of .* bytes: must be from 0"):
            PlannedTraffic(message=amount)
        with pytest.raises(ValueError, match=r"tensor of .* bytes: must be from 0"):
            PlannedTraffic((amount,))
    with pytest.raises(ValueError, match="replicas has 65537 entries"):
        PlannedTraffic(replicas=(0.0,) * 65537)
