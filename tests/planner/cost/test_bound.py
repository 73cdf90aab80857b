"""The bound of memory against plans: its formulas against lists of computations, its bytes against the prediction."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.plan.plan import LAST_BACKWARDS, Op, Order
from holdfast.plan.schedules.table import SCHEDULES, Placement
from holdfast.plan.transformer import Transformer
from holdfast.planner.cluster.file import parse
from holdfast.planner.cost.layers import Precision
from holdfast.planner.cost.layout import MEMORY, Layout, LayoutError
from holdfast.planner.cost.predict import CostModel

CLUSTER = parse(
    'gpu = "A100"\nnodes = 64\ngpus_per_node = 8\n[links.switch]\ngbit_per_s = 200\n[host]\nmemory_bytes = 1e12\n'
    "bytes_per_s = 25e9\n"
)
COUNTED = sorted(name for name, one in SCHEDULES.items() if one.ahead is not None)


def under_way(order: Order, pipe: int | None = None) -> Counter[int]:
    """By stage, micro-batches that went forward and are not back, when the first backward (of a pipe) would end."""
    now: Counter[int] = Counter()
    for action in order:
        if action.op is Op.FORWARD:
            now[action.stage] += 1
        elif action.op in LAST_BACKWARDS:
            if pipe is None or action.pipe == pipe:
                return now
            now[action.stage] -= 1
    return now


@pytest.mark.parametrize("name", COUNTED)
@settings(deadline=None, max_examples=25)
@given(st.sampled_from([1, 2, 3, 4, 6, 8]), st.integers(1, 4), st.integers(1, 30))
def test_forwards_that_are_ahead_are_those_of_the_lists(name: str, ranks: int, chunks: int, micro_batches: int) -> None:
    schedule = SCHEDULES[name]
    chunks = chunks if schedule.takes_chunks else schedule.chunks
    if schedule.placement is Placement.BOTH_WAYS:
        chunks = 2 * ((chunks + 1) // 2)
        assume(ranks % chunks == 0)
    assume(schedule.obstacle(ranks, micro_batches) is None)
    places = schedule.placement.places(ranks, chunks)
    assert schedule.ahead is not None
    for rank, order in enumerate(schedule.build(ranks, chunks, micro_batches)):
        stages = [stage for pipe in places for stage, at in enumerate(pipe) if at == rank]
        pipes = sorted({one.pipe for one in order}) if len(places) > 1 else [None]
        expected = []
        for pipe in pipes:
            held = under_way(order, pipe)
            expected.append(tuple(held[stage] for stage in stages))
        assert schedule.ahead(rank, ranks, chunks, micro_batches) == expected


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Transformer, Layout]:
    tp = draw(st.sampled_from([1, 2, 4]))
    pp = draw(st.sampled_from([1, 2, 3, 4, 6]))
    dp = draw(st.sampled_from([1, 2, 3]))
    model = Transformer(
        layers=draw(st.integers(pp, 16)), width=64 * draw(st.sampled_from([1, 4, 32])), heads=4,
        vocab=draw(st.sampled_from([64, 1024, 50000])), length=draw(st.sampled_from([16, 128, 1024])),
        tied=draw(st.booleans()), mlp=draw(st.sampled_from(["gelu", "swiglu"])),
    )  # fmt: skip
    policy = draw(st.sampled_from([one for one in MEMORY if one != "chunks"]))
    schedule = draw(st.sampled_from(sorted(SCHEDULES)))
    away = "activations" in policy
    layout = Layout(
        pp, dp, tp, schedule, draw(st.sampled_from([2, 3, 4])) if SCHEDULES[schedule].takes_chunks else 0,
        dp * draw(st.one_of(st.integers(1, 12), st.sampled_from([24, 60, 240]))), draw(st.sampled_from([1, 2])),
        draw(st.integers(0, 3)), draw(st.sampled_from(["none", "selective", "full", "cell"])),
        sequence=tp > 1 and draw(st.booleans()), shard_vocabulary=tp > 1 and draw(st.booleans()),
        is_on_host="states" in policy, activation_blocks=draw(st.sampled_from([2, 8])) if away else 0,
    )  # fmt: skip
    if draw(st.booleans()) and layout.stages <= model.layers:
        shares = draw(st.lists(st.integers(1, 5), min_size=layout.stages, max_size=layout.stages))
        model, layout = replace(model, layers=sum(shares)), replace(layout, stage_layers=tuple(shares))
    return model, layout


@settings(deadline=None, max_examples=150)
@given(layouts(), st.sampled_from(["float32", "bfloat16"]))
def test_no_layout_holds_less_than_its_bound(one: tuple[Transformer, Layout], dtype: str) -> None:
    model, layout = one
    costs = CostModel(CLUSTER, Precision.of(dtype))
    try:
        held = max(rank.total for rank in costs.memory(model, layout))
    except LayoutError:
        assume(False)
        raise
    bound = costs.least_bytes(model, layout)
    assert bound <= held * (1 + 1e-9)
    base = replace(layout, schedule="1f1b", chunks=0, zero=3, stage_layers=(), is_on_host=False, activation_blocks=0)
    assert costs.least_of_family(model, base, (layout.policy,)) <= held * (1 + 1e-9)
    if layout.schedule in ("1f1b", "gpipe") and not layout.activation_blocks and layout.recompute != "cell":
        assert bound == pytest.approx(held, rel=1e-9)


def test_the_bound_of_a_long_pipeline_by_hand() -> None:
    """1F1B on 4 ranks in one replica, ZeRO 0, a layer each, whose activations are far more than its states. The first
    rank holds 4 micro-batches, each the layer's and the embedding's activations, whatever the others do."""
    model = Transformer(layers=4, width=64, heads=4, vocab=64, length=1024, positions="learned")
    costs, layout = CostModel(CLUSTER, Precision.of("float32")), Layout(4, 1, 1, micro_batches=16, zero=0)
    unit = 1024 * 64 * 4
    # Two normalised inputs with their sums (4), queries, keys, values (3), mixed (1), both sides of the GELU.
    layer = (4 + 3 + 1 + 2 * 4) * unit
    first = costs.least_bytes(model, layout) - 4 * (layer + unit)
    states = 16 * (12 * 64 * 64 + 64 * 64 + 1024 * 64 + 4 * 64)
    # While it computes: what the feed-forward makes (4), its input, and room for two messages.
    assert first == states + (4 + 1 + 2) * unit
    base = replace(layout, micro_batches=1)
    assert costs.least_of_family(model, base) == 16 * model.layer_parameters + layer + (4 + 1 + 2) * unit
    # Of 4 layers on 3 ranks one has two.
    expected = 2 * (16 * model.layer_parameters + layer) + (4 + 1 + 2) * unit
    assert costs.least_of_family(model, replace(base, pp=3)) == expected
