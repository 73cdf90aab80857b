"""Recent hardware errors in the kernel's log: those of the last day, by the kernel's own clock."""

import errno
import os
import re
import time
from dataclasses import dataclass

from holdfast.diagnostics.catalog.options import CheckOptions
from holdfast.diagnostics.catalog.results import CheckFault, CheckResult

_PATH = "/dev/kmsg"
_RECENT_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Pattern:
    name: str
    pattern: re.Pattern[str]
    fatal: bool
    sample: str


def _row(name: str, pattern: str, fatal: bool, sample: str) -> Pattern:
    return Pattern(name, re.compile(pattern), fatal, sample)


PATTERNS = (
    _row("machine check", r"mce: \[Hardware Error\]|Machine check events logged", False,
         "mce: [Hardware Error]: Machine check events logged"),
    _row("uncorrected memory error", r"EDAC .*\bUE\b|Memory failure: 0x|Uncorrected hardware memory error", True,
         "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Ha#0_Chan#1_DIMM#0"),
    _row("PCIe error", r"AER: .*(Uncorrected|Fatal)|pcieport .*severity=Uncorrected", True,
         "pcieport 0000:17:00.0: AER: Uncorrected (Fatal) error received: 0000:18:00.0"),
    _row("GPU off the bus", r"NVRM: .*GPU has fallen off the bus|NVRM: Xid \([^)]*\): 79\b", True,
         "NVRM: GPU at PCI:0000:b3:00: GPU has fallen off the bus."),
    _row("GPU memory", r"NVRM: Xid \([^)]*\): (48|64|95|140)\b", True,
         "NVRM: Xid (PCI:0000:3b:00): 95, pid=123, Uncontained: FBHUB"),
    # 22013 and 20012 are non-fatal by NVIDIA's guide, whatever the driver calls them.
    _row("NVSwitch", r"nvidia-nvswitch\d+: SXid \([^)]*\): (?!22013|20012)\d{5}, Fatal, ", True,
         "nvidia-nvswitch3: SXid (PCI:0000:c8:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"),
    _row("RDMA NIC", r"mlx5_core.*(unrecoverable hardware error|health compromised)", True,
         "mlx5_core 0000:5e:00.0: device's health compromised - reached miss count"),
    _row("disk", r"(I/O error, dev \w+|Remounting filesystem read-only)", True,
         "blk_update_request: I/O error, dev nvme0n1, sector 12345"),
    _row("kernel stuck", r"(soft lockup - CPU#|hard LOCKUP|rcu: INFO: .* detected stall)", False,
         "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python3:4242]"),
)  # fmt: skip


def run(options: CheckOptions) -> CheckResult:
    try:
        records = _read(_PATH)
    except OSError as error:
        return CheckResult("kernel-log", unable=f"{_PATH}: {error.strerror}")
    return CheckResult("kernel-log", faults=tuple(find(records, time.monotonic())), evidence={"lines": len(records)})


def find(records: list[str], now: float) -> list[CheckFault]:
    """One fault for each pattern that recent records match, with their number and the newest line.

    `records`: as /dev/kmsg gives them ("6,1234,5678901,-;text", microseconds since boot); `now`: seconds since boot.
    What programs wrote there (a facility above 0) is no word of the kernel's.
    """
    hits: dict[str, list[str]] = {}
    for record in records:
        head, _, text = record.partition(";")
        fields = head.split(",")
        if len(fields) < 3 or not fields[0].isdigit() or not fields[2].isdigit():
            continue
        if int(fields[0]) >> 3 or now - int(fields[2]) / 1e6 > _RECENT_S:
            continue
        for row in PATTERNS:
            if row.pattern.search(text):
                hits.setdefault(row.name, []).append(text.strip())
    rows = {row.name: row for row in PATTERNS}
    return [
        CheckFault(f"{name}, {len(lines)} times in the last day: {lines[-1][:200]}", fatal=rows[name].fatal)
        for name, lines in hits.items()
    ]


def _read(path: str) -> list[str]:
    """All records that the kernel still has."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    records = []
    try:
        while True:
            try:
                records.append(os.read(fd, 8192).decode(errors="replace"))
            except BlockingIOError:
                return records
            except OSError as error:
                if error.errno != errno.EPIPE:  # overwritten while we read: the next read goes on behind it
                    raise
    finally:
        os.close(fd)
