"""What recent steps say of the next one, and that a detector takes it from the newest of them."""

import math

import pytest

from holdfast.controller.detectors.workers.hang import HangDetector
from holdfast.controller.detectors.workers.step_times import StepTimes
from tests.controller.detectors.workers.test_hang import late, table
from tests.controller.support.standstills import OPTIONS, STEPS, at, stopped_alone


def test_the_figures_of_a_hundred_steps_ever_shorter() -> None:
    times = StepTimes([float(seconds) for seconds in range(100, 0, -1)])
    assert times.median == 50.5
    assert times.longest == 50.0  # of the newest fifty
    assert times.slow == pytest.approx(1 + 0.9 * 99)


def test_of_two_steps_nothing_is_known() -> None:
    assert math.isnan(StepTimes([0.3, 0.3]).median)
    assert StepTimes([0.3, 0.3, 0.3]).median == 0.3


def test_a_detector_judges_by_the_newest_steps_that_it_was_given() -> None:
    ranks, detector = table(idle=1.6), HangDetector(OPTIONS)
    late(ranks, 3)
    steps = [*STEPS]
    assert [one.rank for one in detector.observe(ranks, 1, steps, at(50.05))] == [3]
    steps[:] = [3.0] * 30
    assert detector.observe(ranks, 1, steps, at(50.05)) == []
    assert [one.rank for one in detector.observe(ranks, 1, STEPS, at(50.05))] == [3]


def test_a_process_that_is_stopped_is_dead_half_a_floor_earlier() -> None:
    """After two median steps and half of the floor, 0.975 s, no rank is looked at closely before."""
    for idle, dead in ((0.96, []), (0.99, [3])):
        ranks = table(idle=idle)
        late(ranks, 3, stopped=True, progress_age=idle, tick_age=idle, standing=stopped_alone(idle))
        assert [one.rank for one in HangDetector(OPTIONS).observe(ranks, 1, STEPS, at(50.05))] == dead
