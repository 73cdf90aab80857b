"""Losses that leap or diverge are reported; losses of honest runs, of any scale and sign, are not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.facts.losses import FEWEST, LossHistory, LossProblem

SEEDS = range(20)


def seen(losses: object, history: LossHistory | None = None, every: int = 1) -> list[LossProblem]:
    history = history or LossHistory()
    values = [float(value) for value in losses]  # type: ignore[attr-defined]
    found = [history.observe(every * step, value) for step, value in enumerate(values)]
    return [problem for problem in found if problem is not None]


def curve(rng: np.random.Generator, steps: int = 400, start: float = 10.8, end: float = 2.0) -> np.ndarray:
    return end + (start - end) * np.exp(-np.arange(steps) / 60) + rng.normal(0, 0.05, steps)


def warm_up(rng: np.random.Generator) -> np.ndarray:
    """The learning rate grows: the loss rises before it falls."""
    rise = np.concatenate([np.linspace(10.8, 14, 30), np.full(20, 14.0)])
    return np.concatenate([rise + rng.normal(0, 0.3, 50), curve(rng, start=14)])


def resumed(rng: np.random.Generator) -> np.ndarray:
    """From a checkpoint, with the schedule from its start: the first losses are the best for long."""
    return np.concatenate([np.linspace(1.8, 3.5, 100), np.linspace(3.5, 2.2, 300)]) + rng.normal(0, 0.05, 400)


def curriculum(rng: np.random.Generator) -> np.ndarray:
    """Each stage is harder, the first is nearly solved."""
    return np.concatenate([curve(rng, 300, 2.3, 0.01), curve(rng, 300, 2.2, 0.4), curve(rng, 300, 4.0, 0.9)])


def hard_batches(rng: np.random.Generator) -> np.ndarray:
    losses = curve(rng, 2000)
    losses[rng.random(2000) < 0.02] *= 10
    return losses


def scaled(rng: np.random.Generator) -> np.ndarray:
    """Times the loss scale, which doubles every 200 steps and halves after an overflow."""
    scale = 2.0 ** (16 + np.arange(2000) // 200 % 5)
    return curve(rng, 2000) * scale


def early_noise(rng: np.random.Generator) -> np.ndarray:
    """One sample per batch of a regression, large at first."""
    return rng.chisquare(1, 3000) * np.where(np.arange(3000) < 60, 300, 5)


def validations(rng: np.random.Generator) -> np.ndarray:
    """Every tenth is of a validation set on which the model is far worse."""
    losses = curve(rng, 2000, end=0.3)
    losses[::10] = 4 + rng.normal(0, 0.5, 200)
    return losses


def adversarial(rng: np.random.Generator) -> np.ndarray:
    """A discriminator and a generator in turns."""
    pairs = np.stack([rng.lognormal(-1, 0.7, 800), rng.lognormal(2, 0.7, 800)], axis=1)
    return pairs.ravel()


def near_zero(rng: np.random.Generator) -> np.ndarray:
    losses = rng.lognormal(-14, 1.5, 2000)
    losses[rng.random(2000) < 0.01] = 0.4
    return losses


def negative(rng: np.random.Generator) -> np.ndarray:
    """A log-likelihood that crosses zero on its way down."""
    return curve(rng, 1000, 3.0, -60.0) + rng.normal(0, 2, 1000)


def sums(rng: np.random.Generator) -> np.ndarray:
    """Losses of an epoch, printed as they grow, from 0."""
    return np.concatenate([[0], *(np.cumsum(curve(rng, 300)) for _ in range(3))])


def first_over_all(rng: np.random.Generator) -> np.ndarray:
    """A sum over 100 steps, by 100: at step 0 it has one loss only. The steps are numbered."""
    losses = curve(rng, start=30, end=20)
    losses[0] /= 100
    return losses


def policy(rng: np.random.Generator) -> np.ndarray:
    """Losses of both signs, around zero."""
    return rng.normal(0, 0.2, 2000) + rng.standard_t(2, 2000) * 0.05


def one_class(rng: np.random.Generator) -> np.ndarray:
    """Quiet for long, then a first sample of a class that is new."""
    losses = np.full(500, 0.7) + rng.normal(0, 1e-3, 500)
    losses[300] = 9.0
    return losses


HONEST = [
    warm_up, resumed, curriculum, hard_batches, scaled, early_noise, validations, adversarial, near_zero, negative,
    sums, policy, one_class,
]  # fmt: skip


@pytest.mark.parametrize("losses", HONEST)
def test_honest_losses_say_nothing(losses: object) -> None:
    for seed in SEEDS:
        values = losses(np.random.default_rng(seed))  # type: ignore[operator]
        assert seen(values) == [], seed
        assert seen(values[37:]) == [], f"{seed}, from a later loss on"


def test_a_first_line_that_is_divided_by_too_much_is_no_divergence() -> None:
    for seed in SEEDS:
        assert seen(first_over_all(np.random.default_rng(seed)), every=100) == []


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.floats(1e3, 1e30), st.integers(FEWEST, 380))
def test_a_single_leap_is_reported_at_once(seed: int, leap: float, at: int) -> None:
    losses = curve(np.random.default_rng(seed))
    losses[at] = leap
    (problem,) = seen(losses)
    assert (problem.diverges, problem.step, problem.count, problem.value) == (False, at, at + 1, leap)
    assert problem.text.startswith(f"the loss leapt to {leap:.4g} at step {at}; the median before was ")


def test_leaps_in_a_row_are_one_and_a_later_one_is_another() -> None:
    losses = np.full(200, 2.0)
    losses[[50, 51, 60, 150]] = 1e4
    assert [problem.step for problem in seen(losses)] == [50, 150]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.floats(100, 1e6), st.floats(0, 0.5), st.integers(40, 300))
def test_losses_that_grow_and_stay_there_diverge(seed: int, to: float, noise: float, at: int) -> None:
    rng = np.random.default_rng(seed)
    losses = curve(rng)
    losses[at:] *= np.minimum(np.geomspace(1, 1e20, 400), to)[: 400 - at] * rng.lognormal(0, noise, 400 - at)
    problems = [problem for problem in seen(losses) if problem.diverges]
    assert len(problems) == 1
    assert problems[0].step >= at
    assert problems[0].text.startswith(f"training diverges since step {problems[0].step}: the loss is ")


@pytest.mark.parametrize("to", [120.0, 1e5])
def test_a_learning_rate_that_is_far_too_high_diverges_from_the_first_step_on(to: float) -> None:
    """As measured with SGD and AdamW at 50: the first loss is 2.3, all others are far above."""
    for seed in SEEDS:
        losses = np.concatenate([[2.3], to * np.random.default_rng(seed).lognormal(0, 0.2, 40)])
        (problem,) = seen(losses)
        assert (problem.diverges, problem.step, problem.usual) == (True, 1, 2.3)


def test_without_step_numbers_losses_are_counted() -> None:
    history = LossHistory()
    found = [history.observe(-1, value) for value in [*[2.0] * 30, 1e4]]
    assert found[-1] is not None
    assert "at loss 31 of this run" in found[-1].text


def test_what_is_not_finite_is_passed_over() -> None:
    assert seen([float("nan"), float("inf"), 2.0] * 50) == []
