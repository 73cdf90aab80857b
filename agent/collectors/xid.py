"""What an NVIDIA Xid number means for the job: NVIDIA's own immediate action, as a closed set.

Where other monitors call a number fatal and NVIDIA says restart the application (63, 94, 31 ...), NVIDIA is followed:
evicting a good node costs as much as keeping a bad one.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from holdfast.types import Severity


class XidClass(StrEnum):
    EVICT = "evict"
    """The GPU needs a reset or the node a reboot: the job must leave it."""
    FOLLOW = "follow"
    """Says only that something else happened: read the other signal."""
    RESTART = "restart"
    """The application must restart; the node is good unless this repeats."""
    WATCH = "watch"
    """Count it."""


SEVERITY: dict[XidClass, Severity] = {
    XidClass.EVICT: Severity.CRITICAL,
    XidClass.FOLLOW: Severity.WARNING,
    XidClass.RESTART: Severity.WARNING,
    XidClass.WATCH: Severity.INFO,
}

OFF_THE_BUS = 79
EVICT = frozenset(
    {46, 48, 62, 64, 74, 79, 81, 95, 109, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158, 167, 171, 172}
)
FOLLOW = frozenset({45, 137, 154})
RESTART = frozenset({11, 13, 31, 32, 39, 40, 41, 43, 60, 68, 69, 70, 71, 72, 80, 82, 83, 84, 85, 86, 94})
NVLINK5 = range(144, 151)

# NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.
_XID = re.compile(r"NVRM: Xid \(((?:PCI:)?[0-9a-fA-F:.]+)[^)]*\).*?: (\d+)\b,?\s*(.*)")
# NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.
_FELL = "fallen off the bus"
_ADDRESS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?")
# NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 ...)
_NVLINK5_FATAL = re.compile(r"\bFatal\b")


@dataclass(frozen=True, slots=True)
class Xid:
    """One Xid report. `device` is the PCI address (kernel log) or the GPU's UUID (NVML), as reported."""

    code: int
    device: str
    text: str = ""

    @property
    def meaning(self) -> XidClass:
        return classify(self.code, self.text)

    @property
    def severity(self) -> Severity:
        return SEVERITY[self.meaning]


def classify(code: int, text: str = "") -> XidClass:
    """What to do about a code. `text` decides for NVLink 5 (144 to 150): only lines that say Fatal evict."""
    if code in NVLINK5:
        return XidClass.EVICT if _NVLINK5_FATAL.search(text) else XidClass.WATCH
    if code in EVICT:
        return XidClass.EVICT
    if code in FOLLOW:
        return XidClass.FOLLOW
    return XidClass.RESTART if code in RESTART else XidClass.WATCH


def parse(line: str) -> Xid | None:
    """The Xid that a kernel log line reports, or None."""
    if "NVRM" not in line and _FELL not in line:
        return None
    if (match := _XID.search(line)) is not None:
        return Xid(int(match[2]), match[1].removeprefix("PCI:"), match[3].strip())
    if _FELL in line:
        address = _ADDRESS.search(line)
        return Xid(OFF_THE_BUS, address[0] if address else "", line.strip())
    return None
