"""What a gradient does to rows, against the formula; a row's bits do not depend on which others are with it."""

from __future__ import annotations

import math

import pytest
import torch

from holdfast.trainer.embeddings.update import mean_square, update


@pytest.mark.parametrize("dim", [1, 2, 3, 7, 16, 21])
def test_row_wise_adagrad_is_its_formula(dim: int) -> None:
    torch.manual_seed(dim)
    rows = torch.randn(6, dim + 1, dtype=torch.float64)
    rows[:, dim] = torch.tensor([0.0, 0.25, 4.0, 0.0, 1.0, 9.0])
    before, places = rows.clone(), torch.tensor([5, 0, 3])
    gradients = torch.randn(3, dim, dtype=torch.float64)
    gradients[2] = 0.0
    update(rows, places, gradients, lr=0.3)
    for place, gradient in zip(places.tolist(), gradients.tolist(), strict=True):
        state = before[place, dim].item() + sum(g * g for g in gradient) / dim
        pairs = zip(before[place, :dim].tolist(), gradient, strict=True)
        expected = [w - 0.3 * g / (math.sqrt(state) + 1e-10) for w, g in pairs]
        assert rows[place].tolist() == pytest.approx([*expected, state], rel=1e-14, abs=1e-15)
    assert torch.equal(rows[[1, 2, 4]], before[[1, 2, 4]])
    assert torch.isfinite(rows).all()


def test_rows_without_a_state_get_sgd() -> None:
    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    update(rows, torch.tensor([1]), torch.tensor([[2.0, -4.0]]), lr=0.5)
    assert rows.tolist() == [[1.0, 2.0], [2.0, 6.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_bits_of_a_row_are_its_own(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    gradients = torch.randn(1000, 21, dtype=dtype) * torch.logspace(-6, 6, 1000)[:, None].to(dtype)
    together = mean_square(gradients)
    for count in (1, 3, 8, 17):
        parts = torch.cat([mean_square(part) for part in gradients.split(count)])
        assert torch.equal(parts, together)
