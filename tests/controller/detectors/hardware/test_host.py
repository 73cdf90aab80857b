"""Problems of the host itself, each reported once and with the right subject."""

import pytest

from holdfast.controller.detectors.base.table import Tuning
from holdfast.controller.detectors.hardware.host import HostDetector
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Node
from holdfast.wire import types as t

GIB = float(1 << 30)
WELL = {
    "disk_free_bytes//var": 500 * GIB, "disk_total_bytes//var": 1000 * GIB, "disk_free_inodes//var": 1e6,
    "memory_used_bytes": 900 * GIB, "memory_total_bytes": 1000 * GIB, "memory_pressure_ratio": 0.01,
    "clock_offset_seconds": 0.02, "clock_offset_error_seconds": 0.001, "worker_blocked/5": 0.0, "worker_zombie/5": 0.0,
}  # fmt: skip


class Host:
    def __init__(self) -> None:
        self.node = Node("node1", t.Identity("node1", "node1", "i"), host=dict(WELL))
        self.detector = HostDetector(Tuning())
        self.now = 1000.0

    def run(self, seconds: float, **values: float) -> list[Finding]:
        self.node.host.update({name.replace("__", "/"): value for name, value in values.items()})
        found: list[Finding] = []
        end = self.now + seconds
        while self.now < end:
            found += self.detector.observe(self.node, Instant(self.now, self.now))
            self.now += 5.0
        return found


@pytest.mark.parametrize(
    ("values", "kind", "subject", "severity"),
    [
        ({"disk_free_bytes__/var": 40 * GIB}, "disk-full", "node1", "warning"),
        ({"disk_free_bytes__/var": 5 * GIB}, "disk-full", "node1", "critical"),
        ({"disk_free_inodes__/var": 0.0}, "disk-full", "node1", "critical"),
        ({"memory_used_bytes": 980 * GIB}, "memory-pressure", "node1", "warning"),
        ({"memory_pressure_ratio": 0.5}, "memory-pressure", "node1", "warning"),
        ({"clock_offset_seconds": -2.0}, "clock-offset", "node1", "warning"),
        ({"worker_blocked__5": 1.0}, "worker-blocked", "rank5", "warning"),
        ({"worker_zombie__5": 1.0}, "worker-zombie", "rank5", "warning"),
    ],
)
def test_each_trouble_is_reported_once(values: dict[str, float], kind: str, subject: str, severity: str) -> None:
    host = Host()
    assert not host.run(3600)
    (finding,) = host.run(3600, **values)
    assert (finding.kind, finding.subject, finding.severity, finding.node) == (kind, subject, severity, "node1")


def test_a_hundredth_of_a_large_disk_is_no_alarm() -> None:
    host = Host()
    large = {"disk_total_bytes__/var": 30_000 * GIB, "disk_free_bytes__/var": 200 * GIB}
    assert [finding.severity for finding in host.run(60, **large)] == ["warning"]
    assert not host.run(60, **large | {"disk_free_bytes__/var": 25 * GIB})
    assert [finding.severity for finding in host.run(60, **large | {"disk_free_bytes__/var": 15 * GIB})] == ["critical"]


def test_a_disk_that_fills_further_is_reported_again() -> None:
    host = Host()
    found = [
        f for free in (100, 60, 45, 30, 20, 8, 2, 1) for f in host.run(60, **{"disk_free_bytes__/var": free * GIB})
    ]
    assert [finding.severity for finding in found] == ["warning", "critical"]


def test_moments_are_no_trouble() -> None:
    host = Host()
    for _ in range(20):
        assert not host.run(10, worker_blocked__5=1.0, memory_pressure_ratio=0.9, clock_offset_seconds=3.0)
        assert not host.run(10, worker_blocked__5=0.0, memory_pressure_ratio=0.0, clock_offset_seconds=0.0)


def test_an_offset_within_what_is_uncertain_says_nothing() -> None:
    assert not Host().run(600, clock_offset_seconds=2.0, clock_offset_error_seconds=1.8)


def test_a_host_that_reports_little_is_no_trouble() -> None:
    host = Host()
    host.node.host.clear()
    assert not host.run(600)
