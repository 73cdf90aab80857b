"""What is done to gradients before a rule sees them: scaled down, never up; and nothing at all if one is not finite."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from holdfast.trainer.optim.optimizer import Optimizer
from holdfast.trainer.optim.slices import Slice
from holdfast.trainer.settings.config import OptimConfig
from holdfast.trainer.settings.layout import TrainerLayout
from holdfast.trainer.telemetry.totals import Pending, start_sum

PATHS = pytest.mark.parametrize("on_device", [False, True], ids=["host decides", "device decides"])


def optimizer(clip_norm: float, on_device: bool) -> tuple[Optimizer, list[nn.Parameter]]:
    """Of two tensors on one rank. Their averages show the gradients that the rule was given."""
    shards = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(1))]
    layout = TrainerLayout(1, 1, 1, 1, 1)
    axis = SimpleNamespace(get_group=lambda: None)
    mesh: Any = SimpleNamespace(layout=layout, pp_rank=0, device=torch.device("cpu"), whole_stages=axis.get_group)
    slices = [Slice(str(n), one, one, 1, False, False, False) for n, one in enumerate(shards)]
    made = Optimizer(OptimConfig(clip_norm=clip_norm), slices, mesh, lambda: None)
    assert made.holds_all
    made.skips_on_device = on_device
    return made, shards


def stepped(clip_norm: float, grads: list[list[float]], on_device: bool) -> tuple[list[list[float]], Any]:
    """The gradients that the rule saw, and what the step found out."""
    made, shards = optimizer(clip_norm, on_device)
    for shard, grad in zip(shards, grads, strict=True):
        shard.grad = torch.tensor(grad)
    totals = made.step(0, Pending(torch.tensor([2.5, 0.0, 0.0], dtype=torch.float64), 0, None))
    seen = [made.state(piece)["exp_avg"] / (1 - made.config.beta1) for piece in made.all]
    if not totals.is_finite:
        assert all(torch.equal(shard, torch.ones_like(shard)) for shard in shards)
    return [one.tolist() for one in seen], totals


@PATHS
@pytest.mark.parametrize(
    ("clip_norm", "factor"),
    [(0.0, 1.0), (1.0, 0.2), (4.99, 4.99 / 5), (5.0, 1.0), (10.0, 1.0), (1000.0, 1.0)],
)
def test_gradients_above_the_norm_are_scaled_to_it_and_others_are_left_alone(
    clip_norm: float, factor: float, on_device: bool
) -> None:
    seen, totals = stepped(clip_norm, [[3.0, 0.0, 0.0], [4.0]], on_device)
    assert totals.norm == pytest.approx(5.0)
    assert seen[0] == pytest.approx([3 * factor, 0, 0], rel=1e-5)
    assert seen[1] == pytest.approx([4 * factor], rel=1e-5)


@PATHS
def test_no_gradient_stays_none(on_device: bool) -> None:
    seen, totals = stepped(1.0, [[0.0, 0.0, 0.0], [0.0]], on_device)
    assert totals.is_finite
    assert seen == [[0.0, 0.0, 0.0], [0.0]]


@PATHS
@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_gradient_that_is_not_finite_changes_nothing_however_good_the_loss(bad: float, on_device: bool) -> None:
    seen, totals = stepped(1.0, [[1.0, bad, 0.0], [1.0]], on_device)
    assert (totals.loss, totals.is_finite) == (2.5, False)
    assert seen == [[0.0, 0.0, 0.0], [0.0]]


@PATHS
def test_another_ranks_bad_share_changes_nothing_here(on_device: bool) -> None:
    made, shards = optimizer(1.0, on_device)
    for shard in shards:
        shard.grad = torch.ones_like(shard)
    totals = made.step(0, Pending(torch.tensor([2.5, 0.0, 0.0, 1.0], dtype=torch.float64), 0, None))
    assert (totals.is_finite, totals.bad_ranks, made.applied) == (False, [1], 0)
    assert all(torch.equal(shard, torch.ones_like(shard)) for shard in shards)


@pytest.mark.parametrize(
    ("loss", "squares", "bad"), [(2.5, 4.0, []), (2.5, math.inf, [0]), (2.5, math.nan, [0]), (math.nan, 4.0, [0])]
)
def test_a_rank_names_itself_for_its_gradients_too(
    monkeypatch: pytest.MonkeyPatch, loss: float, squares: float, bad: list[int]
) -> None:
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    shares = torch.tensor([loss, squares], dtype=torch.float64)
    totals = start_sum(shares[0], shares[1]).wait().read()
    assert (totals.bad_ranks, totals.is_finite) == (bad, not bad)
