"""The catalogue against what NVIDIA publishes, where others depart from it."""

import pytest

from holdfast.facts import xid
from holdfast.facts.xid import RecoveryAction, Xid
from holdfast.wire.types import Severity


def test_every_code_of_the_catalogue_has_one_row() -> None:
    assert [entry.code for entry in xid.entries()] == list(range(1, 173))
    assert sum(len(list(row[0])) for row in xid._ROWS) == 172
    assert xid.entry(999).action is RecoveryAction.SUPPORT


@pytest.mark.parametrize(
    ("codes", "action"),
    [
        # Called fatal elsewhere, and NVIDIA says to ignore them or to restart the application.
        ((38, 44, 63, 121), RecoveryAction.IGNORE),
        ((32, 60, 68, 69, 94), RecoveryAction.RESTART_APP),
        # Called a warning elsewhere, and NVIDIA says that the GPU must be reset.
        ((109, 136, 155, 156, 158), RecoveryAction.RESET_GPU),
        ((151,), RecoveryAction.RESTART_VM),
        ((13, 31, 8, 11, 25, 39, 80, 126, 135, 139), RecoveryAction.RESTART_APP),
        ((46, 62, 64, 95, 110, 119, 120, 140, 143), RecoveryAction.RESET_GPU),
        ((79,), RecoveryAction.REBOOT),
        ((54,), RecoveryAction.CHECK_POWER),
        ((43, 92, 93, 106, 107, 137, 141, 157, 160), RecoveryAction.IGNORE),
        ((45, 48), RecoveryAction.FOLLOW),
        ((1, 81, 90, 142), RecoveryAction.SUPPORT),
    ],
)
def test_the_immediate_action_is_nvidias(codes: tuple[int, ...], action: RecoveryAction) -> None:
    assert {code: Xid(code, "").action for code in codes} == dict.fromkeys(codes, action)


def test_the_line_decides_where_the_code_does_not() -> None:
    assert (
        Xid(149, "", "NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x00000000)").action
        is RecoveryAction.RESET_GPU
    )
    assert (
        Xid(149, "", "NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x026001c6 0x00000000)").action is RecoveryAction.IGNORE
    )
    assert Xid(149, "GPU-1").action is RecoveryAction.FOLLOW  # NVML gives the number alone
    assert (
        Xid(154, "", "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot)").action is RecoveryAction.REBOOT
    )
    assert Xid(154, "", "GPU recovery action changed from 0x1 to 0x0 (None)").action is RecoveryAction.IGNORE
    assert Xid(154, "").action is RecoveryAction.FOLLOW


@pytest.mark.parametrize(
    ("registers", "action"),
    [
        ("0x1, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", RecoveryAction.IGNORE),
        ("0x40800001, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", RecoveryAction.IGNORE),
        ("0x0, 0x0, 0x0, 0x0, 0x24900000, 0x0, 0x0", RecoveryAction.IGNORE),  # thresholds of corrected errors
        ("0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", RecoveryAction.RESET_GPU),
        (
            "0x10001, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0",
            RecoveryAction.RESET_GPU,
        ),  # one that can be ignored beside one that cannot
        ("0x0, 0x0, 0x2, 0x0, 0x0, 0x0, 0x0", RecoveryAction.RESET_GPU),
        ("0x0, 0x0, 0x0, 0x0, 0x40000, 0x0, 0x0", RecoveryAction.RESET_GPU),
        ("0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0", RecoveryAction.RESET_GPU),  # says nothing
        ("", RecoveryAction.RESET_GPU),
    ],
)
def test_an_nvlink_error_of_older_gpus_is_read_by_its_registers(registers: str, action: RecoveryAction) -> None:
    line = f"NVRM: Xid (PCI:0000:84:00): 74, pid=1, NVLink: fatal error detected on link 6({registers})"
    found = xid.parse(line)
    assert found is not None
    assert (found.code, found.action) == (74, action)


def test_only_what_takes_the_gpu_away_is_critical() -> None:
    for entry in xid.entries():
        critical = Xid(entry.code, "").severity is Severity.CRITICAL
        assert critical == entry.action.takes_gpu_away, entry


@pytest.mark.parametrize("code", [13, 79, 149])
def test_a_line_of_ours_reads_as_the_drivers_do(code: int) -> None:
    found = xid.parse(xid.kernel_line(code, "0000:3b:00"))
    assert found is not None
    assert (found.code, found.device) == (code, "0000:3b:00")


@pytest.mark.parametrize(
    ("reported", "same"),
    [
        ("0000:3b:00", True),
        ("00000000:3B:00.0", True),
        ("GPU-1", True),
        ("0000:3c:00", False),
        ("GPU-2", False),
        ("", False),
        ("junk", False),
    ],
)
def test_a_device_is_known_by_address_or_uuid(reported: str, same: bool) -> None:
    assert xid.same_device(reported, "GPU-1", "00000000:3B:00.0") == same
