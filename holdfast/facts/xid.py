"""NVIDIA's Xid codes: what each means, whose fault it is, and the immediate action of NVIDIA's public catalogue.

Source: docs.nvidia.com/deploy/xid-errors (Ampere and newer), 172 codes. Where other monitors call a number fatal and
NVIDIA says restart the application (63, 94, 31 ...), NVIDIA is followed: evicting a good node costs as much as
keeping a bad one. A few codes say something only together with related reports: see `FOLLOW`. 144 to 150 are decoded
by `nvlink5`; the SXids of NVSwitches are another catalogue (`sxid`).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from holdfast.facts import nvlink4, nvlink5
from holdfast.facts.nvlink5 import Advice
from holdfast.wire.types import Severity


class RecoveryAction(StrEnum):
    """What NVIDIA asks for at once."""

    IGNORE = "ignore"
    """Count it."""
    RESTART_APP = "restart the application"
    RESET_GPU = "reset the GPU"
    DRAIN = "drain the GPU, then reset it"
    """It works on, at less than its capacity: what runs may go on, and nothing new should start on it."""
    RESET_FABRIC = "reset all GPUs and NVSwitches of the host"
    RESTART_VM = "restart the virtual machine"
    REBOOT = "reboot the node"
    CHECK_POWER = "check the power cable"
    UPDATE = "update driver and firmware"
    SUPPORT = "contact support"
    FOLLOW = "read it with related reports"
    """It says only that something else happened, or its meaning depends on what else was said."""

    @property
    def takes_gpu_away(self) -> bool:
        """Whether the job must leave this GPU."""
        return self in (
            RecoveryAction.RESET_GPU, RecoveryAction.RESET_FABRIC, RecoveryAction.RESTART_VM,
            RecoveryAction.REBOOT, RecoveryAction.CHECK_POWER,
        )  # fmt: skip


class XidFault(StrEnum):
    """Who caused it, as far as the code alone can say."""

    APPLICATION = "application"
    HARDWARE = "hardware"
    DRIVER = "driver"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class XidEntry:
    """One row of the catalogue."""

    code: int
    action: RecoveryAction
    fault: XidFault
    meaning: str


OFF_THE_BUS = 79
DOUBLE_BIT = 48
CLEANUP = 45
NVLINK = 74
RECOVERY_CHANGED = 154
CONTAINED = 94
UNCONTAINED = 95
_I, _A, _G, _S, _F = (
    RecoveryAction.IGNORE,
    RecoveryAction.RESTART_APP,
    RecoveryAction.RESET_GPU,
    RecoveryAction.SUPPORT,
    RecoveryAction.FOLLOW,
)
_APP, _HW, _DRV, _ANY = XidFault.APPLICATION, XidFault.HARDWARE, XidFault.DRIVER, XidFault.UNKNOWN
_UNUSED = "not in use on Ampere and newer"

_ROWS: tuple[tuple[Iterable[int], RecoveryAction, XidFault, str], ...] = (
    ((1, 2, 3, 4, 5, 6, 7, 9, 10, 12, *range(15, 25), 26, 27, 28, 29, 30, *range(33, 37), 42, 47), _S, _ANY, _UNUSED),
    ((49, 50, 51, 52, 53, 55, 56, 57, 58, 59, 61, 65, 73, 81, 87, 90, 91, *range(111, 119)), _S, _ANY, _UNUSED),
    ((122, 123, 124, 125, 138), _S, _ANY, _UNUSED),
    ((14,), _I, _ANY, _UNUSED),
    ((108,), _I, _HW, "NVLink remote translation error"),
    ((8,), _A, _ANY, "the GPU stopped processing: a channel was idle for too long"),
    ((11, 32), _A, _APP, "invalid or corrupted push buffer stream"),
    ((25,), _A, _APP, "invalid or illegal push buffer stream"),
    ((13,), _A, _APP, "exception of the compute engine, such as an access out of bounds"),
    ((31,), _A, _APP, "GPU memory page fault: an address that is not mapped"),
    ((37, 38), _I, _DRV, "error of the driver's firmware"),
    ((39, 40, 41), _A, _ANY, "copy engine exception"),
    ((70, 71, 72, 75, 76, 77, 85, *range(126, 136)), _A, _ANY, "copy engine: unknown error"),
    ((43,), _I, _APP, "the GPU stopped processing after a software-caused fault; the GPU itself is well"),
    ((44,), _I, _ANY, "engine fault during a context switch"),
    ((45,), _F, _ANY, "channels were removed because of an error before"),
    ((46,), _G, _HW, "the GPU stopped processing: time-out"),
    ((48,), _F, _HW, "double bit ECC error"),
    ((54,), RecoveryAction.CHECK_POWER, _HW, "auxiliary power is not connected to the board"),
    ((60,), _A, _ANY, "video processor exception"),
    ((62,), _G, _HW, "internal micro-controller halt"),
    ((63,), _I, _HW, "a memory row was remapped or recorded for it"),
    ((64,), _G, _HW, "remapping a memory row failed"),
    ((66, 67), _I, _DRV, "illegal access by the driver"),
    ((68, 83, 84, 88, 89, 96, 97, 98), _A, _ANY, "video decoder exception"),
    ((69,), _A, _APP, "compute engine class error"),
    ((74,), _G, _HW, "NVLink error"),
    ((78,), RecoveryAction.UPDATE, _DRV, "vGPU start error"),
    ((79,), RecoveryAction.REBOOT, _HW, "the GPU has fallen off the bus"),
    ((80,), _A, _ANY, "corrupted data were sent to the GPU"),
    ((82, *range(99, 106)), _A, _ANY, "JPEG engine error"),
    ((86, 139), _A, _ANY, "optical flow engine exception"),
    ((92,), _I, _HW, "high rate of single bit ECC errors"),
    ((93,), _I, _HW, "InfoROM wear limit exceeded"),
    ((94,), _A, _HW, "contained memory error: only the application that used it is hit"),
    ((95,), _G, _HW, "uncontained memory error"),
    ((106, 107), _I, _ANY, "test message"),
    ((109,), _G, _HW, "context switch time-out"),
    ((110,), _G, _HW, "security fault"),
    ((119,), _G, _DRV, "the GPU system processor does not answer"),
    ((120,), _G, _DRV, "error of the GPU system processor"),
    ((121,), _I, _HW, "chip-to-chip link error, corrected"),
    ((136,), _G, _HW, "NVLink training failed"),
    ((137,), _I, _ANY, "NVLink privilege error: the cause is a fault of the peer or its application"),
    ((140,), _G, _HW, "unrecoverable ECC error"),
    ((141,), _I, _ANY, "CUDA fast path error"),
    ((142,), _S, _ANY, "video encoder error"),
    ((143,), _G, _HW, "GPU initialization error"),
    (nvlink5.CODES, _F, _HW, "NVLink 5 error; the registers in its line say what to do"),
    ((151,), RecoveryAction.RESTART_VM, _DRV, "key rotation error"),
    ((152, 153), _I, _ANY, "deep learning accelerator error"),
    ((154,), _F, _ANY, "the GPU's recovery action changed"),
    ((155,), _G, _HW, "NVLink: error defined by software"),
    ((156,), _G, _HW, "a resource was retired"),
    ((157,), _I, _HW, "retiring a resource failed"),
    ((158,), _G, _HW, "fatal GPU time-out"),
    ((159,), _I, _ANY, "coherent interface error; the unified memory driver says more"),
    ((160, 161), _I, _HW, "channel retirement"),
    # From here on the catalogue names no action. 167 and 169 stop the GPU as 158 and 62 do; the rest informs.
    ((162, 163, 164, 165), _I, _HW, "power smoothing circuitry"),
    ((166, 170), _I, _ANY, "NVLink encryption"),
    ((167,), _G, _HW, "fatal PCIe time-out"),
    ((168,), _I, _HW, "reduced memory capacity"),
    ((169,), _G, _HW, "internal micro-controller halt"),
    ((171, 172), _F, _HW, "detail of Xid 48: an uncorrectable error in DRAM (171) or SRAM (172)"),
)

CATALOGUE: Mapping[int, XidEntry] = {
    code: XidEntry(code, action, fault, meaning) for codes, action, fault, meaning in _ROWS for code in codes
}

PREFIX = r"^(?:.*\bkernel: )?\W*(?:\d+\.\d+\]\s*)?"
"""What may stand before the driver's own words in a kernel line: nothing, a log's own stamp, or dmesg's."""
# NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.
# NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x00000000 ...)
_XID = re.compile(PREFIX + r"NVRM: Xid \(((?:PCI:)?[0-9a-fA-F:.]+)[^)]*\).*?: (\d+)\b,?\s*(.*)")
# NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.
_FELL = re.compile(PREFIX + r"NVRM: .*\bGPU has fallen off the bus")
_ADDRESS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?")
# NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)
_RECOVERY = re.compile(r"to 0x([0-9a-fA-F]+)")

