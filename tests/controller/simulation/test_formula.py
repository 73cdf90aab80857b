"""The expected share of time in training, against what simulations come to."""

import pytest

from holdfast.controller.simulation.baselines import goodput
from holdfast.controller.simulation.faults import STOPS, draw
from holdfast.controller.simulation.formula import expected
from holdfast.controller.simulation.hosts import ClusterShape
from holdfast.controller.simulation.run import simulate

WEEK = 7 * 86_400.0


def test_without_faults_all_of_it() -> None:
    assert expected(0.0, 60.0, 600.0) == 1.0


def test_an_example_by_hand() -> None:
    """Every 1,000 s of training a fault; 100 s until the next step, and 200 s of 400 between checkpoints done again."""
    assert expected(1 / 1000, 100.0, 400.0) == pytest.approx((1000 - 200) / (1000 + 100))


def test_more_than_everything_cannot_be_lost() -> None:
    assert expected(1.0, 10.0, 600.0) == 0.0


@pytest.mark.parametrize("pause", [10.0, 300.0, 1800.0])
@pytest.mark.parametrize("rate", [1.0, 5.0, 20.0])
def test_agrees_with_a_drawn_trace_within_five_percent(pause: float, rate: float) -> None:
    shape = ClusterShape(nodes=512, checkpoint=600.0)
    faults = draw(3, 4096, 512, WEEK, rate)
    often = sum(fault.how in STOPS for fault in faults) / WEEK
    measured = goodput(shape, faults, WEEK, lambda *_: pause)
    assert expected(often, pause, shape.checkpoint) == pytest.approx(measured, rel=0.05)


@pytest.mark.slow
@pytest.mark.aside
@pytest.mark.parametrize("restart", [0.6, 60.0])
def test_agrees_with_the_controllers_own_decisions_within_five_percent(restart: float) -> None:
    # Enough spares: the formula does not cover waiting for repairs.
    shape = ClusterShape(nodes=32, spares=40, start=restart, restore=restart)
    found = simulate(shape, 5, days=1.0, rate=250.0)
    assert len(found.recovered) >= 10
    assert found.expected == pytest.approx(found.goodput, rel=0.05)
