"""Bytes on the wire against the trainer's count, which is held to counted packets; by link by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from holdfast.plan.plan import Op
from holdfast.plan.transformer import Transformer
from holdfast.planner.cluster.cluster import Level
from holdfast.planner.cluster.file import parse
from holdfast.planner.cost.layers import Precision, parts
from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.predict import CostModel
from holdfast.planner.cost.traffic import contributed, planned_traffic, wire_of
from holdfast.trainer.optim.traffic import traffic
from holdfast.trainer.pipeline.pipeline import build_plan
from tests.planner.support.settings import VOCAB, both

CASES: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {
    "tp": ((1, 1, 2), {}),
    "tp sequence serial": ((1, 1, 4), {"sequence": True, "block": "serial"}),
    "vocabulary": ((1, 1, 4), {"sequence": True, "shard_vocabulary": True, "norm": "layer", "positions": "learned"}),
    "pp": ((4, 1, 1), {}),
    "tied": ((2, 2, 1), {"tied": True, "zero": 1}),
    "zbv": ((2, 1, 1), {"schedule": "zbv"}),
    "zero 0": ((1, 4, 1), {"zero": 0}),
    "zero 2": ((1, 4, 1), {"zero": 2}),
    "zero 3": ((1, 4, 1), {"zero": 3}),
    "pipes": ((2, 2, 1), {"schedule": "chimera", "zero": 1}),
    "all": ((2, 2, 2), {"zero": 2, "tied": True, "sequence": True, "dtype": "bfloat16"}),
    "grouped": ((1, 2, 2), {"zero": 1, "kv_heads": 2, "mlp": "swiglu", "heads": 4}),
}


@pytest.mark.parametrize("case", CASES)
def test_as_the_trainer_counts(case: str) -> None:
    (pp, dp, tp), settings = CASES[case]
    sizes = {"layers": 4, "d_model": 64, "heads": 4, "seq_len": 32, "micro_batches": 8, "micro_batch_size": 2}
    config, trainer_layout, shape, layout, precision = both(pp, dp, tp, **{**sizes, **settings})
    expected = asdict(traffic(config, trainer_layout, build_plan(config, trainer_layout, torch.device("cuda")), VOCAB))
    axes: dict[str, dict[Level, float]] = {axis: {} for axis in ("tp", "dp", "pp", "world", "ends")}
    found = wire_of(shape, layout, parts(shape, layout, precision), precision, axes)
    assert {name: round(value) for name, value in found.by_purpose.items()} == {
        name: expected[name] for name in ("tensor", "pipeline", "replicas", "world")
    }


@pytest.mark.parametrize("case", CASES)
def test_links_carry_what_the_trainer_counts(case: str) -> None:
    """Over all links; replicas as often as the trainer's plan gathers and sums, and that by stage."""
    (pp, dp, tp), settings = CASES[case]
    sizes = {"layers": 4, "d_model": 64, "heads": 4, "seq_len": 32, "micro_batches": 8, "micro_batch_size": 2}
    config, trainer_layout, shape, layout, precision = both(pp, dp, tp, **{**sizes, **settings})
    plan = build_plan(config, trainer_layout, torch.device("cuda"))
    expected = traffic(config, trainer_layout, plan, VOCAB)
    counts = Counter((action.op, action.stage) for _, action in plan.actions())
    times = [
        (counts[Op.UNSHARD, stage] / plan.pipes, counts[Op.REDUCE_GRAD, stage] / plan.pipes)
        for stage in range(layout.stages)
    ]
    for by in (times, ()):
        found = planned_traffic(shape, layout, parts(shape, layout, precision), precision, by)
        group, pipes = layout.dp * layout.tp, layout.places
        hops = sum(a != b for pipe in pipes for a, b in pairwise(pipe))
        assert sum(found.tensor) * group == pytest.approx(expected.tensor)
        assert 2 * group * (hops * found.message + found.tied) == pytest.approx(expected.pipeline)
        assert sum(found.replicas) * layout.replicas * layout.tp == pytest.approx(expected.replicas)
        assert found.world * layout.world == pytest.approx(expected.world)


