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
from holdfast.planner.cost.traffic import (
    contributed,
    module_traffic,
    planned_traffic,
    unlike_traffic,
    wire_of,
    with_curvature,
)
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


@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("zero", [0, 1])
def test_stages_that_differ_in_tp(sequence: bool, zero: int) -> None:
    """3 layers on tp 4 and 2 on tp 2, two replicas: by hand, from the shape."""
    model, precision = Transformer(5, 64, 4, 512, 32, norm="rms", tied=True), Precision(weight=4, gradient=4)
    layout = Layout(pp=2, dp=2, tp=4, micro_batches=8, micro_batch_size=2, zero=zero, sequence=sequence)
    found = unlike_traffic(model, layout, (4, 2), precision)
    matrices, norm, table = 12 * 64**2, 64, 512 * 64
    activation = 2 * 32 * 64 * 4
    # Of each layer two sums forward and two backward, 2 (t - 1) / t of an activation from each rank; and with sequence
    # parallelism the sums of what is not split, of which a replica has its half from ZeRO stage 1 on.
    sums, owned = 4 * 4 * activation, 1 if zero == 0 else 1 / 2
    alike = (3 * 2 * norm + table, 2 * 2 * norm + norm + table)
    for place, (tp, layers) in enumerate(((4, 3), (2, 2))):
        of_norms = 2 * (tp - 1) / tp * alike[place] * 4 * owned * sequence
        assert found.tensor[place] == pytest.approx(2 * (tp - 1) / tp * layers * sums + of_norms)
    # Stage 1 gathers and reduces once, stage 0 sums: the same bytes with numbers of one size.
    held = (3 * (matrices / 4 + 2 * norm) + table, 2 * (matrices / 2 + 2 * norm) + norm + table)
    assert found.replicas == pytest.approx([1 / 2 * 2 * 4 * one for one in held])
    assert found.messages == (4 * activation,)
    assert found.split is sequence
    assert found.tied == pytest.approx(2 * 5 / 6 * 4 * table * owned)
    assert found.world * 12 == 2 * 11 * 8 * (2 + 12)
    # Ends of one tp exchange their tables place by place.
    same = unlike_traffic(model, replace(layout, pp=3), (2, 4, 2), precision)
    assert same.tied == pytest.approx(4 * table * owned)
    assert same.messages == (4 * activation,) * 2
    halves = unlike_traffic(model, replace(layout, pp=3, shard_vocabulary=True), (2, 4, 2), precision)
    assert halves.tied == pytest.approx(4 * table / 2 * owned)
    assert unlike_traffic(replace(model, tied=False), layout, (4, 2), precision).tied == 0.0


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_a_module_of_known_sizes(zero: int) -> None:
    """Two stages of 1000 and 400 parameters, 90 bytes between them, 120 parameters in both; 4 replicas."""
    layout = Layout(pp=2, dp=4, micro_batches=8, zero=zero)
    times = [(0, 1), (0, 1)] if zero == 0 else [(1, 1), (1, 2)]
    found = module_traffic(layout, (1000, 400), (90,), 120, Precision(weight=2, gradient=4), times)
    each = (2 * 4, 2 * 4) if zero == 0 else (2 + 4, 2 + 2 * 4)
    assert found.replicas == pytest.approx((3 / 4 * 1000 * each[0], 3 / 4 * 400 * each[1]))
    assert found.messages == (2 * 90,)
    assert found.message == 2 * 90, "what an older reader expects"
    assert found.tied == 120 * 2 / (1 if zero == 0 else 4)
    assert found.tensor == (0.0, 0.0)
    assert found.world * 8 == 2 * 7 * 8 * (2 + 8)
    # Both ways through the pipeline: each pipe has half of the micro-batches, and both ends are on one rank.
    turned = module_traffic(replace(layout, schedule="chimera"), (1000, 400), (90,), 120, Precision(2, 4), times)
    assert (turned.messages, turned.tied) == ((90.0,), 0.0)
    assert turned.replicas[0] == pytest.approx(7 / 8 * 1000 * each[0])
    whole = module_traffic(replace(layout, pp=1), (1280,), (), 0, Precision(2, 4), times[:1])
    assert (whole.messages, whole.message, whole.tied) == ((), 0.0, 0.0)


@pytest.mark.parametrize("block", ["serial", "parallel"])
def test_preconditioned_gradients(block: str) -> None:
    """Of 4 replicas, each matrix three times: over 4 links, 3/4 of all matrices; and 8 bytes for the clip."""
    model = Transformer(5, 64, 4, 512, 32, mlp="swiglu", ffn_width=96, block=block)
    layout, precision = Layout(pp=2, dp=4, micro_batches=8, zero=0), Precision(weight=2, gradient=4)
    bare = planned_traffic(model, layout, parts(model, layout, precision), precision)
    layer, head = 4 * 64 * 64 + 3 * 64 * 96, 512 * 64
    assert sum(rows * columns for rows, columns in model.layer_matrices) == layer
    found = with_curvature(bare, model, layout, precision, 512, True)
    more = [a - b for a, b in zip(found.replicas, bare.replicas, strict=True)]
    assert more == pytest.approx([3 / 4 * 4 * 3 * layer, 3 / 4 * 4 * (2 * layer + head)])
    assert (found.world - bare.world) * 8 == pytest.approx(2 * 8 * 4)
    assert replace(found, replicas=bare.replicas, world=bare.world) == bare
    # The head's longest side is 512; tied it is a table; and the widest of a layer's is 192, or 384 side by side.
    for without in (
        with_curvature(bare, model, layout, precision, 511, False),
        with_curvature(bare, replace(model, tied=True), layout, precision, 512, False),
    ):
        assert without.replicas[1] - bare.replicas[1] == pytest.approx(3 / 4 * 4 * 2 * layer)
        assert without.world == bare.world
    small = with_curvature(bare, model, layout, precision, 191, False)
    kept = layer - 3 * 64 * 64 if block == "serial" else 64 * (64 + 96)
    assert small.replicas[0] - bare.replicas[0] == pytest.approx(3 / 4 * 4 * 3 * kept)
