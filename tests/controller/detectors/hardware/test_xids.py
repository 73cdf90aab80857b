"""Xid reports: what each leads to, alone and together with others."""

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agent.collectors import kernel_log
from holdfast.controller.detectors.base.table import Tuning
from holdfast.controller.detectors.hardware.xids import XidDetector
from holdfast.controller.state.events import EventSeen
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Node
from holdfast.facts import xid
from holdfast.facts.xid import Xid
from holdfast.wire import types as t
from tests.controller.support.virtual import Virtual

GPUS = tuple(t.Gpu(i, f"GPU-{i}", "H200", f"00000000:{0x10 + i:02X}:00.0") for i in range(8))


def at(mono: float) -> Instant:
    return Instant(mono, 1e6 + mono)


class Host:
    """A node whose driver reports; all findings so far."""

    def __init__(self, *settings: str, detector: XidDetector | None = None, name: str = "node1") -> None:
        self.node = Node(name, t.Identity(name, name, "i", gpus=GPUS))
        self.detector = detector or XidDetector(Tuning(settings))
        self.now = 1000.0
        self.found: list[Finding] = []

    def says(self, code: int, gpu: int = 3, text: str = "") -> None:
        device = f"0000:{0x10 + gpu:02x}:00"
        self.found += self.detector.observe(Xid(code, device, text), self.node, at(self.now))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.found += self.detector.due(at(self.now))

    def reported(self) -> list[tuple[str, str]]:
        return [(finding.kind.value, finding.subject) for finding in self.found]


def test_a_gpu_off_the_bus_is_named_with_the_action() -> None:
    host = Host()
    host.says(79)
    (finding,) = host.found
    assert (finding.kind, finding.subject, finding.node) == ("gpu-xid", "node1/gpu3", "node1")
    assert finding.severity is t.Severity.CRITICAL
    assert "Xid 79" in finding.text
    assert "reboot the node" in finding.text
    assert finding.evidence["fault"] == "hardware"


def test_the_cleanup_after_another_fault_says_nothing_of_its_own() -> None:
    host = Host()
    host.says(62)
    host.says(45)
    host.wait(60)
    assert host.reported() == [("gpu-xid", "node1/gpu3")]
    before = Host()
    before.says(45)  # the order within a burst is not certain
    before.says(13)
    before.wait(60)
    assert before.reported() == [("gpu-xid-app", "node1/gpu3")]


def test_the_cleanup_alone_is_the_fabric_managers() -> None:
    host = Host()
    host.says(45)
    host.wait(4)
    assert not host.found
    host.wait(2)
    assert host.reported() == [("gpu-xid-app", "node1/gpu3")]
    assert "restart the fabric manager" in host.found[0].text


def test_a_double_bit_error_waits_for_related_xids() -> None:
    contained = Host()
    for code in (48, 171, 63, 94, 45):
        contained.says(code)
    contained.wait(60)
    assert contained.reported() == [("gpu-xid-app", "node1/gpu3")]
    assert contained.found[0].evidence["code"] == 94
    alone = Host()
    alone.says(48)
    alone.says(172)
    alone.wait(6)
    assert alone.reported() == [("gpu-xid", "node1/gpu3")]
    assert "reset the GPU" in alone.found[0].text
    uncontained = Host()
    uncontained.says(48)
    uncontained.says(95)
    uncontained.wait(6)
    assert [finding.evidence["code"] for finding in uncontained.found] == [95]


DOWN = "NETIR_LINK_DOWN Fatal   XC0 i0 Link 08 (0x{:08x} 0x00000000 0x00000000 0x00000000)"
REMAP = "RLW_REMAP       Nonfatal XC0 i0 Link 03 (0x00000004 0x00000001 0x00000000 0x00000000)"


def test_an_nvlink_error_is_judged_by_its_registers_and_names_the_link() -> None:
    host = Host()
    host.says(149, text=DOWN.format(0x26 << 20 | 0x11))  # software took the link down: fatal, and to be ignored
    assert not host.found
    host.says(149, text=DOWN.format(0x0A << 20 | 0x11))  # in the same burst
    host.says(149, text=DOWN.format(0x0A << 20 | 0x11))
    host.wait(60)
    assert host.reported() == [("gpu-xid", "node1/gpu3")]
    assert "NVLink error in NETIR_LINK_DOWN, link 8; reset the GPU" in host.found[0].text


