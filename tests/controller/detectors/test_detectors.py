"""Each detector alone: true and false positives, and detection time."""

import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.controller.detectors.agents.silence import frame_interval, note_arrival, silence_finding, silence_limit
from holdfast.controller.detectors.network.traffic import TrafficDetector
from holdfast.controller.detectors.workers.training import loss_finding
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Node
from holdfast.wire import types as t
from tests.controller.support.standstills import OPTIONS, at

# --- silence -----------------------------------------------------------------------------------------------------


def node(gaps: Iterator[float] | list[float], heartbeat_interval: float = 0.1) -> tuple[Node, float]:
    found = Node("n1", t.Identity("n1", "n1", "a"), connected=True)
    now = 10.0
    note_arrival(found, now, heartbeat_interval)
    for gap in gaps:
        now += gap
        note_arrival(found, now, heartbeat_interval)
    return found, now


def test_a_regular_node_is_silent_soon_after_it_stops() -> None:
    found, now = node([0.1] * 100)
    assert silence_finding(found, at(now + 0.7), 0.0, OPTIONS) is None
    finding = silence_finding(found, at(now + 0.9), 0.0, OPTIONS)
    assert finding is not None
    assert finding.subject == "n1"
    assert finding.since == pytest.approx(at(now).wall)


def test_a_jittery_node_is_given_more_time() -> None:
    steady, _ = node([0.1] * 200)
    jittery, _ = node([0.05, 0.6] * 100)
    assert silence_limit(jittery, OPTIONS) > 2 * silence_limit(steady, OPTIONS)


def test_our_own_lag_is_no_nodes_silence() -> None:
    found, now = node([0.1] * 50)
    assert silence_finding(found, at(now + 1.5), 1.4, OPTIONS) is None


@given(st.lists(st.floats(0.09, 0.2), min_size=20, max_size=200))
def test_no_false_alarm_within_ordinary_jitter(gaps: list[float]) -> None:
    found = Node("n1", t.Identity("n1", "n1", "a"), connected=True)
    now = 10.0
    note_arrival(found, now, 0.1)
    for gap in gaps:
        assert silence_finding(found, at(now + gap), 0.0, OPTIONS) is None
        now += gap
        note_arrival(found, now, 0.1)


@pytest.mark.parametrize(("nodes", "seconds"), [(1, 0.25), (100, 0.25), (1536, 1.0), (15360, 10.0)])
def test_the_frame_rate_of_the_whole_is_bounded(nodes: int, seconds: float) -> None:
    assert frame_interval(nodes, OPTIONS) == pytest.approx(seconds)


# --- traffic -----------------------------------------------------------------------------------------------------


def feed(
    detector: TrafficDetector, begin: float, seconds: float, rate: float, training: bool = True, steps: bool = False
) -> list[Finding]:
    """`steps`: whether the job goes on finishing them."""
    findings = []
    now = begin
    while now < begin + seconds:
        now += 0.1
        finding = detector.observe("n1", int(rate * 0.1), training, 0.5, now - 0.3 if steps else 0.0, at(now))
        if finding is not None:
            findings.append(finding)
    return findings


def test_traffic_that_stops_is_found_and_its_pauses_are_not() -> None:
    detector = TrafficDetector()
    assert not feed(detector, 0, 30, 5e6)
    assert not feed(detector, 30, 8, 0.0)
    assert not feed(detector, 38, 5, 5e6)
    findings = feed(detector, 43, 14, 0.0)
    assert findings
    assert findings[0].subject == "n1"
    assert 10 <= findings[0].at - findings[0].since <= 11.5


@pytest.mark.parametrize(
    ("silent", "subject", "node"), [(1, "n0", "n0"), (2, "n0", "n0"), (4, "job", ""), (5, "job", "")]
)
def test_where_most_nodes_fall_silent_together_none_of_them_is_named(silent: int, subject: str, node: str) -> None:
    detector, found = TrafficDetector(), []
    for tick in range(1, 450):
        for number in range(5):
            rate = 0.0 if tick > 300 and number < silent else 5e6
            found.append(detector.observe(f"n{number}", int(rate * 0.1), True, 0.5, 0.0, at(tick / 10)))
    (first, *_) = [finding for finding in found if finding is not None]
    assert (first.subject, first.node) == (subject, node)


def test_traffic_that_no_step_needs_may_stop() -> None:
    detector = TrafficDetector()
    feed(detector, 0, 30, 5e6)
    assert not feed(detector, 30, 60, 0.0, steps=True)
    assert feed(detector, 90, 14, 0.0)


def test_quiet_phases_and_quiet_jobs_are_no_fault() -> None:
    detector = TrafficDetector()
    feed(detector, 0, 30, 5e6)
    assert not feed(detector, 30, 60, 0.0, training=False)
    small = TrafficDetector()
    feed(small, 0, 30, 500.0)
    assert not feed(small, 30, 60, 0.0)


# --- training ----------------------------------------------------------------------------------------------------


def test_only_a_reported_loss_can_be_not_finite() -> None:
    record = t.StepRecord(2, 1, 7, int(5e9), 0.3, math.inf)
    finding = loss_finding(record, "n1", 4, at(10.0))
    assert finding is not None
    assert finding.subject == "rank2"
    assert loss_finding(t.StepRecord(2, 1, 7, int(5e9), 0.3), "n1", 4, at(10.0)) is None
    assert loss_finding(t.StepRecord(2, 1, 7, int(5e9), 0.3, 2.5), "n1", 4, at(10.0)) is None