RECOVERY_ACTIONS: tuple[tuple[RecoveryAction, str], ...] = (
    (RecoveryAction.IGNORE, "none"),
    (RecoveryAction.RESET_GPU, "reset the GPU"),
    (RecoveryAction.REBOOT, "reboot the node"),
    (RecoveryAction.IGNORE, "drain peer-to-peer traffic"),
    (RecoveryAction.DRAIN, "drain, then reset the GPU"),
    (RecoveryAction.RESTART_APP, "recover the IMEX domain"),
    (RecoveryAction.RESET_GPU, "reset the bus"),
    (RecoveryAction.REBOOT, "reboot the system"),
)
"""By NVML's number of the recovery action (field 230), which Xid 154 also reports. What each asks for: NVIDIA GPU
memory error management, "Error Recovery and Response Flags" (docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt)."""


@dataclass(frozen=True, slots=True)
class Xid:
    """One Xid report. `device` is the PCI address (kernel log) or the GPU's UUID (NVML), as reported."""

    code: int
    device: str
    text: str = ""

    @property
    def entry(self) -> XidEntry:
        return entry(self.code)

    @property
    def nvlink(self) -> nvlink5.NvlinkReport | None:
        """What a line of Xids 144 to 150 says; NVML gives no line."""
        return nvlink5.parse(self.text) if self.code in nvlink5.CODES else None

    @property
    def advice(self) -> Advice:
        """NVIDIA's decoding of Xids 144 to 150. What is not in its table, and not called fatal, is for the records."""
        report = self.nvlink
        if report is None:
            return Advice.UNKNOWN
        found = nvlink5.advice(self.code, report)
        return Advice.IGNORE if found is Advice.UNKNOWN and not report.fatal else found

    @property
    def action(self) -> RecoveryAction:
        """The action of this report alone. `FOLLOW`: only related reports can say."""
        if self.code in nvlink5.CODES:
            return _NVLINK5[self.advice]
        if self.code == NVLINK and nvlink4.is_harmless(self.text):
            return RecoveryAction.IGNORE
        if self.code == RECOVERY_CHANGED and (match := _RECOVERY.search(self.text)) is not None:
            number = int(match[1], 16)
            return RECOVERY_ACTIONS[number][0] if number < len(RECOVERY_ACTIONS) else RecoveryAction.SUPPORT
        return self.entry.action

    @property
    def severity(self) -> Severity:
        if self.action.takes_gpu_away:
            return Severity.CRITICAL
        return Severity.INFO if self.action is RecoveryAction.IGNORE else Severity.WARNING


