"""SXids in the form in which the NVSwitch driver prints them, and lines that only look like them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.facts import sxid, xid
from holdfast.facts.sxid import Weight
from holdfast.facts.xid import RecoveryAction
from holdfast.wire.types import Severity


def line(rest: str, switch: int = 0) -> str:
    return f"nvidia-nvswitch{switch}: SXid (PCI:0000:c{switch}:00.0): {rest}"


@pytest.mark.parametrize(
    ("rest", "weight", "link", "action", "severity"),
    [
        ("20034, Fatal, Link 30 LTSSM Fault Up", Weight.FATAL, 30, RecoveryAction.RESET_FABRIC, "critical"),
        ("24007, Fatal, Link 30 sourcetrack timeout error", Weight.FATAL, 30, RecoveryAction.RESET_FABRIC, "critical"),
        ("19054, Fatal, Link 00 HDR RAM ECC DBE Error", Weight.FATAL, 0, RecoveryAction.RESET_FABRIC, "critical"),
        ("12020, Fatal, Link 05 egress sequence ID error", Weight.ALWAYS_FATAL, 5, RecoveryAction.REBOOT, "critical"),
        (
            "23017, Fatal, Link 63 ingress credit parity error",
            Weight.ALWAYS_FATAL,
            63,
            RecoveryAction.REBOOT,
            "critical",
        ),
        ("10003, Fatal, unhandled interrupt in f(312)", Weight.ALWAYS_FATAL, -1, RecoveryAction.REBOOT, "critical"),
        ("20009, Non-fatal, Link 28 RX Short Error Rate", Weight.NONFATAL, 28, RecoveryAction.IGNORE, "info"),
        ("20034, Non-fatal, Link 28 LTSSM Fault Up", Weight.NONFATAL, 28, RecoveryAction.IGNORE, "info"),
        (
            "12028, Non-fatal, Link 32 egress non-posted PRIV error",
            Weight.NONFATAL,
            32,
            RecoveryAction.IGNORE,
            "warning",
        ),
        ("19084, Non-fatal, Link 01 AN1 Heartbeat Timeout Error", Weight.NONFATAL, 1, RecoveryAction.IGNORE, "warning"),
        ("22013, Fatal, Link 09 Minion Link DLREQ interrupt", Weight.NONFATAL, 9, RecoveryAction.IGNORE, "info"),
        ("15008, Correctable, Link 02 Route ECC limit", Weight.CORRECTED, 2, RecoveryAction.IGNORE, "info"),
        ("10005, IO failure", Weight.UNKNOWN, -1, RecoveryAction.SUPPORT, "warning"),
    ],
)
def test_reports_by_the_guide(rest: str, weight: Weight, link: int, action: RecoveryAction, severity: str) -> None:
    found = sxid.parse(line(rest, 3))
    assert found is not None
    assert (found.switch, found.pci, found.code) == ("nvswitch3", "0000:c3:00.0", int(rest[:5]))
    assert (found.weight, found.link, found.action, found.severity) == (weight, link, action, severity)
    assert found.port == (f"nvswitch3 port {link}" if link >= 0 else "nvswitch3")


HONEST = [
    # The lines of registers that follow a report, the switch's start and stop, and what others say of SXids.
    line("20034, Severity 1 Engine instance 60 Sub-engine instance 00"),
    line("20034, Data {0x10000000, 0x10000000, 0x00000000, 0x10000000, 0x00000000, 0x00000000, 0x00000000}"),
    "nvidia-nvswitch: Probing device 0000:c1:00.0, Vendor Id = 0x10de, Device Id = 0x22a3, Class = 0x68000",
    "nvidia-nvswitch0: using MSI",
    "nvidia-nvswitch0: Fatal errors are cleared: 0",
    "nvidia-nvswitch2: open (major=235)",
    "systemd[1]: Started nvsx: alert on 'nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30'.",
    "audit: type=1400 msg=\"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up\"",
    "NVRM: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
    "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 2003, Fatal, Link 30 cut off",
    "nvidia-nvswitch0: SXid error handling: 20034 Fatal errors since boot: 0",
    "pci 0000:c1:00.0: card has fallen off the bus",
    "nvme nvme0: controller has fallen off the bus; NVRM is not concerned",
    "audit: NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.",
    "docker0: said NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.",
]  # fmt: skip


@pytest.mark.parametrize("text", HONEST)
def test_an_honest_line_that_looks_like_one_says_nothing(text: str) -> None:
    assert sxid.parse(text) is None
    assert xid.parse(text) is None


def test_an_xid_is_no_sxid_and_the_reverse() -> None:
    assert sxid.parse(xid.kernel_line(79, "0000:9b:00")) is None
    assert xid.parse(line("20034, Fatal, Link 30 LTSSM Fault Up")) is None


@pytest.mark.parametrize("stamp", ["", "[6781753.400584] ", "Nov 22 18:29:55 host1 kernel: ", "[...] "])
def test_the_stamp_of_a_log_is_passed_over(stamp: str) -> None:
    assert sxid.parse(stamp + line("20034, Fatal, Link 30 LTSSM Fault Up")) is not None
    assert xid.parse(stamp + xid.kernel_line(79, "0000:9b:00")) is not None


@given(st.integers(10_000, 99_999), st.sampled_from(["Non-fatal", "Correctable"]), st.integers(0, 99))
def test_a_non_fatal_one_never_acts(code: int, word: str, link: int) -> None:
    found = sxid.parse(line(f"{code}, {word}, Link {link:02d} anything at all, Fatal, Link 30"))
    assert found is not None
    assert not found.action.takes_gpu_away
    assert found.severity is not Severity.CRITICAL
    assert found.link == link


@given(st.text(max_size=120))
def test_any_line_is_read(text: str) -> None:
    sxid.parse(text)
    sxid.parse(line(text))
