"""Faults of the host itself: a full disk, no memory left, clock skew, workers blocked in the kernel."""

from holdfast.controller.detectors.base.table import Tuning, finding
from holdfast.controller.detectors.base.windows import Latch
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Node
from holdfast.wire import types as t

_K = t.FindingKind
_FULL_BYTES = 1 << 20  # less is none
_WORD_COUNTS = 300.0  # seconds that an agent's report counts after it said that there is no room
_AGAIN = 300.0  # seconds that a state must be gone before it is reported again


def has_full_disk(node: Node, now: Instant) -> bool:
    """Is one of the disks that its agent watches full, by its gauges or by its agent's own report?"""
    if now.mono - node.refused_at < _WORD_COUNTS:
        return True
    return any(gauge.startswith("disk_free_bytes/") and value < _FULL_BYTES for gauge, value in node.host.items())


class HostDetector:
    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._latch = Latch()

    def observe(self, node: Node, now: Instant) -> list[Finding]:
        """`node.host` is fresh."""
        found: list[Finding] = []
        for gauge, value in node.host.items():
            what, _, which = gauge.partition("/")
            match what:
                case "disk_free_bytes":
                    found += self._disk(node, which, value, now)
                case "worker_blocked" if which.isdecimal():
                    found += self._worker(_K.WORKER_BLOCKED, "is in uninterruptible sleep in the kernel",
                                          node, which, value, now)  # fmt: skip
                case "worker_zombie" if which.isdecimal():
                    found += self._worker(_K.WORKER_ZOMBIE, "is a zombie: its parent has not reaped it",
                                          node, which, value, now)  # fmt: skip
        return found + self._memory(node, now) + self._clock(node, now)

    def _new(self, key: tuple[str, ...], bad: bool, now: Instant, hold: float = 0.0) -> bool:
        return self._latch.see(key, bad, now.mono, hold, _AGAIN)

    def _disk(self, node: Node, path: str, free: float, now: Instant) -> list[Finding]:
        limits = self._tuning.limits(_K.DISK_FULL)
        total = node.host.get(f"disk_total_bytes/{path}", 0.0)
        inodes = node.host.get(f"disk_free_inodes/{path}", 1.0)
        share = free / total if total > 0 else 1.0
        found: list[Finding] = []
        for severity, limit in ((t.Severity.CRITICAL, limits["critical_share"]), (None, limits["share"])):
            # A hundredth of a large disk is room for many checkpoints.
            has_room = severity is not None and free >= limits["critical_bytes"]
            full = total > 0 and ((share < limit and not has_room) or inodes < 1)
            if self._new((_K.DISK_FULL, node.name, path, str(severity)), full, now) and not found:
                text = f"{path} on {node.name} has {free / 2**30:.1f} GiB left, {share:.1%}"
                said = {"path": path, "free_bytes": free, "total_bytes": total, "limit": limit}
                found.append(
                    finding(_K.DISK_FULL, node.name, text, now, severity=severity, node=node.name,
                            signature=path, evidence=said)
                )  # fmt: skip
        return found

    def _worker(
        self, kind: t.FindingKind, text: str, node: Node, rank: str, value: float, now: Instant
    ) -> list[Finding]:
        hold = self._tuning.limit(kind, "seconds")
        if not self._new((kind, node.name, rank), value > 0, now, hold):
            return []
        text = f"rank {rank} {text} for {hold:.0f} s"
        return [finding(kind, f"rank{rank}", text, now, seconds=hold, node=node.name, rank=int(rank))]

    def _memory(self, node: Node, now: Instant) -> list[Finding]:
        limits, total = self._tuning.limits(_K.MEMORY_PRESSURE), node.host.get("memory_total_bytes", 0.0)
        left = 1 - node.host.get("memory_used_bytes", 0.0) / total if total else 1.0
        stalled = node.host.get("memory_pressure_ratio", 0.0)
        bad = left < limits["share"] or stalled > limits["stalled"]
        if not self._new((_K.MEMORY_PRESSURE, node.name), bad, now, limits["seconds"]):
            return []
        text = f"{node.name} has {left:.1%} of its memory left and waits for memory {stalled:.0%} of the time"
        said = {"left_share": left, "stalled_share": stalled, "limits": dict(limits)}
        return [
            finding(_K.MEMORY_PRESSURE, node.name, text, now, seconds=limits["seconds"], node=node.name, evidence=said)
        ]

    def _clock(self, node: Node, now: Instant) -> list[Finding]:
        limits = self._tuning.limits(_K.CLOCK_OFFSET)
        offset = node.host.get("clock_offset_seconds", 0.0)
        error = node.host.get("clock_offset_error_seconds", 0.0)
        if not self._new(
            (_K.CLOCK_OFFSET, node.name), abs(offset) - error > limits["offset_seconds"], now, limits["seconds"]
        ):
            return []
        text = f"the clock of {node.name} is {offset:+.3f} s off the controller's (known within {error:.3f} s)"
        said = {"offset_s": offset, "error_s": error, "limit_s": limits["offset_seconds"]}
        return [
            finding(_K.CLOCK_OFFSET, node.name, text, now, seconds=limits["seconds"], node=node.name, evidence=said)
        ]
