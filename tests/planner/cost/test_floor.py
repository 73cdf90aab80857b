"""What a layout takes at least, and about: formulas with measured times, so that each is a sum by hand."""

from __future__ import annotations

import pytest

from holdfast.plan.transformer import Transformer
from holdfast.planner.cluster.file import parse
from holdfast.planner.cost.collectives import Collective
from holdfast.planner.cost.groups import group_cost, lines_of
from holdfast.planner.cost.layers import Precision, parts
from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.measured import PartTimes, Profile
from holdfast.planner.cost.predict import CostModel, predict

TEXT = 'gpu = "A100"\nnodes = 4\ngpus_per_node = 8\n[links.switch]\ngbit_per_s = 200\n'
MODEL = Transformer(8, 1024, 16, 8192, 512)
TIMES = {"first": PartTimes(0.001, 0.002), "layer": PartTimes(0.01, 0.02, 0.004), "last": PartTimes(0.003, 0.006)}
COSTS = CostModel(parse(TEXT), profile=Profile({}, "bfloat16", 1, "A100", {"tp=1": TIMES}))


@pytest.mark.parametrize(("recompute", "layer"), [("none", 0.03), ("selective", 0.034), ("full", 0.04), ("cell", 0.03)])
def test_work_is_spread_evenly_at_best(recompute: str, layer: float) -> None:
    """8 micro-batches of a replica, 8 layers and both ends, over 4 ranks."""
    found = COSTS.floor(MODEL, Layout(pp=4, dp=2, micro_batches=16, recompute=recompute))
    assert found == pytest.approx(8 * (8 * layer + 0.012) / 4)


@pytest.mark.parametrize(
    ("schedule", "chunks", "fill"),
    [
        ("1f1b", 0, 3 * 2 * 0.03),  # three stages of two layers there and back
        ("gpipe", 0, 3 * 2 * 0.03),
        ("interleaved", 2, 3 * 1 * 0.03),
        ("zbv", 0, 3 * 1 * 0.01),  # the last rank's way back ends with its own work
        ("interleaved-zero-bubble", 2, 3 * 1 * 0.01),
    ],
)
def test_the_last_rank_begins_with_the_first_message(schedule: str, chunks: int, fill: float) -> None:
    layout = Layout(pp=4, micro_batches=8, schedule=schedule, chunks=chunks)
    assert COSTS.floor(MODEL, layout, with_schedule=True) == pytest.approx(8 * 2 * 0.03 + fill)


def test_where_nothing_more_is_known_the_even_share_is_the_floor() -> None:
    even = 64 * (8 * 0.03 + 0.012) / 4
    assert COSTS.floor(MODEL, Layout(pp=4, micro_batches=64, schedule="chimera"), with_schedule=True) == pytest.approx(
        even
    )
    # Many micro-batches make the fill small beside the ends' share.
    assert COSTS.floor(MODEL, Layout(pp=4, micro_batches=512), with_schedule=True) == pytest.approx(8 * even)
    assert CostModel(parse(TEXT + "\n"), profile=COSTS.profile).floor(MODEL, Layout()) > 0


def test_an_estimate_has_the_bubble_and_what_replicas_sum() -> None:
    """(pp - 1) / (chunks x micro-batches) with a chunk for each layer of a rank; the sum of a stage's gradients."""
    alone = Layout(pp=4, micro_batches=8)
    even = 8 * (8 * 0.03 + 0.012) / 4
    assert COSTS.estimate(MODEL, alone) == pytest.approx(even * (1 + 3 / 2 / 8))
    for zero, op in ((0, Collective.ALL_REDUCE), (1, Collective.REDUCE_SCATTER)):
        layout = Layout(pp=4, dp=8, micro_batches=64, zero=zero)
        group = group_cost(COSTS.cluster, lines_of(4, 8, 1, "dp"))
        summed = group.seconds(op, 2 * MODEL.layer_parameters * 4.0)
        assert COSTS.estimate(MODEL, layout) == pytest.approx(even * (1 + 3 / 2 / 8) + summed)


@pytest.mark.parametrize(
    ("zero", "shares"), [(0, (1, 1, 1)), (1, (1, 1, 4)), (2, (1, 4, 4)), (3, (4, 4, 4))], ids="zero {}".format
)
@pytest.mark.parametrize("is_on_host", [False, True])
def test_least_bytes_are_the_states_of_the_paper_and_one_micro_batch_or_more(
    zero: int, shares: tuple[int, int, int], is_on_host: bool
) -> None:
    """Weights and gradients of 2 bytes, states of 12, each by what ZeRO shares of four replicas; of 4 layers."""
    layout = Layout(pp=2, dp=4, micro_batches=8, zero=zero, is_on_host=is_on_host, recompute="selective")
    own = 4 * MODEL.layer_parameters
    weights, gradients, states = (size * own / share for size, share in zip((2, 2, 12), shares, strict=True))
    held = 4 * parts(MODEL, layout, Precision()).layer.held["selective"]
    expected = weights + gradients + (0 if is_on_host else states) + held
    of_family = COSTS.least_of_family(MODEL, layout, (layout.policy,))
    assert expected < of_family < COSTS.least_bytes(MODEL, layout)


def test_states_on_the_host_are_updated_through_its_memory() -> None:
    """There 12 bytes a parameter are read and written, at 20 GB/s; gradients and weights are 4 + 2 x 2 bytes here."""
    text = 'gpu = "A100"\nnodes = 1\ngpus_per_node = 8\n[host]\nmemory_bytes = 1e12\nbytes_per_s = 20e9\n'
    found = predict(MODEL, parse(text), Layout(is_on_host=True)).breakdown.optimizer
    tier = parse(text).host
    assert tier is not None
    assert found == pytest.approx(MODEL.parameters * (2 * 12 / tier.bytes_per_s + 8 / 2.039e12))
