"""Xids 144 to 150 (NVLink of Blackwell and newer): which action NVIDIA asks for, by the registers in the line.

Source: NVIDIA's Xid catalogue, sheet "XID 144-150 Decode" (docs.nvidia.com/deploy/xid-errors). The word "Fatal" in the
line decides nothing: two reasons of a link that went down are fatal and to be ignored, and a "Nonfatal" line can ask
for a reset. A line is `UNIT Fatal|Nonfatal XC0 i0 Link NN (INTRINFO STATUS ...)`; drivers before R575 encode the unit
in bits 9:0 of INTRINFO, later ones in bits 6:0, which the unit's name distinguishes.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

CODES = range(144, 151)
_LINE = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_]+)(?:/[A-Z0-9_]+)?\s+(?P<word>Fatal|Nonfatal)\s+XC ?\d+\s+i ?\d+\s+Link\s+(?P<link>-?\d+)"
    r"\s*[(\[](?P<info>0x[0-9a-fA-F]+)(?:[,\s]+(?P<status>0x[0-9a-fA-F]+))?"
)


class Advice(StrEnum):
    """NVIDIA's resolution bucket of a row."""

    IGNORE = "ignore"
    RESET = "reset"
    FOLLOW_154 = "follow 154"
    """What Xid 154 says, or restart the application where none came (XID_154_EVAL)."""
    UNKNOWN = "unknown"
    """Not in the table."""


@dataclass(frozen=True, slots=True)
class NvlinkReport:
    """What such a line says. `link`: -1 where the driver knows none."""

    unit: str
    fatal: bool
    link: int
    info: int
    status: int

    @property
    def where(self) -> str:
        return f"{self.unit}, link {self.link}" if self.link >= 0 else self.unit


@dataclass(frozen=True, slots=True)
class _Unit:
    """`ignore`, `reset`, `follow`: bits of the status register. `promoted`: bits that ask for a reset when INTRINFO
    has its flag `flags` (by driver generation: the unit's code in it, the flag)."""

    code: int
    ignore: int = 0
    reset: int = 0
    follow: int = 0
    promoted: int = 0


_SW = 0x8000_0000
_TLW = {"ignore": 0x3 | _SW, "reset": 0x4}
_UNITS: Mapping[str, _Unit] = {
    "SAW_MVB": _Unit(144, ignore=0x2D, reset=0x12),
    "RLW_CTRL": _Unit(145, ignore=_SW),
    "RLW_REMAP": _Unit(145, ignore=0x300 | _SW, reset=0xC0, follow=0x3F),
    "RLW_RSPCOL": _Unit(145, ignore=0x1 | _SW, reset=0x2),
    "RLW_RXPIPE": _Unit(145, ignore=0xF | _SW, promoted=0x7),
    "RLW_SRC_TRACK": _Unit(145, ignore=0x2 | _SW, reset=0x31, follow=0xC),
    "RLW_TAGSTATE": _Unit(145, ignore=0x1_0001 | _SW, reset=0x12_0002),
    "TLW_CTRL": _Unit(146, **_TLW),
    "TLW_RX": _Unit(146, **_TLW),
    "TLW_RX_PIPE0": _Unit(146, **_TLW),
    "TLW_RX_PIPE1": _Unit(146, **_TLW),
    "TLW_TX": _Unit(146, **_TLW),
    "TLW_TX_PIPE0": _Unit(146, **_TLW),
    "TLW_TX_PIPE1": _Unit(146, **_TLW),
    "TREX": _Unit(147, ignore=0x1 | _SW),
    "NVLPW_CTRL": _Unit(148, ignore=_SW),
    "NVLPW": _Unit(148, ignore=_SW),
}
"""Units whose status register is a set of bits."""

_RXPIPE_V1 = 0b00_1100_0010  # bits 9:0 of INTRINFO before R575
_RXPIPE_PROMOTED_V1, _RXPIPE_PROMOTED_V2 = 1 << 10, 1 << 7

_DOWN_RESET = frozenset(
    {0x00, 0x01, 0x02, 0x04, 0x0A, 0x0F, 0x10, 0x11, 0x12, 0x15, 0x16, *range(0x20, 0x26), 0x2A, 0x2B}
)
_DOWN_IGNORE = frozenset({0x26, 0x28})  # software or the user took it down; the host did
_MFDE = {1: Advice.RESET, 3: Advice.IGNORE, 4: Advice.RESET, 5: Advice.RESET, 7: Advice.RESET}


def parse(text: str) -> NvlinkReport | None:
    """The report in the text behind "149, ", or None for another form."""
    match = _LINE.search(text)
    if match is None:
        return None
    info, status = int(match["info"], 16), int(match["status"] or "0", 16)
    return NvlinkReport(match["unit"], match["word"] == "Fatal", int(match["link"]), info, status)


def advice(code: int, report: NvlinkReport) -> Advice:
    """What NVIDIA asks for. Several bits of one status register at once: what the worst of them asks for."""
    reason = report.info >> 20 & 0x3F  # bits 25:20
    unit = _UNITS.get(report.unit)
    if unit is not None:
        return _by_bits(unit, report) if (unit.code, reason) == (code, 0) else Advice.UNKNOWN
    match code, report.unit:
        case 149, "NETIR_LINK_EVT" | "NETIR_LINK_DOWN" if report.status == 0:
            if reason in _DOWN_RESET:
                return Advice.RESET
            return Advice.IGNORE if reason in _DOWN_IGNORE else Advice.UNKNOWN
        case 149, "NETIR_BER_EVENT" if reason == 0 and report.status <= 3:
            return Advice.IGNORE
        case 149, "NETIR_MFDE_EVENT" if reason == 0:
            return _MFDE.get(report.status, Advice.UNKNOWN)
        case (149, "NETIR" | "NETIR_INT") | (150, "MSE_WATCHDOG") if (reason, report.status) == (0, 0):
            return Advice.RESET
    return Advice.UNKNOWN


def _by_bits(unit: _Unit, report: NvlinkReport) -> Advice:
    flag = _RXPIPE_PROMOTED_V1 if report.info & 0x3FF == _RXPIPE_V1 else _RXPIPE_PROMOTED_V2
    reset = unit.reset | (unit.promoted if report.info & flag else 0)
    if report.status & reset:
        return Advice.RESET
    if report.status & unit.follow:
        return Advice.FOLLOW_154
    known = unit.ignore | unit.reset | unit.follow
    return Advice.IGNORE if report.status and not report.status & ~known else Advice.UNKNOWN
