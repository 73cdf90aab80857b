"""What is in host memory, against the trainer's own counts; and what copies cost, against closed forms."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from holdfast.plan.transformer import Transformer
from holdfast.planner.cluster.cluster import Tier
from holdfast.planner.cluster.file import parse
from holdfast.planner.cost.host import activation_bytes, moved, saved_bytes
from holdfast.planner.cost.layers import Precision, parts
from holdfast.planner.cost.layout import Layout, LayoutError
from holdfast.planner.cost.memory import memory_of
from holdfast.planner.cost.predict import CostModel
from holdfast.planner.cost.schedule import plan_of
from holdfast.trainer.memory.expected import expect
from holdfast.trainer.pipeline.offload.blocks import spare, traffic, uses_of
from holdfast.trainer.pipeline.pieces import Pieces
from tests.planner.support.settings import VOCAB, both

SIZES = {"layers": 8, "d_model": 256, "heads": 4, "seq_len": 128, "micro_batches": 8, "micro_batch_size": 2}
MODEL = Transformer(8, 512, 8, 1024, 128)


def costs(host: Tier | None = None, gbit: float = 200.0, nodes: int = 2) -> CostModel:
    text = f'gpu = "A100"\nnodes = {nodes}\ngpus_per_node = 4\n[links.switch]\ngbit_per_s = {gbit}\n'
    return CostModel(replace(parse(text), host=host), Precision.of("bfloat16"))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved", "zbv"])
@pytest.mark.parametrize("blocks", [2, 3, 5])
def test_activations_move_as_the_trainer_moves_them(schedule: str, blocks: int) -> None:
    """Of equal blocks. The same bytes out and back, on the device and in host memory, on each rank."""
    plan = plan_of(Layout(pp=4, schedule=schedule, micro_batches=8))
    for order in plan.orders:
        uses = uses_of(order, Pieces(plan).of)
        sizes = {block: 10 for one in uses for block in one.made}
        kept = 10 * blocks - spare(uses, sizes, 10 * blocks)
        ours, theirs = moved(order, lambda stage: 10.0, 10.0 * blocks), traffic(uses, sizes, kept)
        room = 10 * blocks - kept
        assert (ours.out, ours.back, ours.device) == (theirs.out, theirs.back, theirs.device + room)
        assert ours.host == theirs.host


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_a_rank_with_activations_on_the_host_holds_what_the_trainer_counts(schedule: str) -> None:
    settings = {"schedule": schedule, "dtype": "bfloat16", "zero": 1, **SIZES}
    _, _, shape, layout, precision = both(4, 1, 1, **settings)
    layout = replace(layout, activation_blocks=2)
    kept = activation_bytes(shape, layout, precision)
    config, trainers, *_ = both(4, 1, 1, activations="host", activation_bytes=kept, **settings)
    expected = expect(config, trainers, VOCAB, "cuda")
    largest = kept / 2
    found_parts = parts(shape, layout, precision)
    unlike = largest - min(saved_bytes(shape, layout, found_parts, stage) for stage in range(layout.stages))
    ranks, host = memory_of(shape, layout, parts(shape, layout, precision), precision, plan_of(layout))
    for found, theirs in zip([one.memory for one in ranks], expected.ranks, strict=True):
        # Of unlike stages the room for one that comes back is as large as the largest.
        assert found.activations == pytest.approx(theirs.activations, rel=0.04, abs=unlike)
    # It counts the first step, which keeps no room for a block on its way back: one more is on the host from then on.
    assert 0 < host - max(expected.host) <= 1.04 * largest


def test_copies_of_activations_hide_behind_computation() -> None:
    """Both ways at once: max(0, bytes / bandwidth - computation) of the rank that ends last."""
    layout = Layout(pp=4, schedule="gpipe", micro_batches=8, activation_blocks=2)
    fast, slow = Tier(1e12, 1e15), Tier(1e12, 1e8)
    plain = costs().predict(MODEL, replace(layout, activation_blocks=0))
    hidden = costs(fast).predict(MODEL, layout)
    assert hidden.step_s == pytest.approx(plain.step_s)
    assert hidden.fullest.activations < 0.5 * plain.fullest.activations
    waited = costs(slow).predict(MODEL, layout)
    # gpipe makes all eight before it needs the first. Beside the room for one that comes back, one stays: in turn each.
    largest = activation_bytes(MODEL, layout, Precision.of("bfloat16")) / 2
    assert waited.moved_bytes == 8 * largest
    busy = waited.breakdown.compute
    assert waited.breakdown.host == pytest.approx(waited.moved_bytes / 1e8 - busy)
    assert hidden.host_bytes == waited.host_bytes == 8 * largest


def chunked(dp: int, **settings: Any) -> Layout:
    layout = Layout(dp=dp, micro_batches=dp, micro_batch_size=2, zero=3 if dp > 1 else 0, device_bytes=1 << 30)
    return replace(layout, **settings)


@pytest.mark.parametrize(("dp", "cap"), [(1, 80 << 20), (1, 160 << 20), (2, 90 << 20), (4, 1 << 30)])
def test_chunks_take_what_the_trainer_gives_them(dp: int, cap: int) -> None:
    """On the device all that it may, up to everything; the rest in host memory."""
    own = SIZES | {"layers": 32, "micro_batches": dp, "dtype": "bfloat16", "zero": 3 if dp > 1 else 1}
    config, trainers, shape, _, precision = both(1, dp, 1, **own)
    config = replace(config, memory=replace(config.memory, policy="chunks", device_bytes=cap))
    expected = expect(config, trainers, VOCAB, "cuda")
    layout = chunked(dp, device_bytes=cap)
    coarse = replace(precision, gradient=precision.weight)
    ranks, host = memory_of(shape, layout, parts(shape, layout, precision), coarse, plan_of(layout))
    (found,) = ranks
    assert found.memory.total <= cap
    assert found.memory.total == pytest.approx(expected.ranks[0].total, rel=0.2)
    assert found.memory.activations == pytest.approx(expected.ranks[0].activations, rel=0.04)
    whole = 14 * shape.parameters / dp
    assert found.memory.weights + found.memory.optimizer + host >= whole
    assert host == pytest.approx(expected.host[0], rel=0.3, abs=0.1 * whole)


def test_bytes_of_chunks_on_the_wire() -> None:
    """6 M (d - 1) / d on each of d replicas (PatrickStar, section 7)."""
    wire = costs(Tier(1e12, 1e10)).predict(MODEL, chunked(8)).wire.by_purpose["replicas"]
    assert wire == 6 * MODEL.parameters * 7


def test_a_small_device_copies_more_and_a_slow_host_takes_longer() -> None:
    """With no state on the device: each parameter comes twice but for those that stay, each gradient goes once."""
    fast, slow = costs(Tier(1e12, 1e11)), costs(Tier(1e12, 1e10))
    large = fast.predict(MODEL, chunked(1, device_bytes=4 << 30))
    assert (large.moved_bytes, large.breakdown.host) == (0, 0)
    least = small = 0
    for megabytes in range(1, 200):
        try:
            prediction = fast.predict(MODEL, chunked(1, device_bytes=megabytes << 20))
        except LayoutError:
            continue
        least, small = megabytes, prediction.moved_bytes
        break
    word = 2 * MODEL.parameters
    assert 2 * word < small < 3.5 * word
    one, other = (model.predict(MODEL, chunked(1, device_bytes=least << 20)).breakdown.host for model in (fast, slow))
    assert other == pytest.approx(10 * one)
    # Chunks at the bandwidth once, lists that the host updates read and written.
    assert one * 1e11 == pytest.approx(small + 2 * 12 * MODEL.parameters, rel=0.2)


@pytest.mark.parametrize("tied", [False, True])
def test_a_planned_update_of_chunks_is_that_of_the_host_and_of_the_device(tied: bool) -> None:
    """12 bytes a parameter of each chunk, read and written; chunks of the largest tensor, the last one in part."""
    model, shape = costs(Tier(1e12, 1e10)), replace(MODEL, tied=tied)
    chunk = 512 * 4 * 512
    whole = math.ceil(shape.parameters / chunk)
    a_chunk = 2 * 12 * chunk / 1e10
    lists = set()
    for megabytes in range(60, 700, 40):
        layout = chunked(1, device_bytes=megabytes << 20)
        planned, found = model.planned(shape, layout), model.predict(shape, layout)
        on_host = (planned.optimizer[0] - found.breakdown.optimizer) / a_chunk
        assert on_host == pytest.approx(round(on_host)), "whole chunks"
        assert found.breakdown.host == pytest.approx(found.moved_bytes / 1e10 + on_host * a_chunk)
        here = max(0.0, shape.parameters - round(on_host) * chunk)
        assert found.breakdown.optimizer == pytest.approx(here * (2 * 12 + 4 + 2 * 2) / 2.039e12)
        lists.add(round(on_host))
    assert {0, whole} < lists <= set(range(whole + 1))


def test_the_largest_stage_may_be_in_the_middle() -> None:
    """Six layers of 8, without what goes out: 2 bytes of 2 x 128 tokens x 512."""
    layout = Layout(pp=3, micro_batches=8, micro_batch_size=2, activation_blocks=2, stage_layers=(1, 6, 1))
    precision = Precision.of("bfloat16")
    layer = parts(MODEL, layout, precision).layer.held["none"]
    assert activation_bytes(MODEL, layout, precision) == math.ceil(2 * (6 * layer - 2 * 2 * 128 * 512))


def test_parts_of_a_micro_batch_hide_sums() -> None:
    """n halves of layers with p parts: p n g + c where a sum c is shorter than computation g, else g + n p c."""
    layout = Layout(tp=4, micro_batches=4, micro_batch_size=2, sub_batches=2)
    for gb_per_s, is_hidden in ((1e9, True), (1e-3, False)):
        text = f'gpu = "A100"\nnodes = 1\ngpus_per_node = 4\n[links.node]\nalpha_us = 0\ngb_per_s = {gb_per_s}\n'
        model = CostModel(parse(text), Precision.of("bfloat16"))
        whole, cut = (model.predict(MODEL, replace(layout, sub_batches=n)).breakdown for n in (1, 2))
        halves, local = 2 * MODEL.layers, 4
        if is_hidden:  # of all sums of both ways one part of one is left
            assert cut.tensor == pytest.approx(whole.tensor / halves / 2, rel=0.01)
        else:  # all but what one part's computation hides
            assert cut.tensor > 0.98 * (whole.tensor - cut.compute)
            assert cut.tensor == pytest.approx(
                whole.tensor - cut.compute * (1 - 1 / halves / 2), rel=0.02, abs=local * 1e-4
            )


def test_sums_in_pieces_wait_for_the_first_and_for_what_updates_do_not_hide() -> None:
    """S + (m - 1) max(0, S - U) of m pieces (AxoNN, section V)."""
    model = costs(Tier(1e12, 1e10), gbit=1.0)
    model.overlap = False
    layout = Layout(dp=8, micro_batches=8, zero=0, is_on_host=True, bucket=1 << 20)
    whole = model.predict(MODEL, layout).breakdown
    pieces = model.predict(MODEL, replace(layout, reduce_pieces=1)).breakdown
    count = MODEL.parameters / layout.bucket
    one, update = whole.replicas / count, whole.optimizer / count
    assert one > update
    assert pieces.replicas == pytest.approx(one + (count - 1) * (one - update), rel=0.01)
    assert pieces.optimizer == whole.optimizer


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"activation_blocks": 1}, "2 or more must stay"),
        ({"activation_blocks": 2, "zero": 3, "dp": 2}, "whole parameters"),
        ({"activation_blocks": 2, "schedule": "axonn"}, "a fixed order"),
        ({"device_bytes": 1, "is_on_host": True}, "leave states and activations to them"),
        ({"device_bytes": 1, "pp": 2}, "set pp = 1"),
        ({"device_bytes": 1}, "one micro-batch"),
        ({"device_bytes": 1, "dp": 8, "zero": 1}, "set zero = 3"),
        ({"sub_batches": 2, "micro_batch_size": 2}, "set tp to 2 or more"),
        ({"sub_batches": 2, "micro_batch_size": 3, "tp": 2}, "cannot be cut in 2"),
        ({"sub_batches": 2, "micro_batch_size": 2, "tp": 2, "recompute": "full"}, "whole backwards"),
        ({"reduce_pieces": 1, "zero": 0}, "states on the host"),
        ({"reduce_pieces": 1, "zero": 1, "dp": 2, "is_on_host": True}, "set zero = 0"),
        ({"reduce_pieces": 1, "zero": 0, "is_on_host": True, "schedule": "chimera", "pp": 2, "chunks": 3}, "3 pipes"),
        ({"reduce_pieces": 1, "zero": 0, "is_on_host": True, "schedule": "chimera", "pp": 3}, "2 pipes on 3 ranks"),
    ],
)
def test_layouts_that_can_not_be(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(LayoutError, match=reason):
        Layout(**settings).check(MODEL)


def test_the_host_must_be_known() -> None:
    with pytest.raises(LayoutError, match=r"activations in host memory: the cluster has no \[host\]"):
        costs().predict(MODEL, Layout(pp=4, micro_batches=8, activation_blocks=2))
    assert math.isfinite(costs(Tier(1e12, 1e10)).predict(MODEL, Layout(pp=4, activation_blocks=2)).step_s)


def test_chunks_without_room_say_what_they_need() -> None:
    with pytest.raises(LayoutError, match="a layer and its activations need"):
        costs(Tier(1e12, 1e10)).predict(MODEL, chunked(1, device_bytes=1 << 20))
