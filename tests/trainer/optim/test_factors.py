"""K-FAC's factors and what is made of them, against numpy's formulas; matrices, and who owns them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from holdfast.trainer.optim.factors import Factors, LateStatistics, Statistics, damped_inverse
from holdfast.trainer.optim.matrices import INVERSION, cost, is_preconditioned, owners, rounds
from holdfast.trainer.settings.config import OptimConfig

OUT, IN, DECAY, DAMPING = 3, 4, 0.9, 0.1


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def products(seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Inputs (2, 5, in) and gradients (2, 5, out) of two micro-batches: 20 rows in all."""
    return [(drawn(2, 5, IN, seed=seed + n), drawn(2, 5, OUT, seed=seed + 10 + n)) for n in range(2)]


def expected(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A = a^T a / n and G = n g^T g."""
    a = np.concatenate([x.numpy().reshape(-1, IN) for x, _ in products(seed)])
    g = np.concatenate([g.numpy().reshape(-1, OUT) for _, g in products(seed)])
    return a.T @ a / 20, 20 * g.T @ g


def seen(seed: int = 0) -> Statistics:
    one = Statistics(torch.float64)
    for x, g in products(seed):
        one(x, g)
    return one


def test_statistics_are_means_over_all_rows() -> None:
    found, (a, g) = seen().factors(), expected()
    assert found["in"].numpy() == pytest.approx(a, rel=1e-12)
    assert found["out"].numpy() == pytest.approx(g, rel=1e-12)
    with pytest.raises(AssertionError, match="no product was seen"):
        Statistics(torch.float64).factors()
    for side, width in (("in", IN), ("out", OUT)):
        half = seen()
        half.add(side, drawn(1, width))
        with pytest.raises(AssertionError, match="of some products one side is missing"):
            half.factors()


def test_late_statistics_add_one_product_at_a_time_and_the_rest_at_last() -> None:
    one = LateStatistics(torch.float64)
    for x, g in products():
        one.keep("in", x.requires_grad_())
        one.keep("out", g)
    assert not one._kept["in"][0].requires_grad
    one.add_next("in")
    assert [len(one._kept[side]) for side in ("in", "out")] == [1, 2]
    for _ in range(3):
        one.add_next("out")  # the third is none
    assert [len(one._kept[side]) for side in ("in", "out")] == [1, 0]
    found, (a, g) = one.factors(), expected()
    assert found["in"].numpy() == pytest.approx(a, rel=1e-12)
    assert found["out"].numpy() == pytest.approx(g, rel=1e-12)


def averaged(seeds: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """From I on, `DECAY` of what was and the rest of what is new."""
    a, g = np.eye(IN), np.eye(OUT)
    for seed in seeds:
        fresh = expected(seed)
        a, g = DECAY * a + (1 - DECAY) * fresh[0], DECAY * g + (1 - DECAY) * fresh[1]
    return a, g


@pytest.mark.parametrize("form", ["inverse", "eigen"])
def test_a_gradient_times_the_inverse_curvature(form: str) -> None:
    """inverse: (G + l I)^-1 D (A + l I)^-1. eigen: l is added to the products of eigenvalues instead."""
    one, grad = Factors((OUT, IN), form, torch.zeros(1, dtype=torch.float64)), drawn(OUT, IN, seed=5)
    assert not one.precondition(grad, DAMPING).any(), "nothing is made of the factors yet"
    one.absorb(seen(1), DECAY)
    one.absorb(seen(2), DECAY)
    one.invert(DAMPING)
    a, g = averaged((1, 2))
    assert one.state["factor_in"].numpy() == pytest.approx(a, rel=1e-12)
    if form == "inverse":
        curved = np.linalg.inv(g + DAMPING * np.eye(OUT)) @ grad.numpy() @ np.linalg.inv(a + DAMPING * np.eye(IN))
    else:
        # vec(D) times (G x A + l I)^-1, with the Kronecker product written out.
        kronecker = np.kron(g, a) + DAMPING * np.eye(OUT * IN)
        curved = np.linalg.solve(kronecker, grad.numpy().reshape(-1)).reshape(OUT, IN)
    assert one.precondition(grad, DAMPING).numpy() == pytest.approx(curved, rel=1e-9)


@pytest.mark.parametrize("form", ["inverse", "eigen"])
def test_what_is_made_ahead_is_what_would_be_made(form: str) -> None:
    like = torch.zeros(1, dtype=torch.float64)
    one, other = Factors((OUT, IN), form, like), Factors((OUT, IN), form, like)
    before = {name: tensor.clone() for name, tensor in one.state.items()}
    found = one.ahead(seen(1), DECAY, DAMPING)
    assert found is not None
    assert all(torch.equal(one.state[name], tensor) for name, tensor in before.items()), "nothing is changed yet"
    other.absorb(seen(1), DECAY)
    other.invert(DAMPING)
    one.take(found)
    assert one.state.keys() == other.state.keys() == found.keys()
    assert all(torch.equal(one.state[name], tensor) for name, tensor in other.state.items())
    # Without new statistics, of the factors as they are.
    again = one.ahead(None, DECAY, DAMPING)
    assert again is not None
    assert all(torch.equal(again[name], tensor) for name, tensor in other.state.items())
    spoilt = seen(1)
    spoilt(torch.full((1, IN), torch.inf, dtype=torch.float64), drawn(1, OUT))
    assert one.ahead(spoilt, DECAY, DAMPING) is None


def test_negative_eigenvalues_are_none() -> None:
    one = Factors((2, 2), "eigen", torch.zeros(1, dtype=torch.float64))
    one.state["factor_in"].copy_(torch.diag(torch.tensor([3.0, -1.0])))
    one.invert(DAMPING)
    assert sorted(one.state["values_in"].tolist()) == [0, 3]
    inverse = damped_inverse(torch.diag(torch.tensor([3.0, 1.0])), 1.0)
    assert inverse.numpy() == pytest.approx(np.array([[0.25, 0], [0, 0.5]]))
    # Damping does not make this one positive: an eigenvalue below 0 is taken for rounding.
    inverse = damped_inverse(torch.diag(torch.tensor([3.5, 1.5, -1.0])), 0.5)
    assert inverse.numpy() == pytest.approx(np.diag([1 / 4, 1 / 2, 1 / 0.5]), abs=1e-6)


def test_the_dearest_matrix_goes_first_to_the_rank_with_the_least() -> None:
    """5 to rank 0, 4 to rank 1, 3 to rank 1 (4 < 5), 3 to rank 0 (5 < 7), 2 to rank 1 (7 < 8)."""
    assert owners([3, 5, 3, 2, 4], 2, "cost") == [1, 0, 0, 1, 1]
    assert owners([1, 1, 1, 1], 3, "cost") == [0, 1, 2, 0]
    assert owners([3, 5, 3, 2, 4], 2, "round-robin") == [0, 1, 0, 1, 0]
    assert rounds([0, 0, 1, 1, 1, 0], [0, 0, 0, 1, 0, 1]) == [0, 1, 0, 0, 1, 0]
    assert cost((3, 4), 10) == 4**3 + 3**3 + 10 * (4**2 + 3**2)
    assert set(INVERSION) == {"inverse", "eigen"}


def test_what_has_factors() -> None:
    config = OptimConfig(name="dp-kfac", kfac_largest=64)
    assert is_preconditioned(config, "layers.0.inward.weight", (64, 8))
    for name, shape in (("embed.weight", (8, 8)), ("layers.0.norm", (8,)), ("layers.0.w", (8, 65)), ("w", (2, 2, 2))):
        assert not is_preconditioned(config, name, shape)
