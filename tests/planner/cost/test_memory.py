"""Memory against the trainer's own count, which computes real layers in pretence; states against the ZeRO paper."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.planner.cost.layers import Precision, parts
from holdfast.planner.cost.memory import memory_of, model_states
from holdfast.planner.cost.schedule import plan_of
from holdfast.trainer.memory.expected import expect
from tests.planner.support.settings import VOCAB, both

SIZES = {"layers": 4, "d_model": 256, "heads": 4, "seq_len": 128, "micro_batches": 8, "micro_batch_size": 2}
CASES: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {
    "1f1b, zero 1": ((2, 2, 1), {"zero": 1, "block": "serial", "norm": "layer", "positions": "learned"}),
    "sequence, zero 0": ((1, 2, 2), {"zero": 0, "sequence": True}),
    "swiglu, interleaved, selective": (
        (2, 1, 1),
        {"schedule": "interleaved", "mlp": "swiglu", "recompute": "selective", "block": "serial"},
    ),
    "zero 3, full": ((1, 4, 1), {"zero": 3, "recompute": "full"}),
    "zero 2, gpipe, cell": ((2, 2, 1), {"zero": 2, "schedule": "gpipe", "recompute": "cell"}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_as_the_trainer_counts(case: str, device: str) -> None:
    """Bfloat16 on a GPU. Float32 on a CPU without rotated positions, whose operations there save other copies; and
    gloo keeps messages of gradients to the step's end."""
    (pp, dp, tp), settings = CASES[case]
    own = {"dtype": "bfloat16"} if device == "cuda" else {"dtype": "float32", "positions": "learned"}
    config, trainer_layout, shape, layout, precision = both(pp, dp, tp, **{**SIZES, **settings, **own})
    expected = expect(config, trainer_layout, VOCAB, device).ranks
    ranks, _ = memory_of(shape, layout, parts(shape, layout, precision), precision, plan_of(layout))
    for found, trainers in zip([one.memory for one in ranks], expected, strict=True):
        for kind in ("weights", "optimizer", "gradients", "gathered"):
            assert getattr(found, kind) == pytest.approx(getattr(trainers, kind), rel=0.01, abs=1000), kind
        assert found.activations == pytest.approx(trainers.activations, rel=0.03)
        assert found.total == pytest.approx(trainers.total, rel=0.08 if device == "cuda" else 0.15)


def test_states_of_the_zero_paper() -> None:
    """Figure 1: 7.5 B parameters over 64 replicas: 120, 31.4, 16.6 and 1.9 GB."""
    mixed = Precision(2, 2, 12)
    for zero, gigabytes in enumerate((120, 31.4, 16.6, 1.9)):
        assert sum(model_states(7.5e9, 64, zero, mixed)) == pytest.approx(gigabytes * 1e9, abs=0.05e9)


def test_optimizer_on_the_host() -> None:
    """Per parameter 12 bytes leave the device, and 16 bytes of a bucket stay."""
    bucket = 1 << 16
    _, _, shape, layout, precision = both(1, 1, 1, dtype="bfloat16", state="host", bucket=bucket, **SIZES)
    (one,), host = memory_of(shape, layout, parts(shape, layout, precision), precision, plan_of(layout))
    assert one.memory.optimizer == 16 * bucket
    assert host == 12 * shape.parameters


def test_the_last_unit_waits_whole_behind_the_last_backward() -> None:
    """ZeRO 3 in float32, which has no copies to step with: the largest unit's gradient, and what is summed of it."""
    sizes = {**SIZES, "zero": 3, "dtype": "float32"}
    _, _, shape, layout, precision = both(1, 4, 1, **sizes)
    (one,), _ = memory_of(shape, layout, parts(shape, layout, precision), precision, plan_of(layout))
    unit = max(shape.layer_parameters, shape.first_parameters, shape.last_parameters)
    assert one.at_end == 2 * 4 * unit
