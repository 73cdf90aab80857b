"""Products that add to a gradient: what they add, when they may, and that nothing else sees a difference."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from calls import Calls
from forked import Zygote
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from holdfast.trainer.model.accumulate import alone, hooks_hear, in_place, multiply, multiply_all
from holdfast.trainer.model.layers import RmsNorm, _RmsNorm
from holdfast.trainer.settings.config import ModelConfig


def after(rounds: int, wanted: bool, again: bool = False) -> tuple[nn.Parameter, list[Tensor], int]:
    """Two products one after the other, both with one weight, and how many were added to what was there."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(6, 6, dtype=torch.float64))
    of_inputs, count = [], 0
    for _ in range(rounds):
        x = torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)

        def twice(x: Tensor) -> Tensor:
            return multiply(multiply(x, weight).sin(), weight)

        y = checkpoint(twice, x, use_reentrant=False) if again else twice(x)
        with in_place(wanted), Calls(torch.ops.aten.addmm_.default) as seen:
            (y * y).sum().backward()
        count += seen.count
        assert x.grad is not None
        of_inputs.append(x.grad)
    return weight, of_inputs, count


@pytest.mark.parametrize("again", [False, True], ids=["kept", "recomputed"])
def test_what_is_added_in_place_is_what_autograd_adds(again: bool) -> None:
    usual, usual_inputs, usual_count = after(4, False, again)
    fused, fused_inputs, fused_count = after(4, True, again)
    assert usual.grad is not None
    assert fused.grad is not None
    torch.testing.assert_close(fused.grad, usual.grad, rtol=1e-12, atol=1e-12)
    for one, other in zip(fused_inputs, usual_inputs, strict=True):
        assert torch.equal(one, other)
    assert (usual_count, fused_count) == (0, 6), "the first round has nothing to add to"


def test_alone_they_are_torchs_own_and_recomputed_as_such() -> None:
    weight = nn.Parameter(torch.randn(6, 6))
    weight.grad = torch.ones(6, 6)
    x = torch.randn(2, 6, requires_grad=True)
    with alone(True), in_place(True), Calls(torch.ops.aten.addmm_.default) as seen:
        checkpoint(lambda x: multiply(x, weight).sin(), x, use_reentrant=False).sum().backward()
    assert seen.count == 0
    assert type(multiply(x, weight).grad_fn).__name__ == "_MultiplyBackward"


@pytest.mark.parametrize("wanted", [False, True], ids=["autograd", "in place"])
def test_one_input_through_several_matrices_is_as_through_each(wanted: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    weights = [nn.Parameter(torch.randn(rows, 5, dtype=torch.float64)) for rows in (4, 7, 4)]
    weights[1].requires_grad_(False)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    slopes = [torch.randn(2, 3, len(weight), dtype=torch.float64) for weight in weights]
    usual = [F.linear(x, weight) for weight in weights]
    learned = [x, weights[0], weights[2]]
    expected = torch.autograd.grad([(y * s).sum() for y, s in zip(usual, slopes, strict=True)], learned)

    products = multiply_all(x, *weights)
    with in_place(wanted), Calls(torch.ops.aten.addmm_.default) as seen:
        sum((y * s).sum() for y, s in zip(products, slopes, strict=True)).backward()  # type: ignore[union-attr]
    assert seen.count == (4 if wanted else 2), "two that add up what x gets, two that add to what is there"
    for product, y in zip(products, usual, strict=True):
        assert torch.equal(product, y)
    for tensor, gradient in zip(learned, expected, strict=True):
        total = gradient if tensor is x else gradient + 1
        torch.testing.assert_close(tensor.grad, total, rtol=1e-12, atol=1e-12)
    assert torch.equal(weights[1].grad, torch.ones(7, 5, dtype=torch.float64))  # type: ignore[arg-type]


def test_a_gradient_that_is_asked_for_by_name_is_given() -> None:
    weight = nn.Parameter(torch.eye(3))
    weight.grad = torch.ones(3, 3)
    (found,) = torch.autograd.grad(multiply(torch.ones(2, 3), weight).sum(), [weight])
    assert torch.equal(found, torch.full((3, 3), 2.0))
    assert torch.equal(weight.grad, torch.ones(3, 3))


def test_only_one_side_may_need_a_gradient() -> None:
    x, weight = torch.ones(2, 3, requires_grad=True), nn.Parameter(torch.eye(3), requires_grad=False)
    multiply(x, weight).sum().backward()
    assert weight.grad is None
    assert x.grad is not None
    y, taught = torch.ones(2, 3), nn.Parameter(torch.eye(3))
    multiply(y, taught).sum().backward()
    assert y.grad is None
    assert taught.grad is not None


def test_both_sides_have_the_right_derivatives() -> None:
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(multiply, (x, weight))
    assert torch.equal(multiply(x, weight), F.linear(x, weight))


@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_the_norm_and_its_derivatives(eps: float) -> None:
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: _RmsNorm.apply(x, w, eps), (x, weight))  # type: ignore[no-untyped-call]
    torch.testing.assert_close(_RmsNorm.apply(x, weight, eps), F.rms_norm(x, (5,), weight, eps))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(("dtype", "is_ours"), [(torch.float32, True), (torch.bfloat16, False)])
def test_which_norm_a_cpu_takes(dtype: torch.dtype, is_ours: bool) -> None:
    make = SimpleNamespace(constant=lambda shape, value: nn.Parameter(torch.full(shape, value, dtype=dtype)))
    norm = RmsNorm(ModelConfig(d_model=8), make)  # type: ignore[arg-type]
    made_by = norm(torch.ones(2, 3, 8, dtype=dtype)).grad_fn
    assert (type(made_by).__name__ == "_RmsNormBackward") == is_ours


@pytest.mark.parametrize(
    ("layout", "times"),
    [
        ("--dp 1", 3),
        ("--dp 2 --set parallel.zero=0", 3 if hooks_hear() else 2),  # the last one is sent when the hooks report
        ("--dp 2 --set parallel.zero=1", 3),
        ("--dp 2 --set parallel.zero=3", 0),  # nothing is kept from one to the next
        ("--tp 2", 0),  # a DTensor's part
    ],
)
def test_where_the_trainer_lets_them(zygote: Zygote, tiny: list[str], tmp_path: Path, layout: str, times: int) -> None:
    """Of four micro-batches of each rank, those whose gradients are added in place."""
    words = layout.split()
    ranks = int(words[1])
    argv = [*tiny, *words, "--set", f"train.micro_batches={4 * ranks if words[0] == '--dp' else 4}"]
    done = zygote.run("tasks:added", ranks, tmp_path, args={"argv": argv})
    assert done["exits"] == [0] * ranks
    for found in done["results"]:
        assert found["matrices"] > 2
        assert found["added"] == times * found["matrices"]