def test_stages_differ_by_what_they_hold() -> None:
    """The first has the table, the last the head: 5 layers on 2 stages are 3 and 2."""
    model = Transformer(5, 64, 4, 512, 32)
    layout, precision = Layout(pp=2, dp=4, tp=2, micro_batches=8, sequence=True), Precision()
    known = parts(model, layout, precision)
    found = planned_traffic(model, layout, known, precision)
    layer, table = known.layer.params, 512 * 64
    assert known.first.params == table
    # Stage 1 of ZeRO gathers weights of 2 bytes once, and reduces gradients of 4.
    assert found.replicas == pytest.approx(
        (3 / 4 * 6 * (3 * layer + table), 3 / 4 * 6 * (2 * layer + known.last.params))
    )
    # Norms, the table and the head are held alike by tp ranks: one of 4 replicas' shards adds up each gradient.
    norm = 2 * 64
    alike = 2 * (2 - 1) * 2 / 4
    sends = sum(size for _, size in (*known.layer.sends_f, *known.layer.sends_b))
    assert {op.value for op, _ in (*known.layer.sends_f, *known.layer.sends_b)} == {"all_gather", "reduce_scatter"}
    assert found.tensor == pytest.approx(
        (
            (2 * 3 * sends + alike * (3 * 2 * norm + table)) / 2,
            (2 * 2 * sends + alike * (2 * 2 * norm + norm + table)) / 2,
        )
    )
    assert found.tied == 0.0
    assert found.message == 2 * known.layer.boundary


def test_by_link() -> None:
    """2 nodes of 4 devices, one switch: tp stays in the node, of each dp ring of 4 one link in two leaves it."""
    cluster = parse('gpu = "A100"\nnodes = 2\ngpus_per_node = 4\n[links.switch]\ngbit_per_s = 200\n')
    model = Transformer(4, 256, 4, 512, 128)
    found = CostModel(cluster).predict(model, Layout(pp=1, dp=4, tp=2, micro_batches=8)).wire
    purposes = found.by_purpose
    # The ring over all: 8 links, 2 of them between the nodes.
    apart = purposes["replicas"] * 2 / 4 + purposes["world"] * 2 / 8
    assert found.by_link[Level.SWITCH] == pytest.approx(apart)
    assert sum(found.by_link.values()) == pytest.approx(found.total)
    piped = CostModel(cluster).predict(model, Layout(pp=2, dp=2, tp=2, micro_batches=8)).wire
    # Stage 0 is one node and stage 1 the other.
    crossing = piped.by_purpose["pipeline"] + piped.by_purpose["world"] * 2 / 8
    assert piped.by_link[Level.SWITCH] == pytest.approx(crossing)


def test_roles_of_replicas_send_a_share_of_an_all_reduce() -> None:
    """k sections of P/k, d = k: to add up (k - 1) P, half of 2(k - 1) P; and means to those without, half as much."""
    model, precision = Transformer(8, 64, 4, 512, 32), Precision()
    known = parts(model, Layout(dp=4), precision)
    bare = replace(known, first=replace(known.first, params=0), last=replace(known.last, params=0))
    whole = 8 * known.layer.params * precision.gradient
    for k in (1, 2, 4, 8):
        (ring,) = contributed(model, bare, precision, k, k).replicas
        assert ring * k == pytest.approx((k - 1) * whole + (k - 1) / 2 * whole)
    # Of two roles on four replicas by hand: the head's section has four contributors, the table's two.
    (ring,) = contributed(model, known, precision, 4, 2).replicas
    half, gradient = 4 * known.layer.params, precision.gradient
    head, table = half + known.last.params, half + known.first.params
    assert ring * 4 == pytest.approx((2 * 3 * head + (2 * 1 + 2) * table) * gradient)
    assert contributed(model, known, precision, 4, 2).world * 4 == 2 * 3 * 8 * (2 + 4)
