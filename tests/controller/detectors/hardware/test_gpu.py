"""GPU gauges: each problem is reported once, with the right GPU, and normal values report nothing."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.controller.detectors.base.table import Tuning
from holdfast.controller.detectors.base.windows import GrowthWindow, Latch
from holdfast.controller.detectors.hardware.gpu import GpuDetector
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Node
from holdfast.wire import types as t

GIB = float(1 << 30)
WELL = {
    "lost": 0.0, "ecc_uncorrected_volatile": 4.0, "ecc_corrected_volatile": 9000.0, "remapped_rows_pending": 0.0,
    "remapped_rows_failed": 0.0, "hw_throttled": 0.0, "temperature_celsius": 70.0, "recovery_action": 0.0,
    "nvlinks": 18.0, "nvlinks_down": 0.0, "nvlink_replay_errors": 12.0,
    "memory_used_bytes": 70 * GIB, "memory_total_bytes": 80 * GIB,
}  # fmt: skip


def at(mono: float) -> Instant:
    return Instant(mono, 1e6 + mono)


class Host:
    def __init__(self, gpus: int = 4, *changes: str) -> None:
        self.node = Node("node1", t.Identity("node1", "node1", "i"))
        self.node.gpus = {index: dict(WELL) for index in range(gpus)}
        self.detector = GpuDetector(Tuning(changes))
        self.now = 1000.0
        self.found: list[Finding] = []

    def run(
        self, seconds: float, every: float = 2.0, change: Callable[[float], None] = lambda now: None, busy: bool = True
    ) -> list[Finding]:
        before = len(self.found)
        end = self.now + seconds
        while self.now < end:
            change(self.now)
            self.found += self.detector.observe(self.node, busy, at(self.now))
            self.now += every
        return self.found[before:]

    def set(self, gpu: int = 2, **values: float) -> None:
        self.node.gpus[gpu].update(values)


@pytest.mark.parametrize(
    ("values", "kind", "severity"),
    [
        ({"lost": 1.0}, "gpu-lost", "critical"),
        ({"recovery_action": 2.0}, "gpu-recovery", "critical"),
        ({"recovery_action": 4.0}, "gpu-drain", "warning"),
        ({"ecc_uncorrected_volatile": 5.0}, "gpu-ecc", "warning"),
        ({"ecc_corrected_volatile": 11000.0}, "gpu-ecc", "warning"),
        ({"remapped_rows_pending": 1.0}, "gpu-row-remap", "warning"),
        ({"remapped_rows_failed": 1.0}, "gpu-row-remap", "critical"),
        ({"hw_throttled": 1.0}, "gpu-throttle", "warning"),
        ({"nvlinks_down": 1.0}, "gpu-nvlink", "critical"),
        ({"nvlink_replay_errors": 500.0}, "gpu-nvlink", "warning"),
    ],
)
def test_each_trouble_is_said_once_of_its_gpu(values: dict[str, float], kind: str, severity: str) -> None:
    host = Host()
    assert not host.run(120)
    host.set(2, **values)
    (finding,) = host.run(900)
    assert (finding.kind, finding.subject, finding.severity) == (kind, "node1/gpu2", severity)
    assert finding.node == "node1"
    assert finding.evidence["gpu"] == 2


def test_what_counters_said_before_we_came_is_history() -> None:
    host = Host()
    host.set(1, ecc_uncorrected_volatile=50.0, nvlink_replay_errors=1e6)
    assert not host.run(600)


def test_a_driver_that_was_loaded_anew_counts_from_nothing() -> None:
    host = Host()
    host.run(10)
    host.set(2, ecc_uncorrected_volatile=0.0, nvlink_replay_errors=0.0, ecc_corrected_volatile=0.0)
    assert not host.run(600)


def test_throttling_that_flickers_below_half_of_the_time_is_no_news() -> None:
    host = Host()
    assert not host.run(3600, change=lambda now: host.set(2, hw_throttled=float(now % 10 < 3)))
    (finding,) = host.run(600, change=lambda now: host.set(2, hw_throttled=float(now % 10 < 8)))
    assert "70 °C" in finding.text


def test_links_that_all_gpus_lack_are_how_the_machine_is_built() -> None:
    host = Host()
    for gpu in range(4):
        host.set(gpu, nvlinks_down=6.0)
    assert not host.run(120)
    host.set(0, nvlinks_down=7.0)
    assert [finding.subject for finding in host.run(60)] == ["node1/gpu0"]


def test_a_gpu_without_a_bridge_is_worth_a_look_and_no_alarm() -> None:
    host = Host()
    for gpu in (2, 3):
        host.set(gpu, nvlinks=12.0, nvlinks_down=12.0)
    found = host.run(120)
    assert [(f.subject, f.severity) for f in found] == [("node1/gpu2", "warning"), ("node1/gpu3", "warning")]
    assert all("none was ever up" in f.text for f in found)
    host.set(0, nvlinks_down=18.0)  # these were up
    assert [(f.subject, f.severity) for f in host.run(120)] == [("node1/gpu0", "critical")]


def test_a_leak_is_found_while_training_and_a_plateau_is_none() -> None:
    rng = np.random.default_rng(1)

    def use(least: Callable[[float], float]) -> Callable[[float], None]:
        return lambda now: host.set(2, memory_used_bytes=least(now) + float(rng.uniform(0, 1)) * GIB)

    host = Host()
    assert not host.run(3 * 3600, 10.0, use(lambda now: 60 * GIB))
    start = host.now
    grow = use(lambda now: 60 * GIB + (now - start) / 3600 * 3 * GIB)
    (finding,) = host.run(2 * 3600, 10.0, grow)
    assert (finding.kind, finding.subject) == ("gpu-memory-leak", "node1/gpu2")
    idle = Host()
    assert not idle.run(7200, 10.0, lambda now: idle.set(2, memory_used_bytes=now * 1e6), busy=False)


@settings(max_examples=5, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_a_day_of_healthy_gauges_says_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    host = Host(2)

    def wander(now: float) -> None:
        for gpu in range(2):
            values = host.node.gpus[gpu]
            values["temperature_celsius"] = float(rng.uniform(40, 88))
            values["hw_throttled"] = float(rng.random() < 0.05)
            values["ecc_corrected_volatile"] += float(rng.random() < 0.01)
            values["nvlink_replay_errors"] += float(rng.random() < 0.01)
            values["memory_used_bytes"] = float(rng.uniform(20, 79)) * GIB

    assert not host.run(86400, 60.0, wander)


def test_a_counter_grows_within_its_window_only() -> None:
    growth = GrowthWindow(60.0)
    assert growth.see("a", 100.0, 0.0) == 0
    assert growth.see("a", 110.0, 10.0) == 10
    assert growth.see("a", 110.0, 60.0) == 10
    assert growth.see("a", 110.0, 130.0) == 0
    assert growth.see("a", 5.0, 131.0) == 0  # it was reset
    assert growth.see("a", 7.0, 132.0) == 2


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=300))
def test_a_latch_speaks_once_for_each_time_that_it_held(seen: list[bool]) -> None:
    latch = Latch()
    reported = [second for second, bad in enumerate(seen) if latch.see("x", bad, second, 3.0, 5.0)]
    for second in reported:
        assert all(seen[second - 3 : second + 1])
    for before, after in pairwise(reported):
        away = "".join("x" if bad else "." for bad in seen[before:after])
        assert "....." in away
    longest = max(map(len, "".join("x" if bad else "." for bad in seen).split(".")))
    assert bool(reported) == (longest >= 4)
