"""How sure blame is that a rank differs from its peers, on noise that is known."""

import math

import numpy as np
import pytest

from holdfast.diagnostics.blame.suspects.peers import compare, floor_of


def seconds(steps: int, ranks: int, memory: float, seed: int) -> np.ndarray:
    """Work of 10 ms, (steps, ranks), that varies by 5 % and forgets it over so many steps."""
    rng = np.random.default_rng(seed)
    keep = math.exp(-1 / memory) if memory else 0.0
    noise = np.zeros((steps, ranks))
    noise[0] = rng.normal(0, 0.05, ranks)
    for step in range(1, steps):
        noise[step] = keep * noise[step - 1] + rng.normal(0, 0.05 * math.sqrt(1 - keep**2), ranks)
    return 0.010 * np.exp(noise)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(("memory", "most"), [(0, 0.01), (5, 0.04), (10, 0.1)])
def test_what_wanders_over_several_steps_stands_out_of_nothing(ranks: int, memory: float, most: float) -> None:
    sure = [compare(seconds(120, ranks, memory, seed)).z.max() >= 3.4 for seed in range(100)]
    assert np.mean(sure) <= most


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_few_percent_stand_out_of_noise_that_forgets_at_once(ranks: int) -> None:
    table = np.stack([seconds(120, ranks, 0, seed) for seed in range(50)])
    table[:, :, 0] *= 1.05
    found = [compare(one) for one in table]
    assert np.mean([seen.z[0] >= 3.4 for seen in found]) > 0.95
    assert np.median([seen.ratio[0] for seen in found]) == pytest.approx(1.05, abs=0.005)


@pytest.mark.parametrize(("seconds", "is_sure"), [(0.1, False), (2.0, False), (10.0, True), (300.0, True)])
def test_what_differs_for_a_moment_is_no_finding(seconds: float, is_sure: bool) -> None:
    """A rank that shares its core's cache takes 7% longer while its host peer is there, in every step alike."""
    rng = np.random.default_rng(1)
    samples = 0.01 * rng.lognormal(0, 0.01, (60, 4))
    samples[:, 2] *= 1.07
    seen = compare(samples, floor_of(seconds))
    assert seen.ratio[2] == pytest.approx(1.07, abs=0.01)
    assert (seen.z[2] > 5) == is_sure


def test_of_many_ranks_it_is_seen_how_far_apart_they_are() -> None:
    rng = np.random.default_rng(1)
    samples = 0.01 * rng.lognormal(0, 0.01, (60, 16))
    samples[:, 2] *= 1.07
    assert compare(samples, floor_of(0.1)).z[2] > 5
    samples *= rng.lognormal(0, 0.04, 16)
    assert abs(compare(samples, floor_of(0.1)).z).max() < 4


def test_the_floor_falls_with_the_time_watched_and_has_bounds() -> None:
    floors = [floor_of(seconds) for seconds in (0.0, 0.01, 0.5, 2.0, 4.0, 25.0, 1e6)]
    assert floors == sorted(floors, reverse=True)
    assert floors[:3] == [0.15] * 3
    assert floors[3] == pytest.approx(0.05)
    assert floors[-2:] == [0.004] * 2


def test_what_came_and_went_is_not_the_ranks() -> None:
    """A third longer for 12 of 20 steps: the median is high, the second half is not."""
    rng = np.random.default_rng(1)
    samples = 0.1 * rng.lognormal(0, 0.01, (20, 4))
    samples[:12, 2] *= 1.33
    seen = compare(samples)
    assert seen.ratio[2] > 1.1
    assert seen.z[2] < 4
    samples[12:, 2] *= 1.33
    assert compare(samples).z[2] > 10
