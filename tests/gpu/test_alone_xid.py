"""A program that accesses memory that is not its own: the driver's report, by NVML and in the kernel's log. An agent
beside it would see it too."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from holdfast.agent.collectors import kernel_log
from holdfast.agent.collectors.gpu import GpuCollector
from holdfast.agent.collectors.kernel_log import KernelLog
from holdfast.agent.logs.rules import load
from holdfast.facts import xid
from holdfast.facts.xid import RecoveryAction, Xid, XidFault
from holdfast.wire.types import Severity
from tests.gpu.conftest import Start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

SCRIPT = str(Path(__file__).parent / "scripts" / "illegal_access.py")
LATE_S = 3.0
"""Seconds after the program's end in which the driver's report must have come; and a little for the second way."""
UNMAPPED, MISALIGNED = "0x700000000000", "0x700000000001"


@pytest.mark.parametrize(("address", "codes"), [(UNMAPPED, {31, 13}), (MISALIGNED, {13, 31})])
def test_an_illegal_access_is_the_applications_own(address: str, codes: set[int], start: Start) -> None:
    gpus, log = GpuCollector(), KernelLog()
    print(f"\nNVML's events: {gpus.events_available}; kernel log: {log.available} {log.absent_reason}")
    gpus.poll_xids()
    log.poll()
    child = start(SCRIPT, address)
    child.wait(20)
    print("the program:", child.output.strip())
    by_nvml: list[Xid] = []
    lines: list[kernel_log.KernelLine] = []
    ended = time.monotonic()
    seen: dict[str, float] = {}
    while time.monotonic() < ended + LATE_S and len(seen) < gpus.events_available + log.available:
        by_nvml += gpus.poll_xids()
        lines += [line for line in log.poll() if not line.written]
        for name, has_come in (("NVML", by_nvml), ("kernel log", any(xid.parse(line.text) for line in lines))):
            if has_come:
                seen.setdefault(name, time.monotonic() - ended)
        time.sleep(0.02)
    for line in lines:
        print(f"kernel: <{line.level}> {line.text}")
    print("by NVML:", by_nvml, "; seconds after the program's end:", {k: round(v, 2) for k, v in seen.items()})
    by_log = [found for line in lines if (found := xid.parse(line.text)) is not None]
    events = [event for line in lines if (event := kernel_log.event(line, load(), 0)) is not None]
    print("events of the log:", [(one.rule, one.severity, one.device) for one in events])
    (gpu, *_) = gpus.gpus
    still = gpus.events_available
    gpus.close()
    log.close()
    assert child.output.startswith("error 7"), "CUDA's errors 700 and 716"
    assert seen, "neither way has seen it"
    assert by_nvml or not still, "NVML gives events, and gave none"
    for one in (*by_nvml, *by_log):
        assert one.code in codes | {43, 45}, one
        assert xid.same_device(one.device, gpu.uuid, gpu.pci), (one.device, gpu)
        assert not one.action.takes_gpu_away
        assert one.severity is not Severity.CRITICAL
    first = next(one for one in (*by_nvml, *by_log) if one.code in codes)
    assert (first.entry.fault, first.action) == (XidFault.APPLICATION, RecoveryAction.RESTART_APP)
