"""Parts of a small model, with figures that are counted by hand: parameters, FLOPs, bytes, collectives, seconds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.plan.transformer import Transformer
from holdfast.planner.cost.collectives import Collective
from holdfast.planner.cost.compute import Engine
from holdfast.planner.cost.layers import Precision, parts
from holdfast.planner.cost.layout import Layout

SERIAL = Transformer(layers=2, width=8, heads=2, vocab=16, length=4)
"""One sample is 4 tokens of 8 numbers, 64 bytes; a feed-forward layer of 32."""
PARALLEL = replace(SERIAL, block="parallel", mlp="swiglu", ffn_width=16, positions="learned", norm="rms")
SPLIT = Layout(tp=2, sequence=True, shard_vocabulary=True)
GATHER, SCATTER, REDUCE = Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_REDUCE


def test_a_serial_layer_on_one_rank() -> None:
    found = parts(SERIAL, Layout(), Precision())
    layer = found.layer
    # Queries, keys, values and the way out: 4 x 8 x 8; 2 x 8 x 32; two normalisations of 2 x 8.
    assert layer.params == 256 + 512 + 32
    # Twice a token and weight; of scores and values 4 x 8 for each of the 4 x 5 / 2 pairs.
    assert layer.flops_f == 2 * 4 * 768 + 4 * 8 * 10
    assert layer.flops_b == 2 * 2 * 4 * 768 + 2.5 * 4 * 8 * 10
    # Normalised inputs and outputs, 4 x 64; 3 x 64; 64; both sides of the non-linearity, 2 x 256. Rotated: 2 x 64.
    assert dict(layer.held) == {"none": 1024 + 128, "selective": 1024, "full": 64}
    assert dict(layer.passing) == {"none": 256 + 64, "selective": 256 + 64, "full": 1152 + 256}
    assert (layer.boundary, layer.sends_f, layer.sends_b, layer.t_f) == (64, (), (), None)
    assert (found.first.params, dict(found.first.held)["full"], found.first.sends_f) == (128, 64, ())
    # Logits in float32, 4 x 16 x 4 bytes; twice as many pass.
    assert (found.last.params, found.last.flops_f, found.last.flops_b) == (16 + 128, 1024, 2048)
    assert (found.last.held["none"], found.last.passing["none"], found.last.boundary) == (64 + 256, 512, 0)


def test_a_parallel_layer_on_one_of_two_ranks_that_share_all() -> None:
    found = parts(PARALLEL, SPLIT, Precision())
    layer = found.layer
    # Half of 256 + 3 x 8 x 16, and a normalisation.
    assert layer.params == 320 + 8
    assert layer.flops_f == (2 * 4 * 640 + 4 * 8 * 10) / 2
    assert layer.flops_b == (2 * 2 * 4 * 640 + 2.5 * 4 * 8 * 10) / 2
    # 64 + 32 around the normalisation; 96; 32; three of 64. Then the product of the gate, and attention's copy.
    assert dict(layer.held) == {"none": 416 + 64 + 32, "selective": 416, "full": 32}
    assert dict(layer.passing) == {"none": 352 + 64, "selective": 352 + 64, "full": 512 + 352}
    assert (layer.boundary, layer.sends_f) == (32, ((GATHER, 64), (SCATTER, 64)))
    assert layer.sends_b == layer.sends_f
    # Half of the table, and the positions' own.
    assert (found.first.params, found.first.sends_f, found.first.sends_b) == (
        64 + 32,
        ((SCATTER, 64),),
        ((GATHER, 64),),
    )
    assert (found.last.params, found.last.flops_f) == (8 + 64, 512)
    assert (found.last.held["full"], found.last.passing["none"]) == (64 + 4 * 8 * 4, 2 * 128)
    # The largest logit, the sum and the target's own, four bytes a token.
    assert found.last.sends_f == ((GATHER, 64), *((REDUCE, 16),) * 3)
    assert found.last.sends_b == ((SCATTER, 64),)


def test_what_two_ranks_send_that_share_less() -> None:
    """Serial: two pairs of split matrices. Without the sequence each is one all-reduce; a whole table sends nothing."""
    whole = parts(SERIAL, Layout(tp=2), Precision())
    assert whole.layer.sends_f == ((REDUCE, 64),) * 2
    assert (whole.first.sends_f, whole.last.sends_f, whole.last.sends_b) == ((), (), ())
    assert (whole.first.params, whole.last.params, whole.layer.boundary) == (128, 144, 64)
    assert whole.last.flops_f == 1024
    cut = parts(SERIAL, Layout(tp=2, shard_vocabulary=True), Precision())
    assert (cut.first.sends_f, cut.first.sends_b, cut.last.sends_b) == (((REDUCE, 64),), (), ((REDUCE, 64),))
    assert cut.last.sends_f == ((REDUCE, 16),) * 3
    positions = parts(SERIAL, Layout(tp=2, sequence=True), Precision())
    assert (positions.last.flops_f, positions.last.held["none"]) == (512, 32 + 128)  # logits of its positions


@pytest.mark.parametrize(("pp", "expected"), [(1, 16), (2, 16 + 128)])
def test_a_tied_table_is_there_once_unless_stages_lie_apart(pp: int, expected: int) -> None:
    assert parts(replace(SERIAL, tied=True), Layout(pp=pp), Precision()).last.params == expected


def test_seconds_on_a_slow_memory() -> None:
    """100 bytes/s and 1,000 FLOP/s, all operands in the cache once: every product is bound by its bytes.

    (4, 8) x (8, 24): 2 (32 + 192 + 96) = 640 bytes; x (8, 8): 256; x (8, 32): 832; (4, 32) x (32, 8): 832.
    """
    found = parts(SERIAL, Layout(), Precision(), Engine(1e3, 100.0, 1e9))
    products = (640 + 256 + 832 + 832) / 100
    attention = 4 * 64 / 100  # queries, keys, values, result
    # Five passes of 64 bytes around each of two normalisations; queries and keys there and back; both of 256.
    elementwise = (10 * 64 + 2 * 2 * 64 + 2 * 256) / 100
    assert found.layer.t_f == pytest.approx(products + attention + elementwise)
    assert found.layer.t_b == pytest.approx(2 * products + 2 * attention + 2 * elementwise)
    assert found.layer.t_again == pytest.approx(attention + 2 * 256 / 100)
    # Rows of the table are read and written; backward writes a gradient of all of it, read and added up.
    assert found.first.t_f == pytest.approx(2 * 64 / 100)
    assert found.first.t_b == pytest.approx((2 * 64 + 3 * 128 * 2) / 100)
    logits = 2 * (32 + 128 + 64) / 100
    assert found.last.t_f == pytest.approx(logits + (4 * 256 + 2 * 64) / 100)
    assert found.last.t_b == pytest.approx(2 * logits + (2 * 256 + 4 * 64) / 100)


def test_seconds_on_a_slow_processor() -> None:
    """Without end of bandwidth only FLOPs count."""
    found = parts(SERIAL, Layout(), Precision(), Engine(1e3, 1e30, 1e9))
    assert found.layer.t_f == pytest.approx(found.layer.flops_f / 1e3)
    assert found.layer.t_b == pytest.approx(found.layer.flops_b / 1e3)
    assert found.layer.t_again == pytest.approx(4 * 8 * 10 / 1e3)
    assert (found.first.t_f, found.first.t_b) == (pytest.approx(0), pytest.approx(0))
    assert (found.last.t_f, found.last.t_b) == (pytest.approx(1.024), pytest.approx(2.048))


@pytest.mark.parametrize(
    ("dtype", "averages", "expected"),
    [("bfloat16", 2, (2, 4, 12)), ("float32", 2, (4, 4, 8)), ("float64", 2, (8, 8, 16)), ("bfloat16", 1, (2, 4, 8))],
)
def test_bytes_of_a_parameter(dtype: str, averages: int, expected: tuple[int, int, int]) -> None:
    """Float32 copies beside bfloat16, and the optimizer's averages in the finer form."""
    found = Precision.of(dtype, averages)
    assert (found.weight, found.gradient, found.optimizer) == expected
    assert found.is_coarse == (dtype == "bfloat16")
