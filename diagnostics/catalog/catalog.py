"""Every check in one table: what it measures, in which suite, what a figure is compared with, what to do if it is bad.

The documentation's table is made of this one.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from holdfast.base.errors import UsageError
from holdfast.base.settings import nearest
from holdfast.diagnostics.catalog.verdicts import Grade, Metric


class Suite(StrEnum):
    QUICK = "quick"
    FULL = "full"


class Scope(StrEnum):
    NODE = "node"  # a node by itself
    PAIR = "pair"  # two nodes, in rounds that isolate a bad one
    NEIGHBOURS = "neighbours"  # all good nodes under one switch, then some of every two switches


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    scope: Scope
    suite: Suite
    """The smallest suite that it belongs to: `full` runs all."""
    does: str
    needs: str
    action: str
    metrics: tuple[Metric, ...] = ()


LIMIT_S = {Suite.QUICK: 55.0, Suite.FULL: 580.0}
"""Seconds after which a whole session ends, whatever is still open: under 1 and under 10 minutes. See `limit_s`."""
NODE_S = {Suite.QUICK: 20.0, Suite.FULL: 90.0}
"""Seconds that the checks of one node may take together before they are killed."""
PASSES = {Suite.QUICK: 2, Suite.FULL: 8}
"""Tests of pairs without a failure after which a node, its uplink or a path between switches has passed: one that fails
with probability 0.5 is missed with probability 0.5 to this power (25 % and 0.4 %)."""
INCIDENT_PASSES = PASSES[Suite.FULL]
"""Likewise, of the node in question of an incident. 6 take two rounds less, and name fewer nodes and uplinks that fail
half of their tests: 93.8 to 98.8 % instead of 97.2 to 99.6 % (benchmarks/intermittent.py)."""
MOST_PASSES = 16
MOST_ROUNDS = 48
ROUND_S = {Suite.QUICK: 4.0, Suite.FULL: 10.0}
"""Seconds that the time limit has for a round of pairs. It takes 2 to 3 and 8; `PAIR_S`, if a pair is silent."""
PAIR_S = {Suite.QUICK: 10.0, Suite.FULL: 20.0}
NEIGHBOURS_S = 60.0


def limit_s(suite: Suite, passes: int) -> float:
    """Seconds after which a session ends. More passes than the quick suite's find what fails in half of its tests,
    which takes 13 to 21 rounds in the median, and up to `MOST_ROUNDS`."""
    if passes <= PASSES[Suite.QUICK]:
        return LIMIT_S[suite]
    return max(LIMIT_S[suite], NODE_S[suite] + MOST_ROUNDS * ROUND_S[suite])


CHECKS: tuple[Check, ...] = (
    Check(
        "gemm", Scope.NODE, Suite.QUICK,
        "Matrix products of small integers on the CPU and on every GPU: speed, and exact results",
        "numpy or torch; for GPUs torch with CUDA",
        "wrong results: evict the node and replace the part; slow: check for throttling and for other programs",
        (Metric("flops", "FLOP/s", True, degraded=0.85, fail=0.7),),
    ),
    Check(
        "memory", Scope.NODE, Suite.QUICK, "Copy bandwidth of the host's memory", "nothing",
        "check for missing or mismatched memory modules, and for other programs",
        (Metric("bandwidth", "bytes/s", True, degraded=0.75, fail=0.5),),
    ),
    Check(
        "disk", Scope.NODE, Suite.QUICK, "Write with fsync, then read, in the agent's state folder",
        "free space there", "check the disk's health (SMART) and its other users",
        (
            Metric("write", "bytes/s", True, degraded=0.3, fail=0.1, bar=5e6, bar_grade=Grade.FAIL),
            Metric("read", "bytes/s", True, degraded=0.3, fail=0.1, bar=5e6, bar_grade=Grade.FAIL),
        ),
    ),
    Check(
        "clock", Scope.NODE, Suite.QUICK, "The kernel's estimate of its clock error (adjtimex)", "Linux",
        "start or repair time synchronisation (chrony, PTP)",
        (Metric("error", "s", False, bar=0.5, bar_grade=Grade.DEGRADED),),
    ),
    Check(
        "kernel-log", Scope.NODE, Suite.QUICK,
        "Hardware errors in the kernel's log of the last day: machine checks, memory, PCIe, disks, NICs, Xid, SXid",
        "permission to read /dev/kmsg", "see the line: it names the part",
    ),
    Check(
        "nvml", Scope.NODE, Suite.QUICK,
        "Health by the GPU driver: uncorrected ECC, row remaps, throttling, NVLink, requested recovery",
        "an NVIDIA driver", "as the verdict says: reset, reboot or replace the GPU",
    ),
    Check(
        "loopback", Scope.NODE, Suite.QUICK,
        "From every NIC to every memory node and to the next NIC: perftest where there is RDMA, else TCP to the "
        "NIC's own address (which tests the host's stack and memory path, not the wire)",
        "a NIC with an address; for RDMA ib_write_bw", "check PCIe link width and speed, firmware, IRQ placement",
        (Metric("bandwidth", "bytes/s", True, degraded=0.6, fail=0.35),),
    ),
    Check(
        "device-copy", Scope.NODE, Suite.FULL, "Host to GPU and back, pinned memory; and GPU memory to itself",
        "torch with CUDA", "check the GPU's PCIe link width and speed",
        (
            Metric("to_device", "bytes/s", True, degraded=0.85, fail=0.7),
            Metric("to_host", "bytes/s", True, degraded=0.85, fail=0.7),
            Metric("on_device", "bytes/s", True, degraded=0.9, fail=0.8),
        ),
    ),
    Check(
        "all-to-all", Scope.NODE, Suite.FULL,
        "All-to-all within the node, busbw: NCCL over its GPUs, else gloo between processes",
        "torch; two GPUs, or none", "check NVLink and PCIe, and NIC to NIC on this host",
        (Metric("busbw", "bytes/s", True, degraded=0.75, fail=0.5),),
    ),
    Check(
        "pair", Scope.PAIR, Suite.QUICK,
        "Between two nodes, both ways: bandwidth, packets lost, round-trip time, difference of the clocks",
        "a second node", "check the NIC, its cable and its switch port, in this order",
        (
            Metric("bandwidth", "bytes/s", True, degraded=0.85, fail=0.7),
            Metric("loss", "ratio", False, bar=0.002, bar_grade=Grade.FAIL),
            Metric("round_trip", "s", False, bar=0.05, bar_grade=Grade.DEGRADED),
            Metric("clock_offset", "s", False, bar=0.1, bar_grade=Grade.DEGRADED),
        ),
    ),
    Check(
        "all-reduce", Scope.NEIGHBOURS, Suite.FULL,
        "All-reduce among the good nodes under each switch, then between switches, busbw",
        "torch on three nodes or more under one switch, or under two", "check the switch",
        (Metric("busbw", "bytes/s", True, degraded=0.75, fail=0.5),),
    ),
)  # fmt: skip

BY_NAME = {check.name: check for check in CHECKS}


def choose(suite: Suite, names: tuple[str, ...] = ()) -> tuple[Check, ...]:
    """The checks of a suite, or those named. UsageError names the nearest one to an unknown name."""
    if not names:
        return tuple(c for c in CHECKS if suite is Suite.FULL or c.suite is Suite.QUICK)
    for name in names:
        if name not in BY_NAME:
            raise UsageError(f"no test is called {name!r}{nearest(name, BY_NAME)}")
    return tuple(c for c in CHECKS if c.name in names)


def parse_suite(text: str) -> Suite:
    try:
        return Suite(text)
    except ValueError:
        raise UsageError(f"suite must be quick or full, not {text!r}") from None


def metric_of(check: str, name: str, bar: float = math.nan) -> Metric | None:
    """The metric with this part's own bar, if it has one; None for what the catalog does not know."""
    found = BY_NAME.get(check)
    metric = next((m for m in found.metrics if m.name == name), None) if found is not None else None
    if metric is None or math.isnan(bar):
        return metric
    return replace(metric, bar=bar, bar_grade=Grade.FAIL)
