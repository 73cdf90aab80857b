"""Traffic patterns: periods are found, healthy steps report nothing, and each change is reported by its kind."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.controller.detectors.base.table import Tuning
from holdfast.controller.detectors.network.traffic_pattern import BIN, Bins, Volume, find_period
from holdfast.controller.detectors.network.volumes import Judge, VolumeDetector
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant
from holdfast.wire import types as t

MB = 1e6


def bursts(period: float, seconds: float, jitter: float, rng: np.random.Generator) -> np.ndarray:
    bins = np.zeros(round(seconds / BIN))
    at = 0.0
    while at < seconds:
        bins[round((at + 0.4 * period) / BIN) : round((at + 0.8 * period) / BIN)] = rng.uniform(0.8, 1.2)
        at += period * max(0.5, 1 + jitter * float(rng.standard_normal()))
    return bins


@given(st.floats(0.08, 5.0), st.floats(0.0, 0.04), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_period_of_bursts_is_found(period: float, jitter: float, seed: int) -> None:
    found = find_period(bursts(period, 30.0, jitter, np.random.default_rng(seed)), BIN)
    assert found == pytest.approx(period, rel=0.12, abs=2 * BIN)


@given(st.integers(0, 2**32))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_noise_has_no_period(seed: int) -> None:
    assert math.isnan(find_period(np.random.default_rng(seed).random(6000), BIN))


def test_silence_and_a_short_look_have_none() -> None:
    assert math.isnan(find_period(np.zeros(6000), BIN))
    assert math.isnan(find_period(np.ones(10), BIN))


# --- the judge: 10^5 healthy steps, and each problem ------------------------------------------------------------


def healthy(rng: np.random.Generator, steps: int) -> list[Volume]:
    """Volumes hardly vary; burst rates do, by a lot; now and then a checkpoint goes over the same NIC."""
    tx = 100 * MB * rng.normal(1, 0.01, steps)
    rx = 100 * MB * rng.normal(1, 0.01, steps)
    peak = 500 * MB * np.clip(rng.lognormal(0, 0.15, steps), 0.5, 3)
    saves = rng.random(steps) < 0.01
    tx[saves] *= rng.uniform(2, 50, int(saves.sum()))
    return [Volume(float(a), float(b), float(c)) for a, b, c in zip(tx, rx, peak, strict=True)]


@pytest.mark.slow
@pytest.mark.aside
def test_a_hundred_thousand_healthy_steps_say_nothing() -> None:
    rng = np.random.default_rng(7)
    judge = Judge(Tuning())
    assert [judge.add(volume) for volume in healthy(rng, 100_000)].count(None) == 100_000


def scaled(volume: Volume, factor: float) -> Volume:
    return Volume(volume.tx * factor, volume.rx * factor, volume.peak)


CHANGES: dict[str, Callable[[np.random.Generator, Volume], Volume]] = {
    "traffic-decline": lambda rng, v: scaled(v, 0.5),
    "traffic-one-sided": lambda rng, v: Volume(v.tx * 0.05, v.rx, v.peak),
    "traffic-unsteady": lambda rng, v: scaled(v, float(rng.uniform(0.3, 3))),
}


@pytest.mark.parametrize("kind", CHANGES)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
def test_each_change_is_reported_once_for_what_it_is(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    judge = Judge(Tuning())
    before = [judge.add(v) for v in healthy(rng, 200)]
    after = [judge.add(CHANGES[kind](rng, v)) for v in healthy(rng, 100)]
    assert not any(before)
    reported = [(at, trouble.kind) for at, trouble in enumerate(after) if trouble is not None]
    assert [name for _, name in reported] == [kind]
    assert reported[0][0] < 40


@pytest.mark.parametrize("memory", [1, 10, 50])
def test_bursts_that_wander_by_themselves_say_nothing(memory: int) -> None:
    """Of a host with more to do than processors: for some steps its bursts are slower, and then again they are not."""
    rng = np.random.default_rng(memory)
    keep, walk = math.exp(-1 / memory), 0.0
    judge = Judge(Tuning())
    for volume in healthy(rng, 20_000):
        walk = keep * walk + rng.normal(0, 0.25 * math.sqrt(1 - keep**2))
        assert judge.add(Volume(volume.tx, volume.rx, volume.peak * math.exp(walk))) is None


def test_a_slow_nic_is_reported_by_its_bursts() -> None:
    rng = np.random.default_rng(3)
    judge = Judge(Tuning())
    for volume in healthy(rng, 100):
        assert judge.add(volume) is None
    found = [judge.add(Volume(v.tx, v.rx, 0.3 * v.peak)) for v in healthy(rng, 20)]
    (trouble,) = [one for one in found if one is not None]
    assert trouble.kind == "traffic-decline"
    assert 0.2 < trouble.share < 0.4


# --- frames of nodes -------------------------------------------------------------------------------------------


class Wire:
    """Nodes whose steps move bytes in bursts; frames as agents send them."""

    def __init__(self, nodes: int, period: float = 0.4, reports: bool = True) -> None:
        self.detector = VolumeDetector(Tuning())
        self.names = [f"node{i}" for i in range(nodes)]
        self.period, self.reports = period, reports
        self.rate = dict.fromkeys(self.names, 100_000.0)  # bytes per millisecond in a burst
        self.host: dict[str, dict[str, float]] = {}
        self.longer: dict[str, float] = {}  # shares of a step that its bursts begin earlier
        self.frames = 0
        self.found: list[Finding] = []

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.25)):
            start = 1000.0 + 0.25 * self.frames
            self.frames += 1
            times = start + np.arange(250) / 1e3
            in_step = np.mod(times, self.period) / self.period
            for rank, name in enumerate(self.names):
                begins = 0.4 - self.longer.get(name, 0.0)
                moved = np.where((in_step > begins) & (in_step < 0.8), self.rate[name], 0).astype("<u4").tobytes()
                offsets = (np.arange(250) * 1000).astype("<u4").tobytes()
                ends = [n for n in range(int(start / self.period), int((start + 0.25) / self.period) + 1)]
                steps = tuple(
                    t.StepRecord(rank, 1, n, int(n * self.period * 1e9), self.period)
                    for n in ends
                    if self.reports and start <= n * self.period < start + 0.25
                )
                nic = t.NicSamples("eth0", 0, 0, moved, moved)
                host = self.host.get(name, {})
                frame = t.Frame(self.frames, int(start * 1e9), 0, offsets, (nic,), host, steps=steps)
                now = Instant(start, start)
                self.found += self.detector.observe(name, frame, rank, 1, self.reports, now)


@pytest.mark.parametrize("reports", [True, False])
def test_one_node_of_four_that_declines_is_named(reports: bool) -> None:
    wire = Wire(4, reports=reports)
    wire.run(120)
    assert not wire.found
    wire.rate["node2"] *= 0.4
    wire.run(60)
    (finding,) = wire.found
    assert (finding.kind, finding.subject, finding.node) == ("traffic-decline", "node2", "node2")
    if not reports:
        assert finding.evidence["period_s"] == pytest.approx(0.4, abs=0.01)


def test_what_befalls_all_nodes_is_the_jobs() -> None:
    wire = Wire(4)
    wire.run(30)
    for name in wire.names:
        wire.rate[name] *= 0.4
    wire.run(30)
    assert {finding.subject for finding in wire.found} == {"job"}


def test_a_new_generation_has_its_own_usual() -> None:
    wire = Wire(2)
    wire.run(30)
    for name in wire.names:
        wire.rate[name] *= 0.1
    frame = t.Frame(1, 10**15, 0)
    for rank, name in enumerate(wire.names):
        wire.detector.observe(name, frame, rank, 2, True, Instant(0, 0))
    wire.run(5)
    assert not wire.found


def test_bins_keep_no_more_than_they_need() -> None:
    bins = Bins()
    for second in range(100):
        samples = (np.arange(1000) * 1000).astype("<u4").tobytes()
        nic = t.NicSamples("eth0", 0, 0, samples, samples)
        bins.add(t.Frame(1, second * 10**9, 0, samples, (nic,)))
    assert len(bins._tx) <= 2 * bins.keep
    assert bins.between(0.0, 1.0) is None
    whole = bins.between(95.0, 96.0)
    assert whole is not None
    assert whole.tx == whole.rx == np.arange(1000).sum() * 1000
    # Steps turn out to be short: the room that was taken for long ones goes back.
    before, bins.keep = bins._bytes.shape[1], 400
    bins.add(t.Frame(1, 100 * 10**9, 0, samples, (nic,)))
    assert bins._bytes.shape[1] < before / 2
    assert bins.between(99.0, 100.0) == whole


def test_volumes_of_steps_are_taken_once() -> None:
    """A step of 0.4 s moves 100 kB a millisecond for 0.4 of it, and nothing in its quietest stretch."""
    wire = Wire(2)
    wire.run(1.75)
    ((volume, copies),) = wire.detector.take("node0")
    assert volume.tx == volume.rx == pytest.approx(16 * MB, rel=0.02)
    assert (volume.steady_tx, volume.steady_rx, copies) == (0.0, 0.0, (0.0, 0.0))
    assert wire.detector.take("node0") == []
    assert wire.detector.take("node9") == []
    silent = Wire(2, reports=False)
    silent.run(60.0)
    assert silent.detector.take("node0") == [], "periods are no steps"


@pytest.mark.parametrize(("seconds", "share"), [(0.1, math.inf), (0.32, 1.0), (1.6, 1.0), (100.0, 1.0)])
def test_what_goes_on_all_the_time_is_steady(seconds: float, share: float) -> None:
    """2 MB a second without a pause, and 10 MB in bursts: only of a step that is too short nothing is known."""
    bins, count = Bins(), round(seconds * 1e3)
    bins.keep = 10**6
    at = np.arange(count)
    burst = (at > 0.4 * count) & (at < 0.6 * count)
    moved = (2000 + np.where(burst, 10 * MB / burst.sum(), 0)).astype("<u4").tobytes()
    bins.add(t.Frame(1, 10**12, 0, (at * 1000).astype("<u4").tobytes(), (t.NicSamples("eth0", 0, 0, moved, moved),)))
    volume = bins.between(1000.0, 1000.0 + seconds)
    assert volume is not None
    assert volume.steady_tx == volume.steady_rx == pytest.approx(share * 2000 * count)
    assert volume.tx == pytest.approx(2000 * count + 10 * MB, rel=0.01)


@pytest.mark.parametrize(("unsteady", "named"), [(1, {"node0"}), (5, set())])
def test_steps_that_differ_on_most_nodes_are_the_jobs_way_and_no_nodes_trouble(unsteady: int, named: set[str]) -> None:
    """Copies of snapshots, for one, go along with some steps and not with others."""
    rng, wire = np.random.default_rng(5), Wire(6)
    wire.run(120)
    for _ in range(400):
        for name in wire.names[:unsteady]:
            wire.rate[name] = 100_000.0 * float(rng.uniform(0.4, 2))
        wire.run(0.25)
    assert {finding.node for finding in wire.found} == named


@pytest.mark.parametrize(("reported", "named"), [(True, set()), (False, {"node0"})])
def test_what_copies_of_snapshots_can_explain_is_no_trouble(reported: bool, named: set[str]) -> None:
    """One node is too busy to copy each snapshot: some of its steps carry a copy, and others none."""
    rng, wire = np.random.default_rng(9), Wire(6)
    copy = 0.28 * 0.4 * 1000 * 100_000.0  # 0.28 of a step's time longer at the same rate
    for second in range(220):
        if reported:
            sizes = {"snapshot_bytes": copy, "snapshot_copies_bytes": copy}
            wire.host["node0"] = {"snapshot_peer_step": float(second), **sizes}
        wire.longer["node0"] = 0.28 * float(second >= 120 and rng.random() < 0.5)
        wire.run(1)
    assert {finding.node for finding in wire.found} == named


def test_steps_without_counted_bytes_have_no_volume() -> None:
    """A restarted agent reads the steps done in its absence; it has not seen their traffic."""
    bins = Bins()
    samples = (np.arange(1000) * 1000).astype("<u4").tobytes()
    for second in (0, 1, 5, 6):
        nic = t.NicSamples("eth0", 0, 0, samples, samples)
        bins.add(t.Frame(1, second * 10**9, 0, samples, (nic,)))
    assert [bins.between(start, start + 1.0) is not None for start in (1.5, 2.0, 3.0, 4.5, 5.0, 5.5)] == [
        False, False, False, False, True, True,
    ]  # fmt: skip
