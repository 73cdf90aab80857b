"""Whose fastest steps are slow, on noise that is known."""

from math import comb

import numpy as np
import pytest

from holdfast.diagnostics.blame.suspects.floors import at_least, floors_beyond, raised

STEP = 0.1
LEAST = 0.03 * STEP
CHANCE = 0.001 / 5


def busy(seed: int, ranks: int = 3, steps: int = 100, load: float = 0.02) -> np.ndarray:
    """Work of 50 ms on a host where other programs run beside each rank at rates that change by the second."""
    rng = np.random.default_rng(seed)
    rates = np.repeat(rng.gamma(1.0, load, (-(-steps // 10), ranks)), 10, axis=0)[:steps]
    return 0.05 * np.exp(rng.normal(0, 0.01, (steps, ranks))) + rng.poisson(0.6, (steps, ranks)) * rng.exponential(
        rates
    )


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("load", [0.0, 0.005, 0.02, 0.1, 0.3])
def test_noise_names_nobody(ranks: int, load: float) -> None:
    """In 1 of 5,000 windows at most, by chance."""
    assert sum(bool(raised(busy(seed, ranks, load=load), LEAST, CHANCE)) for seed in range(30)) <= 1


@pytest.mark.parametrize("load", [0.0, 0.005, 0.02])
def test_a_twentieth_of_the_step_names_its_rank(load: float) -> None:
    named = 0
    for seed in range(30):
        rows = busy(seed, load=load)
        rows[:, seed % 3] += 0.05 * STEP
        for found in raised(rows, LEAST, CHANCE):
            named += 1
            assert found.lane == seed % 3
            assert found.excess == pytest.approx(0.005, abs=0.0015)
    assert named >= 28


def test_half_of_the_steps_are_not_all() -> None:
    """What comes in some of the steps, or for a while, leaves the fastest of most stretches as they are."""
    rows = busy(1, load=0.0)
    rows[::2, 1] += 0.05
    rows[:50, 2] += 0.05
    assert raised(rows, LEAST, CHANCE) == []


def test_less_than_asked_for_is_nothing() -> None:
    rows = busy(1, load=0.0)
    rows[:, 1] += 0.6 * LEAST
    assert raised(rows, LEAST, CHANCE) == []


@pytest.mark.parametrize(
    ("ranks", "steps", "is_named"), [(2, 40, False), (2, 100, True), (3, 30, False), (8, 40, True)]
)
def test_few_ranks_take_more_steps(ranks: int, steps: int, is_named: bool) -> None:
    rows = busy(1, ranks, steps, load=0.0)
    rows[:, 1] += 0.01
    assert [one.lane for one in raised(rows, LEAST, CHANCE)] == ([1] if is_named else [])


def test_a_rank_of_which_nothing_is_known_is_no_peer() -> None:
    rows = busy(1, 4, load=0.0)
    rows[:, 0] = np.nan
    rows[:, 3] += 0.01
    assert [one.lane for one in raised(rows, LEAST, CHANCE)] == [3]
    rows[::9, 3] = np.nan
    assert [one.lane for one in raised(rows, LEAST, CHANCE)] == [3], "missing in some steps"
    assert raised(rows[:, :2], LEAST, CHANCE) == []
    assert floors_beyond(rows)[0] == 0.0
    assert floors_beyond(rows)[3] == pytest.approx(0.01, abs=0.001)


def test_the_chance_is_binomial_also_of_very_many() -> None:
    for hits in range(13):
        exact = sum(comb(12, n) * 2 ** (12 - n) for n in range(hits, 13)) / 3**12
        assert at_least(hits, 12, 1 / 3) == pytest.approx(exact)
    assert at_least(40, 5000, 1 / 500) < 1e-10
    assert at_least(10, 5000, 1 / 500) > 0.4