def test_an_nvlink_error_that_asks_for_154_follows_it_and_restarts_the_application_without_one() -> None:
    alone = Host()
    alone.says(145, text=REMAP)
    assert not alone.found
    alone.wait(6)
    assert [(f.kind, f.evidence["action"]) for f in alone.found] == [("gpu-xid-app", "restart the application")]
    followed = Host()
    followed.says(145, text=REMAP)
    followed.says(154, text="GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    followed.wait(60)
    assert [(f.kind, f.evidence["code"]) for f in followed.found] == [("gpu-xid", 154)]
    reported_by_nvml = Host()
    reported_by_nvml.node.gpus = {3: {"recovery_action": 2.0}}
    reported_by_nvml.says(149)  # a number alone
    reported_by_nvml.wait(6)
    assert [(f.kind, f.evidence["action"]) for f in reported_by_nvml.found] == [("gpu-xid", "reboot the node")]


def test_remote_errors_again_and_again_on_one_gpu_do_not_put_it_under_suspicion() -> None:
    host = Host()
    for _ in range(4):
        host.says(145, text=REMAP)
        host.wait(3600)
    assert {kind for kind, _ in host.reported()} == {"gpu-xid-app"}


def test_none_and_then_a_reset_in_one_burst_is_a_reset() -> None:
    host = Host()
    host.says(154, text="GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
    host.says(154, text="GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    assert host.reported() == [("gpu-xid", "node1/gpu3")]


def test_a_gpu_to_be_drained_goes_on_with_what_it_runs() -> None:
    v = Virtual(nodes=3)
    v.submit(nnodes=2)
    v.run(3.0)
    text = "154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)"
    found = xid.parse(f"NVRM: Xid (PCI:0000:13:00): {text}")
    assert found is not None
    v.feed(EventSeen("node1", kernel_log.xid_event(found, 1, f"NVRM: Xid (PCI:0000:13:00): {text}")))
    v.run(30.0)
    assert (v.job.generation, v.job.state, v.job.nodes) == (1, "running", ["node0", "node1"])
    assert [(i.cause.kind, i.action) for i in v.incidents] == [("gpu-xid-app", "alert")]
    assert "drain the GPU, then reset it" in v.incidents[0].cause.text


def test_a_changed_recovery_action_is_read_from_the_driver() -> None:
    host = Host()
    host.node.gpus = {3: {"recovery_action": 2.0}}
    host.says(154)
    host.wait(6)
    assert host.reported() == [("gpu-xid", "node1/gpu3")]
    assert "reboot the node" in host.found[0].text
    calm = Host()
    calm.says(154)
    calm.wait(6)
    assert not calm.found


def test_an_applications_code_takes_nothing_away_unless_it_comes_again_on_one_gpu_alone() -> None:
    host = Host()
    host.says(31)
    host.says(31)  # the same burst
    assert host.reported() == [("gpu-xid-app", "node1/gpu3")]
    host.wait(3600)
    host.says(31)
    assert host.reported()[1:] == [("gpu-xid-repeated", "node1/gpu3")]
    software = Host()
    software.says(31)
    software.wait(600)
    software.says(31, gpu=5)
    software.wait(600)
    software.says(31)
    assert {kind for kind, _ in software.reported()} == {"gpu-xid-app"}
    forgotten = Host()
    forgotten.says(13)
    forgotten.wait(2 * 86400)
    forgotten.says(13)
    assert {kind for kind, _ in forgotten.reported()} == {"gpu-xid-app"}


def test_resets_that_do_not_help_go_to_support() -> None:
    host = Host()
    for _ in range(5):
        host.says(119)
        host.wait(3600)
    assert len(host.found) == 5
    assert "contact support" in host.found[-1].text
    assert "contact support" not in host.found[3].text


def test_a_report_of_an_unknown_gpu_still_names_its_node() -> None:
    host = Host()
    host.found += host.detector.observe(Xid(79, "0000:ff:00"), host.node, at(1.0))
    host.found += host.detector.observe(Xid(79, ""), host.node, at(1.0))
    assert host.reported() == [("gpu-xid", "node1/0000:ff:00"), ("gpu-xid", "node1/gpu")]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(xid.CATALOGUE)), st.integers(0, 7)), max_size=60))
def test_every_gpu_that_must_go_is_named_and_no_other(reports: list[tuple[int, int]]) -> None:
    host = Host()
    for code, gpu in reports:
        host.says(code, gpu)
        host.now += 0.01
    host.wait(60)
    gone = {f"node1/gpu{gpu}" for code, gpu in reports if Xid(code, "").action.takes_gpu_away}
    burst: dict[int, set[int]] = {}
    for code, gpu in reports:
        burst.setdefault(gpu, set()).add(code)
    gone |= {
        f"node1/gpu{gpu}" for gpu, codes in burst.items() if codes & {48, 171, 172} and (94 not in codes or 95 in codes)
    }
    assert {finding.subject for finding in host.found if finding.kind == "gpu-xid"} == gone


def report(v: Virtual, node: str, code: int) -> None:
    found = Xid(code, "0000:13:00")
    line = xid.kernel_line(code, found.device)
    v.feed(EventSeen(node, t.LogMatched("", 0, -1, 1, f"xid-{code}", "gpu", found.severity, line, found.device)))


def test_a_node_whose_gpu_must_be_reset_is_replaced() -> None:
    v = Virtual(nodes=3)
    v.submit(nnodes=2)
    v.run(3.0)
    report(v, "node1", 79)
    v.run(5.0)
    (incident,) = v.incidents
    assert (incident.cause.kind, incident.cause.node, incident.action) == ("gpu-xid", "node1", "evict")
    assert v.job.nodes == ["node0", "node2"]
    assert v.job.state == "running"


def test_a_spare_whose_gpu_must_be_reset_is_no_trouble_of_the_jobs() -> None:
    v = Virtual(nodes=3)
    v.submit(nnodes=2)
    v.run(3.0)
    report(v, "node2", 62)
    v.run(3.0)
    assert v.job.generation == 1
    assert v.brain.c.nodes["node2"].state == "faulty"
    assert [incident.action for incident in v.incidents] == ["alert"]


def test_a_bug_of_the_script_takes_no_node_away() -> None:
    v = Virtual(nodes=3)
    v.submit(nnodes=2)
    v.run(3.0)
    for _ in range(3):
        report(v, "node1", 31)
        v.exit(5, code=1, error="RuntimeError: CUDA error: an illegal memory access was encountered")
        v.run(60.0)
    assert v.job.nodes == ["node0", "node1"]
    assert v.brain.c.nodes["node1"].state != "faulty"
