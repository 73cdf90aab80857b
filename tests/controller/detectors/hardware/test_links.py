"""Ports by their counters: each problem is reported once, with the right port, and healthy ports report nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.controller.detectors.base.table import Tuning
from holdfast.controller.detectors.base.windows import RateWindow
from holdfast.controller.detectors.hardware.links import LinkDetector
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Node
from holdfast.wire import types as t

EVERY = 5.0


class Host:
    """Two RDMA ports and a sampled Ethernet interface beside one that carries no training traffic."""

    def __init__(self, *changes: str) -> None:
        self.node = Node("node1", t.Identity("node1", "node1", "i"))
        self.values = self.node.host
        for device in ("mlx5_0", "mlx5_1"):
            base = f"rdma/{device}/1"
            for counter in ("link_downed", "symbol_error", "out_of_sequence", "local_link_integrity_errors"):
                self.values[f"{base}/{counter}"] = 50.0
            self.values |= {f"{base}/state": 4.0, f"{base}/np_cnp_sent": 1e6, f"{base}/port_xmit_wait": 1e9}
        for name in ("eth0", "docker0"):
            self.values |= {f"net/{name}/up": 1.0, f"net/{name}/carrier_changes": 2.0, f"net/{name}/rx_crc_errors": 9.0}
        nics = tuple(t.NicSamples(name, 0, 0) for name in ("mlx5_0", "mlx5_1", "eth0"))
        self.frame = t.Frame(1, 1, 1, nics=nics, host=self.values)
        self.detector = LinkDetector(Tuning(changes))
        self.now = 1000.0

    def run(self, seconds: float, training: bool = True, **per_second: float) -> list[Finding]:
        """`per_second`: growth of gauges, "__" for "/"."""
        found: list[Finding] = []
        end = self.now + seconds
        while self.now < end:
            for name, rate in per_second.items():
                self.values[name.replace("__", "/")] += rate * EVERY
            found += self.detector.observe(self.node, self.frame, training, Instant(self.now, self.now))
            self.now += EVERY
        return found


def test_a_quiet_day_says_nothing() -> None:
    host = Host()
    assert not host.run(86400, rdma__mlx5_0__1__np_cnp_sent=500.0, rdma__mlx5_0__1__out_of_sequence=1.0,
                        rdma__mlx5_1__1__symbol_error=0.01)  # fmt: skip


@pytest.mark.parametrize(
    ("gauge", "growth", "kind", "subject"),
    [
        ("rdma/mlx5_1/1/link_downed", 3.0, "link-flap", "node1/mlx5_1"),
        ("net/eth0/carrier_changes", 6.0, "link-flap", "node1/eth0"),
        ("rdma/mlx5_1/1/local_link_integrity_errors", 1.0, "network-errors", "node1/mlx5_1"),
        ("rdma/mlx5_1/1/symbol_error", 120.0, "network-errors", "node1/mlx5_1"),
        ("net/eth0/rx_crc_errors", 120.0, "network-errors", "node1/eth0"),
        ("rdma/mlx5_1/1/out_of_sequence", 36_000.0, "network-errors", "node1/mlx5_1"),
    ],
)
def test_counters_that_grow_too_much(gauge: str, growth: float, kind: str, subject: str) -> None:
    host = Host()
    assert not host.run(60)
    host.values[gauge] += growth - 1
    assert growth == 1 or not host.run(60)
    host.values[gauge] += 1
    (finding,) = host.run(60)
    assert (finding.kind, finding.subject, finding.node) == (kind, subject, "node1")
    assert not host.run(1800)


def test_a_port_that_was_up_and_stays_down_is_reported() -> None:
    host = Host()
    host.run(30)
    host.values["rdma/mlx5_0/1/state"] = 1.0
    assert not host.run(10)
    (finding,) = host.run(60)
    assert (finding.kind, finding.subject) == ("link-down", "node1/mlx5_0")
    host.values["rdma/mlx5_0/1/state"] = 4.0
    assert not host.run(30)
    host.values["rdma/mlx5_0/1/state"] = 1.0
    assert len(host.run(60)) == 1


def test_a_port_that_was_never_up_and_one_of_no_matter_are_no_news() -> None:
    host = Host()
    host.values["rdma/mlx5_0/1/state"] = 1.0
    host.values["net/docker0/up"] = 0.0
    assert not host.run(600, net__docker0__carrier_changes=1.0, net__docker0__rx_crc_errors=10.0)


def test_congestion_is_measured_against_the_ports_own_usual_while_training() -> None:
    host = Host()
    host.run(600, training=False)
    busy = {"rdma__mlx5_0__1__np_cnp_sent": 5000.0, "rdma__mlx5_1__1__np_cnp_sent": 5000.0}
    assert not host.run(1200, **busy)
    (finding,) = host.run(600, **(busy | {"rdma__mlx5_1__1__np_cnp_sent": 200_000.0}))
    assert (finding.kind, finding.subject) == ("network-congestion", "node1/mlx5_1")


@given(st.lists(st.floats(0, 1e4), min_size=5, max_size=50))
@settings(max_examples=50, deadline=None)
def test_a_rate_is_between_the_least_and_the_most_that_it_saw(rates: list[float]) -> None:
    rate = RateWindow(30.0)
    value = 0.0
    rate.see("x", value, 0.0)
    for n, fresh in enumerate(rates, 1):
        value += fresh * 5.0
        now, usual = rate.see("x", value, 5.0 * n)
        assert min(rates) * 0.99 - 1e-6 <= now <= max(rates) * 1.01 + 1e-6
        assert min(rates) * 0.99 - 1e-6 <= usual <= max(rates) * 1.01 + 1e-6


def test_congestion_that_comes_with_a_restart_is_not_taken_for_usual() -> None:
    host = Host()
    assert not host.run(1200, rdma__mlx5_0__1__np_cnp_sent=100.0)
    congested = {"rdma__mlx5_0__1__np_cnp_sent": 200_000.0}
    assert not host.run(20, training=False, **congested)
    (finding,) = host.run(600, **congested)
    assert finding.kind == "network-congestion"
