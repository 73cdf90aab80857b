"""Ranks that are slow in some steps only, on noise that is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.diagnostics.blame.bursts import find
from holdfast.diagnostics.blame.model import Limits
from holdfast.diagnostics.blame.peers import medians_of_others
from tests.diagnostics.blame.test_floors import busy

STEP = 0.1


def beyond(rows: np.ndarray) -> np.ndarray:
    return rows - medians_of_others(rows)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from([2, 3, 4, 8]), st.sampled_from([0.0, 0.005, 0.02, 0.1, 0.3]))
def test_noise_names_nobody(seed: int, ranks: int, load: float) -> None:
    assert find(beyond(busy(seed, ranks, load=load)), STEP, Limits()) == []


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1 << 32), st.sampled_from([0.0, 0.001]), st.integers(0, 2), st.integers(0, 9))
def test_each_tenth_step_names_its_rank(seed: int, load: float, rank: int, first: int) -> None:
    rows = busy(seed, load=load)
    rows[first::10, rank] += 0.2
    (found,) = find(beyond(rows), STEP, Limits())
    assert found.lane == rank
    assert len(set(range(first, 100, 10)) & set(found.steps.tolist())) >= 9
    assert np.median(found.seconds) == pytest.approx(0.2, rel=0.15)


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
