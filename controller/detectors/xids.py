"""Xid reports: each by NVIDIA's immediate action, and some only together with their neighbours on the same GPU.

A single fault makes a burst of codes: the one that takes the GPU away speaks for the burst. 45 only cleans up after
another, 48 is harmless to the rest when the error was contained (94), 154 says that another value changed. A code of
the application that comes again on the same GPU, and on no other, is not the application's.
"""

from collections import deque
from dataclasses import dataclass, field

from holdfast import types as t
from holdfast import xid
from holdfast.controller.detectors.table import Tuning, finding
from holdfast.controller.model import Finding, Instant, Node
from holdfast.xid import Action, Entry, Xid

_KEPT = 256  # reports of one GPU
_BURST = 180.0  # seconds of silence that end a burst of reports


@dataclass(slots=True)
class _Gpu:
    node: Node
    index: int  # -1: not one that the agent knows
    device: str
    reports: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    waiting: dict[int, float] = field(default_factory=dict)  # code -> when to judge it (mono)

    @property
    def name(self) -> str:
        return f"{self.node.name}/gpu{self.index}" if self.index >= 0 else f"{self.node.name}/{self.device or 'gpu'}"

    def codes(self, since: float) -> set[int]:
        return {code for at, code in self.reports if at >= since}

    def bursts(self, code: int, since: float) -> int:
        """How many separate times a code came."""
        times = [at for at, seen in self.reports if seen == code and at >= since]
        return sum(1 for before, at in zip([-_BURST, *times], times, strict=False) if at - before >= _BURST)


class XidDetector:
    def __init__(self, tuning: Tuning) -> None:
        self._repeated = tuning.limits(t.FindingKind.GPU_XID_REPEATED)
        self._settle = tuning.limit(t.FindingKind.GPU_XID, "settle_seconds")
        self._gpus: dict[tuple[str, int, str], _Gpu] = {}

    def observe(self, report: Xid, node: Node, now: Instant) -> list[Finding]:
        """One report of a node. What must be read with its neighbours is judged later, by `due`."""
        gpu = self._gpu(report, node)
        burst = gpu.codes(now.mono - _BURST)
        gpu.reports.append((now.mono, report.code))
        action = report.action
        if action.takes_gpu_away:
            gpu.waiting.clear()
            return [] if report.code in burst else [self._gone(gpu, report.code, action, now)]
        if action is Action.FOLLOW:
            gpu.waiting.setdefault(report.code, now.mono + self._settle)
            return []
        if action is Action.IGNORE or report.code in burst:
            return []
        return [self._told(gpu, report.code, action, now)]

    def due(self, now: Instant) -> list[Finding]:
        """Judge what has waited for its neighbours."""
        found = []
        for gpu in self._gpus.values():
            for code in [code for code, at in gpu.waiting.items() if at <= now.mono]:
                del gpu.waiting[code]
                if (one := self._judge(gpu, code, now)) is not None:
                    found.append(one)
        return found

    def _gpu(self, report: Xid, node: Node) -> _Gpu:
        index = next((g.index for g in node.identity.gpus if xid.same_device(report.device, g.uuid, g.pci)), -1)
        device = "" if index >= 0 else report.device
        gpu = self._gpus.setdefault((node.name, index, device), _Gpu(node, index, device))
        gpu.node = node
        return gpu

    def _judge(self, gpu: _Gpu, code: int, now: Instant) -> Finding | None:
        neighbours = gpu.codes(now.mono - _BURST) - {code}
        if code in (xid.DOUBLE_BIT, 171, 172):
            if xid.DOUBLE_BIT in gpu.waiting or (code != xid.DOUBLE_BIT and xid.DOUBLE_BIT in neighbours):
                return None  # a detail of 48, which speaks for itself
            if xid.CONTAINED in neighbours and xid.UNCONTAINED not in neighbours:
                return None  # 94 said it: only its application is hit
            return self._gone(gpu, code, Action.RESET_GPU, now)
        if code == xid.RECOVERY_CHANGED:
            number = int(gpu.node.gpus.get(gpu.index, {}).get("recovery_action", 0))
            action = xid.RECOVERY_ACTIONS[number][0] if number < len(xid.RECOVERY_ACTIONS) else Action.SUPPORT
            return self._gone(gpu, code, action, now) if action.takes_gpu_away else None
        if neighbours:
            return None  # 45: the other code is the one to follow
        return self._told(gpu, code, Action.SUPPORT, now, " and nothing else: restart the fabric manager")

    def _gone(self, gpu: _Gpu, code: int, action: Action, now: Instant) -> Finding:
        entry = xid.entry(code)
        times = gpu.bursts(code, now.mono - self._repeated["window_seconds"])
        again = f"; {times} times in a day: contact support" if times >= self._repeated["support"] else ""
        text = f"Xid {code} on {gpu.name}: {entry.meaning}; {action}{again}"
        return _finding(t.FindingKind.GPU_XID, gpu, entry, action, times, text, now)

    def _told(self, gpu: _Gpu, code: int, action: Action, now: Instant, more: str = "") -> Finding:
        since = now.mono - self._repeated["window_seconds"]
        entry, times = xid.entry(code), gpu.bursts(code, since)
        elsewhere = any(code in other.codes(since) for other in self._gpus.values() if other is not gpu)
        if action is Action.RESTART_APP and times >= self._repeated["times"] and not elsewhere:
            kind = t.FindingKind.GPU_XID_REPEATED
            text = (
                f"Xid {code} on {gpu.name} for the {times}. time, and on no other GPU: {entry.meaning}; test this GPU"
            )
        else:
            kind = t.FindingKind.GPU_XID_APP
            text = f"Xid {code} on {gpu.name}{more}: {entry.meaning}; {action}"
        return _finding(kind, gpu, entry, action, times, text, now)


def _finding(
    kind: t.FindingKind, gpu: _Gpu, entry: Entry, action: Action, times: int, text: str, now: Instant
) -> Finding:
    said = {"code": entry.code, "action": action.value, "fault": entry.fault.value, "gpu": gpu.index, "times": times}
    return finding(kind, gpu.name, text, now, node=gpu.node.name, signature=f"xid-{entry.code}", evidence=said)
