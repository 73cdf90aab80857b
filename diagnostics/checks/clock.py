"""What the kernel says of its clock: adjtimex, read only. Offsets between nodes are measured by pairs."""

import ctypes
from typing import Any

from holdfast.diagnostics.catalog.options import CheckOptions
from holdfast.diagnostics.catalog.results import CheckResult, Reading

_UNSYNCHRONISED = 0x40


class _Timex(ctypes.Structure):
    """struct timex of Linux, 64 bit."""

    _fields_ = [
        ("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("freq", ctypes.c_long), ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long), ("status", ctypes.c_int), ("constant", ctypes.c_long),
        ("precision", ctypes.c_long), ("tolerance", ctypes.c_long), ("time", ctypes.c_long * 2),
        ("tick", ctypes.c_long), ("ppsfreq", ctypes.c_long), ("jitter", ctypes.c_long), ("shift", ctypes.c_int),
        ("stabil", ctypes.c_long), ("jitcnt", ctypes.c_long), ("calcnt", ctypes.c_long), ("errcnt", ctypes.c_long),
        ("stbcnt", ctypes.c_long), ("tai", ctypes.c_int), ("padding", ctypes.c_int * 11),
    ]  # fmt: skip


def run(options: CheckOptions) -> CheckResult:
    state = _Timex()
    libc: Any = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "adjtimex") or libc.adjtimex(ctypes.byref(state)) < 0:
        return CheckResult("clock", unable="this system does not report it (no adjtimex)")
    if state.status & _UNSYNCHRONISED:
        # A container's or a virtual machine's host may well keep the time: pairs measure what really differs.
        why = "no time daemon reports the clock error to the kernel; `pair` measures differences between nodes"
        return CheckResult("clock", unable=why)
    return CheckResult("clock", (Reading("error", state.maxerror / 1e6),), evidence={"status": state.status})
