"""Sharded optimizers change whole tensors as one process does; steps that are not finite change nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import Zygote
from torch import nn

from holdfast.trainer.optim.lamb import Lamb
from holdfast.trainer.optim.update_rules import Peers, Target
from holdfast.trainer.settings.config import OptimConfig
from holdfast.trainer.settings.learning_rate import learning_rate
from tests.trainer.run.test_equality import compare, mesh

pytestmark = pytest.mark.aside

SMALL = ["--set", "model.layers=2", "--set", "train.micro_batches=2", "--set", "model.heads=4"]


class Alone:
    """The process group of one process."""

    def size(self) -> int:
        return 1


def lamb(config: OptimConfig, *shapes: tuple[int, ...]) -> tuple[Lamb, list[nn.Parameter]]:
    torch.manual_seed(1)
    tensors = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    for tensor in tensors:
        tensor.grad = torch.randn_like(tensor)
    group: Any = Alone()
    return Lamb(config, [Target(t, t.dim() > 1, 1) for t in tensors], Peers(group)), tensors


def chosen(name: str) -> list[str]:
    lr = {"adamw": 3e-3, "lamb": 1e-2, "sgd": 0.1}[name]
    return ["--set", f"optim.name={name}", "--set", f"optim.lr={lr}", "--set", "train.dtype=float64"]


@pytest.mark.parametrize("name", ["lamb", "sgd"])
def test_one_rank_equals_reference(zygote: Zygote, tiny: list[str], tmp_path: Path, name: str) -> None:
    compare(zygote, [*tiny, *SMALL, *chosen(name)], tmp_path, world=1, steps=5, within=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "tied", "name"),
    # LAMB needs norms of whole tensors, and of what several ranks hold once: everywhere. The others change each element
    # alone: every layout, tied and not.
    [
        ((1, 2, 2), "false", "lamb"),
        ((1, 2, 2), "true", "lamb"),
        ((2, 1, 2), "false", "lamb"),
        ((2, 1, 2), "true", "lamb"),
        ((1, 2, 2), "true", "adamw"),
        ((2, 1, 2), "false", "adamw"),
        ((1, 2, 2), "false", "sgd"),
        ((2, 1, 2), "true", "sgd"),
    ],
    ids=str,
)
def test_shards_change_as_the_whole(
    zygote: Zygote, tiny: list[str], tmp_path: Path, name: str, tied: str, layout: tuple[int, int, int]
) -> None:
    more = ["--set", f"model.tied={tied}", "--set", f"parallel.sequence={tied}"]
    compare(zygote, [*tiny, *SMALL, *chosen(name), *more, *mesh(*layout)], tmp_path, world=4, steps=6, within=1e-9)


def test_lamb_moves_each_tensor_by_the_rate_times_its_norm() -> None:
    rule, tensors = lamb(OptimConfig(weight_decay=0.0), (8, 4), (5,), (3, 3))
    before = [t.detach().clone() for t in tensors]
    for applied in range(3):
        start = [t.detach().clone() for t in tensors]
        rule.update(0.01, applied)
        for old, new in zip(start, tensors, strict=True):
            assert float((new.detach() - old).norm() / old.norm()) == pytest.approx(0.01, rel=1e-5)
    assert all(not torch.equal(a, b) for a, b in zip(before, tensors, strict=True))


def test_lamb_bounds_the_norm_and_survives_zeros() -> None:
    rule, (tensor, zero) = lamb(OptimConfig(weight_decay=0.0, trust_high=0.5), (8, 4), (4,))
    with torch.no_grad():
        zero.zero_()
    start = tensor.detach().clone()
    rule.update(0.01, 0)
    assert float((tensor.detach() - start).norm()) == pytest.approx(0.01 * 0.5, rel=1e-5)
    # The norm of zeros gives no scale: Adam's own step, which is the rate in each element at first.
    assert zero.detach().abs().tolist() == pytest.approx([0.01] * 4, rel=1e-4)


@pytest.mark.parametrize(
    ("low", "high", "shares"),
    [
        (0.0, 0.0, [1.0, 2.0, 8.0]),
        (1.5, 0.0, [1.5, 2.0, 8.0]),
        (0.0, 5.0, [1.0, 2.0, 5.0]),
        (1.5, 5.0, [1.5, 2.0, 5.0]),
        (9.0, 0.0, [9.0, 9.0, 9.0]),
        (3.0, 3.0, [3.0, 3.0, 3.0]),
    ],
)
def test_lamb_keeps_each_tensors_norm_within_both_bounds(low: float, high: float, shares: list[float]) -> None:
    """Norms of 1, 2 and 8: what a tensor moves by, in units of the rate."""
    rule, tensors = lamb(OptimConfig(weight_decay=0.0, trust_low=low, trust_high=high), (8, 4), (5,), (3, 3))
    with torch.no_grad():
        for tensor, norm in zip(tensors, (1.0, 2.0, 8.0), strict=True):
            tensor *= norm / tensor.norm()
    start = [t.detach().clone() for t in tensors]
    rule.update(0.01, 0)
    moved = [float((new.detach() - old).norm()) / 0.01 for old, new in zip(start, tensors, strict=True)]
    assert moved == pytest.approx(shares, rel=1e-4)


@pytest.mark.parametrize(
    ("decay", "rates"),
    [
        ("cosine", [0.5, 1.0, 1.0, 0.55, 0.1, 0.1]),
        ("linear", [0.5, 1.0, 1.0, 0.55, 0.1, 0.1]),
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_the_rate_warms_up_and_falls(decay: Any, rates: list[float]) -> None:
    config = OptimConfig(lr=1.0, warmup_steps=2, decay_steps=10, decay=decay)
    assert [learning_rate(config, step) for step in (0, 1, 2, 6, 10, 99)] == pytest.approx(rates)
    quarter = {"cosine": 0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2, "linear": 0.1 + 0.9 * 0.75, "constant": 1.0}
    assert learning_rate(config, 4) == pytest.approx(quarter[decay])


def test_a_step_that_is_skipped_changes_nothing(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    argv = [*tiny, *SMALL, "--tp", "2", "--steps", "6", "--set", "train.on_nonfinite=skip"]
    argv += ["--set", f"train.metrics_path={metrics}", "--store", str(tmp_path / "store"), "--checkpoint-every", "2"]
    done = zygote.run("poisoned", 2, tmp_path / "run", args={"argv": argv, "rank": 1, "step": 3})
    assert [result["code"] for result in done["results"]] == [0, 0]
    assert done["results"][0]["reports"][3] == [3, None]
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [line["skipped"] for line in lines] == [False, False, False, True, False, False]
    assert lines[3]["loss"] is None
    # Gone on from step 4, the same step is the same loss: what was skipped is no part of the state.
    for folder in (tmp_path / "store").glob("step-00000006-*"):
        (folder / "manifest.json").unlink()
    metrics.unlink()
    again = zygote.run("command", 2, tmp_path / "run", args={"argv": argv}, generation=1)
    assert [result["code"] for result in again["results"]] == [0, 0]
    repeated = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in repeated] == [(n, lines[n]["loss"]) for n in (4, 5)]


def test_skips_are_bounded(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    skip = ["--set", "train.on_nonfinite=skip", "--set", "train.max_skips=0"]
    argv = [*tiny, *SMALL, *skip, "--steps", "4"]
    done = zygote.run("poisoned", 1, tmp_path, args={"argv": argv, "rank": 0, "step": 1})
    assert done["results"][0]["code"] == 1
    assert "step 1: loss nan or a gradient is not finite" in done["results"][0]["stderr"]


@pytest.mark.slow
def test_bfloat16_learns_with_parameters_kept_in_float32(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    outcomes = {}
    for dtype in ("float32", "bfloat16"):
        argv = [*tiny, *SMALL, "--tp", "2", "--steps", "30", "--set", f"train.dtype={dtype}"]
        done = zygote.run("train", 2, tmp_path / dtype, args={"argv": argv})
        assert done["exits"] == [0, 0]
        outcomes[dtype] = done["results"][0]["losses"]
    assert outcomes["bfloat16"][-1] == pytest.approx(outcomes["float32"][-1], abs=0.05)
