"""What one more layer takes on a pipeline rank, by hand."""

from __future__ import annotations

import pytest

from holdfast.plan.transformer import Transformer
from holdfast.planner.cluster.cluster import Hop
from holdfast.planner.cluster.file import parse
from holdfast.planner.cost.collectives import Collective, Ring, hierarchical
from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.measured import PartTimes, Profile
from holdfast.planner.cost.predict import CostModel

MODEL = Transformer(8, 1024, 16, 8192, 512)
LINKS = "[links.switch]\ngbit_per_s = 200\n"
LEVELS = (Ring(8, Hop(3e-6, 1 / 300e9)), Ring(2, Hop(8e-6, 8 / 200e9)))
TIMES = {"first": PartTimes(0.001, 0.002), "layer": PartTimes(0.01, 0.02), "last": PartTimes(0.003, 0.006)}
PROFILE = Profile({}, "bfloat16", 1, "A100", {"tp=1": TIMES})


@pytest.mark.parametrize(("zero", "times", "gathers"), [(0, 1, 0), (1, 1, 1), (2, 4, 1), (3, 4, 0)])
def test_from_stage_2_on_each_micro_batch_reduces(zero: int, times: int, gathers: int) -> None:
    """64 micro-batches of 16 replicas: 4 each. Stages 1 and 2 gather a layer's weights once a step."""
    known = parse(f'gpu = "A100"\nnodes = 4\ngpus_per_node = 8\nnic = "infiniband"\n{LINKS}')
    costs = CostModel(known, profile=PROFILE, overlap=False)
    layer, first, last = costs.layer_seconds(MODEL, Layout(2, 16, 1, micro_batches=64, zero=zero), 0)
    op = Collective.REDUCE_SCATTER if zero else Collective.ALL_REDUCE
    reduce = hierarchical(op, MODEL.layer_parameters * 4.0, LEVELS)
    gather = hierarchical(Collective.ALL_GATHER, MODEL.layer_parameters * 2.0, LEVELS)
    assert layer == pytest.approx(4 * 0.03 + times * reduce + gathers * gather)
    assert (first, last) == (pytest.approx(4 * 0.003), pytest.approx(4 * 0.009))


def test_slow_devices_compute_all_parts_longer() -> None:
    """The second rank's devices take 3 times as long, for each of 4 micro-batches."""
    groups = "".join(f"[[group]]\nnodes = 1\nspeed = {speed}\n" for speed in (3, 1))
    links = LINKS + "[links.pod]\ngbit_per_s = 200\n"
    known = parse(f'gpu = "A100"\ngpus_per_node = 1\nnic = "infiniband"\n{links}{groups}')
    costs = CostModel(known, profile=PROFILE)
    layout = Layout(pp=2, micro_batches=4)
    assert costs.layer_seconds(MODEL, layout, 0) == pytest.approx((4 * 0.03, 4 * 0.003, 4 * 0.009))
    assert costs.layer_seconds(MODEL, layout, 1) == pytest.approx((12 * 0.03, 12 * 0.003, 12 * 0.009))
