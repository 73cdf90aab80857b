"""SXid reports: fatal ones evict the host, once for a burst; all others are evidence and never trigger an action."""

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agent.collectors import kernel_log
from holdfast.agent.logs import rules as log_rules
from holdfast.controller.detectors.base.table import Tuning
from holdfast.controller.detectors.hardware.sxids import SXidDetector
from holdfast.controller.state.events import EventSeen
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Node
from holdfast.facts import sxid
from holdfast.wire import types as t
from tests.controller.support.virtual import Virtual

RULES = log_rules.load()
GPUS = tuple(t.Gpu(i, f"GPU-{i}", "H100", f"00000000:{0x10 + i:02X}:00.0") for i in range(8))


def line(rest: str, switch: int = 0) -> str:
    return f"nvidia-nvswitch{switch}: SXid (PCI:0000:c{switch}:00.0): {rest}"


class Host:
    """A node whose switches report; all findings so far."""

    def __init__(self, detector: SXidDetector | None = None, name: str = "node1") -> None:
        self.node = Node(name, t.Identity(name, name, "i", gpus=GPUS))
        self.detector = detector or SXidDetector(Tuning())
        self.now = 1000.0
        self.found: list[Finding] = []

    def says(self, rest: str, switch: int = 0) -> None:
        report = sxid.parse(line(rest, switch))
        if report is not None:
            self.found += self.detector.observe(report, self.node, Instant(self.now, 1e6 + self.now))


def test_a_fatal_one_names_switch_and_port_and_concerns_all_gpus() -> None:
    host = Host()
    host.says("20034, Fatal, Link 30 LTSSM Fault Up", switch=3)
    (found,) = host.found
    assert (found.kind, found.node, found.subject) == ("gpu-sxid", "node1", "node1/nvswitch3/port30")
    assert found.severity is t.Severity.CRITICAL
    assert found.text == (
        "SXid 20034 (fatal) on node1, nvswitch3 port 30: LTSSM Fault Up; "
        "all 8 GPUs of the host are concerned: reset all GPUs and NVSwitches of the host"
    )
    assert (found.evidence["switch"], found.evidence["port"], found.evidence["gpus"]) == ("nvswitch3", 30, 8)


def test_one_fault_on_many_switches_is_reported_once_and_again_when_it_is_heavier() -> None:
    host = Host()
    for switch in range(4):
        for link in (10, 11, 12):
            host.says(f"20034, Fatal, Link {link} LTSSM Fault Up", switch)
            host.says("20034, Severity 1 Engine instance 60 Sub-engine instance 00", switch)
            host.says("20034, Data {0x10000000, 0x00000000}", switch)
            host.now += 0.1
    assert len(host.found) == 1
    host.says("22003, Fatal, Link 11 Minion Halt")
    host.says("22003, Fatal, Link 12 Minion Halt")
    assert [f.evidence["action"] for f in host.found[1:]] == ["reboot the node"]
    other = Host(host.detector, "node2")
    other.says("20034, Fatal, Link 10 LTSSM Fault Up")
    assert len(other.found) == 1


def test_a_host_that_reports_again_and_again_is_for_support() -> None:
    host = Host()
    for _ in range(5):
        host.says("19054, Fatal, Link 08 HDR RAM ECC DBE Error")
        host.now += 3600
    assert "5 times in a day: contact support" in host.found[-1].text
    assert "contact support" not in host.found[3].text


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(10_000, 29_999), st.sampled_from(["Non-fatal", "Correctable"])), max_size=40))
def test_non_fatal_ones_never_speak(reports: list[tuple[int, str]]) -> None:
    host = Host()
    for code, word in reports:
        host.says(f"{code}, {word}, Link 28 RX Short Error Rate")
    assert not host.found


def report(v: Virtual, node: str, text: str) -> None:
    event = kernel_log.event(kernel_log.KernelLine(1.0, 3, text), RULES, 1)
    if event is not None:
        v.feed(EventSeen(node, event))


def test_a_host_with_a_fatal_one_is_replaced() -> None:
    v = Virtual(nodes=3)
    v.submit(nnodes=2)
    v.run(3.0)
    for text in ("20034, Fatal, Link 48 LTSSM Fault Up", "20034, Severity 1 Engine instance 48 Sub-engine instance 00"):
        report(v, "node1", line(text, 1))
    v.run(5.0)
    (incident,) = v.incidents
    assert (incident.cause.kind, incident.cause.node, incident.action) == ("gpu-sxid", "node1", "evict")
    assert v.job.nodes == ["node0", "node2"]
    assert v.job.state == "running"


def test_a_storm_of_non_fatal_ones_changes_nothing() -> None:
    v = Virtual(nodes=3)
    v.submit(nnodes=2)
    v.run(3.0)
    for _ in range(200):
        report(v, "node1", line("20009, Non-fatal, Link 28 RX Short Error Rate"))
        report(v, "node1", line("12028, Non-fatal, Link 32 egress non-posted PRIV error (First)"))
        report(v, "node1", line("22013, Fatal, Link 09 Minion Link DLREQ interrupt"))
    v.run(60.0)
    assert not v.incidents
    assert (v.job.generation, v.job.nodes, v.job.state) == (1, ["node0", "node1"], "running")
    assert v.brain.c.nodes["node1"].state == "healthy"
