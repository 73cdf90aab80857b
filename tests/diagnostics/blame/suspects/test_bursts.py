"""Ranks that are slow in some steps only, on noise that is known."""

import numpy as np
import pytest

from holdfast.diagnostics.blame.model import Limits
from holdfast.diagnostics.blame.suspects.bursts import find
from holdfast.diagnostics.blame.suspects.peers import medians_of_others
from tests.diagnostics.blame.suspects.test_floors import busy

STEP = 0.1


def beyond(rows: np.ndarray) -> np.ndarray:
    return rows - medians_of_others(rows)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("load", [0.0, 0.005, 0.02, 0.1, 0.3])
def test_noise_names_nobody(ranks: int, load: float) -> None:
    """In 1 of 1,000 windows at most, by chance."""
    assert sum(bool(find(beyond(busy(seed, ranks, load=load)), STEP, Limits())) for seed in range(30)) <= 1


@pytest.mark.parametrize("load", [0.0, 0.001])
def test_each_tenth_step_names_its_rank(load: float) -> None:
    """But for windows in which a few bursts of other ranks make it uncertain."""
    named = 0
    for seed in range(40):
        rank, first = seed % 3, seed % 10
        rows = busy(seed, load=load)
        rows[first::10, rank] += 0.2
        for found in find(beyond(rows), STEP, Limits()):
            named += 1
            assert found.lane == rank
            assert len(set(range(first, 100, 10)) & set(found.steps.tolist())) >= 9
            assert np.median(found.seconds) == pytest.approx(0.2, rel=0.15)
    assert named >= 36


@pytest.mark.parametrize(
    "what", ["all at once", "in one half", "in half of the steps", "in every step", "too few", "too little"]
)
def test_what_is_no_burst_of_one_rank(what: str) -> None:
    rows = busy(1, load=0.0)
    if what == "all at once":
        rows[::10] += 0.2
    elif what == "in one half":
        rows[:50:5, 1] += 0.2
    elif what == "in half of the steps":
        rows[::2, 1] += 0.2
    elif what == "in every step":
        rows[:, 1] += 0.2
    elif what == "too few":
        rows[[10, 30, 60, 90], 1] += 0.2
    else:
        rows[::10, 1] += 0.015
    assert find(beyond(rows), STEP, Limits()) == []


def test_bursts_of_one_disturbance_count_as_one() -> None:
    """Four steps in a row, six times: of three ranks, each is as likely to be hit, and six are too few."""
    rows = busy(1, load=0.0)
    for first in (3, 19, 35, 51, 67, 83):
        rows[first : first + 4, 1] += 0.1
    assert find(beyond(rows), STEP, Limits()) == []


def test_a_rank_that_is_slow_as_well_shows_its_bursts_beyond_that() -> None:
    rows = busy(1, load=0.0)
    rows[:, 1] += 0.05
    rows[::10, 1] += 0.2
    (found,) = find(beyond(rows), STEP, Limits())
    assert np.median(found.seconds) == pytest.approx(0.2, rel=0.05)


def test_few_steps_and_unknown_ranks() -> None:
    rows = busy(1, load=0.0)
    rows[::10, 1] += 0.2
    assert find(beyond(rows)[:20], STEP, Limits()) == []
    rows[:, 0] = np.nan
    assert find(beyond(rows)[:, :1], STEP, Limits()) == []
