"""Pipelines of unlike stages, against times that were added up by hand."""

from __future__ import annotations

import pytest

from holdfast.planner.partition.scored import simulated


@pytest.mark.parametrize(
    ("times", "micro_batches", "message", "seconds"),
    [
        # One stage has no bubble.
        ([6.0], 5, 0.0, 30),
        # sum t + (B - 1) max t, where the last stage is the slowest: it never waits.
        ([3.0, 6.0], 2, 0.0, 9 + 6),
        ([3.0, 3.0, 6.0], 4, 0.0, 12 + 3 * 6),
        # The first one is the slowest: forwards 0-2, 2-4; the other 2-3 and back 3-5, 5-6 and back 6-8; back 5-9, 9-13.
        ([6.0, 3.0], 2, 0.0, 13),
        # The same, each message a second: 3-4, back 4-6, 6-7, back 7-9; back 7-11, 11-15.
        ([6.0, 3.0], 2, 1.0, 15),
    ],
)
def test_a_backward_takes_two_thirds(times: list[float], micro_batches: int, message: float, seconds: float) -> None:
    assert simulated(times, micro_batches, message) == pytest.approx(seconds)
