"""How sure blame is that a rank differs from its peers, on noise that is known."""

import math

import numpy as np
import pytest

from holdfast.diagnostics.blame_peers import compare


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
    sure = [compare(seconds(120, ranks, memory, seed)).z.max() >= 3.4 for seed in range(300)]
    assert np.mean(sure) <= most


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_few_percent_stand_out_of_noise_that_forgets_at_once(ranks: int) -> None:
    table = np.stack([seconds(120, ranks, 0, seed) for seed in range(50)])
    table[:, :, 0] *= 1.05
    found = [compare(one) for one in table]
    assert np.mean([seen.z[0] >= 3.4 for seen in found]) > 0.95
    assert np.median([seen.ratio[0] for seen in found]) == pytest.approx(1.05, abs=0.005)
