"""What congestion control is given, and what senders make of its rates."""

import numpy as np
import pytest

from holdfast.planner.network.congestion import Flags, Floats, NoControl
from holdfast.planner.network.incast import Port
from holdfast.planner.packets.rack import ENDLESS, Flows, Rack
from holdfast.planner.packets.simulation import Simulation
from tests.planner.packets.test_closed_forms import PACKET, D, got

SLOT = PACKET / 25e9
LINE = 25e9


class Notes(NoControl):
    """Keeps what it is given, and leaves rates alone."""

    def __init__(self, flows: int, line: float, base: float) -> None:
        super().__init__(flows, line)
        self.base = base
        self.steps: list[tuple[float, float, Flags, Floats]] = []

    def step(self, now: float, passed: float, notified: Flags, round_trip: Floats) -> None:
        self.steps.append((now, passed, notified.copy(), round_trip.copy()))


def noted(port: Port, *flows: tuple[int, int, int], slots: int, window: int = 256) -> Notes:
    made = Simulation(Rack(5, port, window=window), Flows.of(*flows), Notes)
    made.run(slots)
    found = made.senders.control
    assert isinstance(found, Notes)
    return found


def test_a_step_each_microsecond_with_the_time_that_passed() -> None:
    every = round(1e-6 / SLOT)
    control = noted(Port(), (0, 1, ENDLESS), slots=100)
    assert control.base == pytest.approx(4 * D * SLOT)
    assert [now for now, *_ in control.steps] == pytest.approx([n * every * SLOT for n in range(-(-100 // every))])
    assert {passed for _, passed, *_ in control.steps} == {every * SLOT}


def test_round_trips_are_four_hops_and_the_queue() -> None:
    """Four windows of 30 packets less what is under way wait in the queue; one leaves in each slot."""
    control = noted(Port(pause_at=1e9), *[(i, 4, ENDLESS) for i in range(4)], slots=1000, window=30)
    assert control.steps[5][3] == pytest.approx(np.full(4, 4 * D * SLOT))
    trip = control.steps[-1][3] / SLOT
    assert trip == pytest.approx(np.full(4, 4 * 30), abs=1e-6)  # Little's law: 120 under way at one a slot
    alone = noted(Port(), (0, 1, ENDLESS), slots=300)
    assert alone.steps[-1][3] / SLOT == pytest.approx(np.full(1, 4 * D))


def test_marks_notify_a_flow_once_in_50_microseconds_and_are_forgotten() -> None:
    all_marked = noted(Port(mark_from=0.0, mark_all=1.0, pause_at=1e9), (0, 1, ENDLESS), (2, 1, 60), slots=3000)
    at = [now for now, _, cut, _ in all_marked.steps if cut[0]]
    step = round(1e-6 / SLOT) * SLOT
    assert len(at) > 5
    assert np.diff(at) == pytest.approx(np.full(len(at) - 1, -(-50e-6 // step) * step), abs=step * 1.001)
    # The second flow's 60 packets leave within 120 slots, 20 us: it is notified at once, and not for its past.
    assert sum(bool(cut[1]) for _, _, cut, _ in all_marked.steps) == 1


@pytest.mark.parametrize("pace", [0.7, 0.35, 1 / 3])
def test_a_rate_below_the_line_is_kept_on_average(pace: float) -> None:
    class Slow(NoControl):
        def step(self, now: float, passed: float, notified: Flags, round_trip: Floats) -> None:
            self.rate[:] = pace * LINE

    made = Simulation(Rack(2), Flows.of((0, 1, ENDLESS)), lambda flows, line, base: Slow(flows, line))
    made.run(1000 + 2 * D)
    assert abs(got(made)[0] - 1000 * pace) <= 2  # a packet that was kept, and the first one
    assert made.switch.longest[1] == 0


def test_senders_that_meet_are_served_alike_whatever_their_order() -> None:
    """Windows stand in one queue: who is first in a slot goes round, so each gets its share to a window."""
    made = Simulation(Rack(5, Port(pause_at=1e9), buffer=60 * PACKET, pfc=False, window=1 << 20),
                      Flows.of(*[(i, 4, ENDLESS) for i in range(4)]), Notes)  # fmt: skip
    admitted = np.zeros(4)
    for _ in range(600):
        before = made.switch.held[:4].copy()
        made.run(1)
        admitted += np.maximum(made.switch.held[:4] - before, 0)
    assert made.switch.dropped > 600
    assert admitted.min() > 0.8 * admitted.mean()
