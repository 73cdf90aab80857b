"""Samples and counters of NICs: all bytes of a step are in its bins, at the time at which they move."""

import numpy as np
import pytest

from holdfast.controller.simulation.fabric.conditions import Conditions, Flow
from holdfast.controller.simulation.fabric.layout import NIC_BYTES_PER_S as LINE
from holdfast.controller.simulation.fabric.layout import layout_of
from holdfast.controller.simulation.fabric.meter import BIN_S, Clock, Meter, moved
from holdfast.controller.simulation.fabric.solved import solve
from holdfast.controller.simulation.hosts import ClusterShape

SHAPE = ClusterShape(nodes=4, spares=2, gpus=2, per_switch=2, step=2.0)
LAYOUT = layout_of(SHAPE, range(4))
CALM = solve(LAYOUT, Conditions())
NICS = np.arange(4)
SUMS, MESSAGES = 0.12 * 2.0 * LINE, 0.03 * 2.0 * LINE
IDLE = 0.5e6


def test_a_step_moves_messages_then_rings() -> None:
    since = np.array([0.0, 2.0 - CALM.longest_sums_s, 2.0])
    found = moved(CALM, NICS, 2.0, since)
    assert found.shape == (2, 4, 3)
    assert not found[:, :, 0].any()
    assert found[:, :, 1] == pytest.approx(np.full((2, 4), MESSAGES))
    assert found[:, :, 2] == pytest.approx(np.full((2, 4), MESSAGES + SUMS))
    ever = moved(CALM, NICS, 2.0, np.linspace(0, 2, 101))
    assert (np.diff(ever, axis=2) >= 0).all()
    assert np.diff(ever, axis=2).max() / 0.02 <= LINE * 1.001, "no faster than a NIC"


def test_what_others_send_goes_on_all_the_time() -> None:
    solved = solve(LAYOUT, Conditions(others=(Flow(8, 0, 5e9),)))
    found = moved(solved, NICS, 2.0, np.array([0.1, 2.0]))
    assert found[1, 0, 1] == pytest.approx(SUMS + MESSAGES + 2.0 * 5e9, rel=0.01)
    assert found[1, 0, 0] - found[1, 1, 0] == pytest.approx(0.1 * 5e9)
    assert found[0, 0, 1] == pytest.approx(SUMS + MESSAGES)


def steps(clock: Clock | None, until: float, pieces: int = 1) -> tuple[float, np.ndarray, np.ndarray]:
    meter = Meter(LAYOUT.clos.nics, 0.0, 1.7e9, seed=1)
    for piece in range(1, pieces + 1):
        meter.advance(until * piece / pieces, CALM if clock is not None else None, clock, NICS)
    return meter.take()


def test_bins_hold_all_bytes_of_steps() -> None:
    wall, offsets, bytes_ = steps(Clock(0.0, 2.0), 20.0)
    assert wall == pytest.approx(1.7e9)
    assert len(offsets) == 20.0 / BIN_S
    assert offsets[:2].tolist() == [2500, 7500]
    whole = 10 * (SUMS + MESSAGES) + 20 * IDLE
    assert bytes_.sum(axis=2) == pytest.approx(np.full((2, 4), whole), rel=0.01)
    by_step = bytes_.reshape(2, 4, 10, -1).sum(axis=3)
    assert 0 < by_step.std() / by_step.mean() < 0.02, "steps differ, by little"


def test_bins_are_the_same_however_often_it_is_looked() -> None:
    _, offsets, bytes_ = steps(Clock(0.0, 2.0), 4.0)
    _, again, pieces = steps(Clock(0.0, 2.0), 4.0, pieces=7)
    assert offsets.tolist() == again.tolist()
    assert pieces.sum(axis=2) == pytest.approx(bytes_.sum(axis=2), rel=0.05)


def test_nothing_of_the_job_moves_before_its_first_step_or_while_it_stands() -> None:
    for clock in (Clock(100.0, 2.0), None):
        _, _, bytes_ = steps(clock, 10.0)
        assert bytes_.sum(axis=2) == pytest.approx(np.full((2, 4), 10 * IDLE))


def test_counters_grow_with_steps_and_are_reset() -> None:
    lossy = solve(LAYOUT, Conditions(lossy=frozenset({(LAYOUT.clos.nics, 1e-4)})))
    meter = Meter(LAYOUT.clos.nics, 0.0, 0.0, seed=1)
    meter.advance(6.0, lossy, Clock(0.0, 2.0), NICS)
    assert meter.counts["symbol_error"][0] == pytest.approx(3 * lossy.counted["symbol_error"][0])
    meter.skip(8.0, lossy, Clock(0.0, 2.0))
    assert meter.counts["symbol_error"][0] == pytest.approx(4 * lossy.counted["symbol_error"][0])
    assert len(meter.take()[1]) == 0, "nobody looked"
    meter.reset(np.array([0]))
    assert meter.counts["symbol_error"][0] == meter.totals[0, 0] == 0
    assert meter.totals[0, 1] > 0
