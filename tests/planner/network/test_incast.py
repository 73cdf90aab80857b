from dataclasses import replace
from itertools import pairwise

import pytest

from holdfast.planner.network.congestion import Dcqcn, Flags, Floats, Hybrid, NoControl, Swift
from holdfast.planner.network.errors import NetworkError
from holdfast.planner.network.incast import Port, incast

PORT = Port(mark_from=100e3, mark_all=400e3)


def dcqcn(flows: int, line: float, base: float) -> Dcqcn:
    return Dcqcn(flows, line)


def no_control(flows: int, line: float, base: float) -> NoControl:
    return NoControl(flows, line)


@pytest.mark.parametrize(("senders", "apart_s", "seconds"), [(32, 0.0, 0.006), (16, 0.25e-3, 0.008)])
def test_both_together_pause_least_and_fill_the_port_fairly(senders: int, apart_s: float, seconds: float) -> None:
    """All have begun when the second half does."""
    both = incast(Hybrid, PORT, senders, seconds, 1, apart_s)
    assert both.goodput >= 0.95
    assert both.fairness >= 0.95
    assert both.longest_queue <= PORT.mark_all
    notified = incast(dcqcn, PORT, senders, seconds, 1, apart_s)
    assert both.pauses < notified.pauses < incast(no_control, PORT, senders, seconds, 1, apart_s).pauses
    assert both.pauses <= incast(Swift, PORT, senders, seconds, 1, apart_s).pauses


def test_without_control_the_queue_is_what_pauses_leave() -> None:
    flooded = incast(no_control, PORT, 32, 0.005, 1)
    assert flooded.longest_queue == pytest.approx(32 * PORT.pause_at, rel=0.15)
    assert flooded.goodput == pytest.approx(1)


def test_one_sender_has_the_port_for_itself() -> None:
    alone = incast(Hybrid, PORT, 1, 0.005, 1)
    assert (alone.pauses, alone.fairness) == (0, 1.0)
    assert alone.goodput == pytest.approx(1, abs=0.01)


def test_the_same_seed_gives_the_same() -> None:
    one, again, other = (incast(dcqcn, PORT, 8, 0.002, seed) for seed in (3, 3, 4))
    assert one == again != other


def test_a_receiver_notifies_a_flow_once_in_50_us() -> None:
    seen = []

    class Counts(NoControl):
        def step(self, now: float, passed: float, notified: Flags, round_trip: Floats) -> None:
            seen.append(notified.copy())

    incast(lambda flows, line, base: Counts(flows, line), Port(mark_from=0.0, mark_all=1.0, pause_at=1e9), 2, 1e-3, 1)
    for flow in range(2):
        at = [step for step, notified in enumerate(seen) if notified[flow]]
        assert at[0] <= 10
        assert {late - early for early, late in pairwise(at)} <= {50, 51}  # floating point


@pytest.mark.parametrize(("queue", "chance"), [(0, 0), (99e3, 0), (250e3, 0.1), (399_999, 0.2), (400e3, 1), (9e9, 1)])
def test_marks_by_the_queue(queue: float, chance: float) -> None:
    assert PORT.marks(queue) == pytest.approx(chance, abs=1e-5)


def test_what_no_port_is_is_refused() -> None:
    with pytest.raises(NetworkError, match="no bandwidth"):
        replace(PORT, bytes_per_s=0.0)
    with pytest.raises(NetworkError, match="the second must be larger"):
        replace(PORT, mark_all=1e3)
    with pytest.raises(NetworkError, match="0 senders"):
        incast(dcqcn, PORT, 0, 0.01, 1)