_NVLINK5 = {
    Advice.IGNORE: RecoveryAction.IGNORE,
    Advice.RESET: RecoveryAction.RESET_GPU,
    Advice.FOLLOW_154: RecoveryAction.FOLLOW,
    Advice.UNKNOWN: RecoveryAction.FOLLOW,
}


def entry(code: int) -> XidEntry:
    """The row of a code; one that the catalogue does not have is for NVIDIA's support."""
    return CATALOGUE.get(code) or XidEntry(code, RecoveryAction.SUPPORT, XidFault.UNKNOWN, "not in the catalogue")


def entries() -> Iterator[XidEntry]:
    """The catalogue in the order of the codes."""
    return (CATALOGUE[code] for code in sorted(CATALOGUE))


def parse(line: str) -> Xid | None:
    """The Xid that a kernel log line reports, or None."""
    if "NVRM" not in line:
        return None
    if (match := _XID.search(line)) is not None:
        return Xid(int(match[2]), match[1].removeprefix("PCI:"), match[3].strip())
    if _FELL.match(line):
        address = _ADDRESS.search(line)
        return Xid(OFF_THE_BUS, address[0] if address else "", line.strip())
    return None


def kernel_line(code: int, pci: str) -> str:
    """The kernel log line of such an Xid, as the driver writes it."""
    return f"NVRM: Xid (PCI:{pci}): {code}, pid='<unknown>', name=<unknown>, {entry(code).meaning}"


def same_device(reported: str, uuid: str, pci: str) -> bool:
    """Whether it is this GPU. Addresses come with domains of 4 or 8 digits, with a function or without."""
    if not reported:
        return False
    return reported == uuid or (bool(pci) and _address(reported) == _address(pci))


def _address(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part, 16) for part in text.partition(".")[0].split(":"))
    except ValueError:
        return (-1,)
