"""SXids: what the driver of an NVSwitch reports in the kernel's log, and how much of the host it takes away.

Sources: Fabric Manager for NVIDIA NVSwitch Systems, user guide, the tables of non-fatal, fatal and always fatal SXid
errors (docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide); the lines themselves as the open kernel driver
prints them (`NVSWITCH_PRINT_SXID`). A fatal one is fatal to the port's GPUs at least, and a job uses all GPUs of a host
together: the whole host leaves. A non-fatal one never takes anything away, whatever its number.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from holdfast.facts.xid import PREFIX, RecoveryAction
from holdfast.wire.types import Severity


class Weight(StrEnum):
    CORRECTED = "corrected"
    NONFATAL = "non-fatal"
    FATAL = "fatal"
    """Traffic of a port stops; GPUs and NVSwitches have to be reset."""
    ALWAYS_FATAL = "always fatal"
    """The whole fabric of the host stops; the host has to be restarted."""
    UNKNOWN = "of unknown weight"
    """The line does not say: an initialization, an input or output error."""


ALWAYS_FATAL = frozenset({10003, 12020, 22003, 22011, *range(23001, 23018)})
NONFATAL = frozenset(
    {
        # Single bit ECC errors, which the switch corrects.
        11012, 11021, 11022, 11023, 12021, 12023, 15008, 15011, 19049, 19055, 19057, 19059, 19062, 19065, 19068, 19071,
        24001, 24002, 24003,
        # A wrong partition, a replay, an access out of place, a heartbeat of a link, and two of the link's controller.
        11004, 20001, 12028, 19084, 22013, 20012,
    }
)  # fmt: skip
"""The guide's table of non-fatal errors: these do not act even where a driver calls one fatal."""
_STALLS = frozenset({11004, 12028, 19084})  # non-fatal, and a GPU's traffic hangs or is about to

# nvidia-nvswitch3: SXid (PCI:0000:c8:00.0): 20034, Fatal, Link 30 LTSSM Fault Up
# nvidia-nvswitch3: SXid (PCI:0000:c8:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)
# nvidia-nvswitch3: SXid (PCI:0000:c8:00.0): 10003, Fatal, unhandled interrupt in nvswitch_lib_service_interrupts(312)
_LINE = re.compile(
    PREFIX + r"nvidia-(?P<switch>nvswitch\d+): SXid "
    r"\(PCI:(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?)\): "
    r"(?P<code>\d{5}), (?:(?P<word>Correctable|Non-fatal|Fatal), )?(?:Link (?P<link>\d+) )?(?P<text>.*)"
)
# Two more lines follow each report, with the registers.
_REGISTERS = re.compile(r"(?:Severity \d+ Engine instance|Data \{)")


@dataclass(frozen=True, slots=True)
class SXid:
    """One report. `switch` as the driver calls it (nvswitch3), `pci` its address, `link` its port (-1: not of one)."""

    code: int
    switch: str
    pci: str
    link: int
    weight: Weight
    text: str

    @property
    def port(self) -> str:
        return f"{self.switch} port {self.link}" if self.link >= 0 else self.switch

    @property
    def action(self) -> RecoveryAction:
        match self.weight:
            case Weight.ALWAYS_FATAL:
                return RecoveryAction.REBOOT
            case Weight.FATAL:
                return RecoveryAction.RESET_FABRIC
            case Weight.UNKNOWN:
                return RecoveryAction.SUPPORT
            case _:
                return RecoveryAction.IGNORE

    @property
    def severity(self) -> Severity:
        if self.weight in (Weight.FATAL, Weight.ALWAYS_FATAL):
            return Severity.CRITICAL
        return Severity.WARNING if self.weight is Weight.UNKNOWN or self.code in _STALLS else Severity.INFO


def parse(line: str) -> SXid | None:
    """The SXid that a kernel log line reports; None for the lines of registers that follow it, and for all others."""
    if "SXid" not in line or (match := _LINE.match(line)) is None or _REGISTERS.match(match["text"]):
        return None
    code = int(match["code"])
    link = int(match["link"]) if match["link"] is not None else -1
    return SXid(code, match["switch"], match["pci"], link, _weight(code, match["word"]), match["text"].strip())


def _weight(code: int, word: str | None) -> Weight:
    match word:
        case "Fatal":
            if code in NONFATAL:
                return Weight.NONFATAL
            return Weight.ALWAYS_FATAL if code in ALWAYS_FATAL else Weight.FATAL
        case "Non-fatal":
            return Weight.NONFATAL
        case "Correctable":
            return Weight.CORRECTED
        case _:
            return Weight.UNKNOWN
