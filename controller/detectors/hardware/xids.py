"""Xid reports: each by NVIDIA's immediate action, and some only together with other codes on the same GPU.

A single fault makes a burst of codes: the one that makes the GPU unusable represents the burst. 45 only cleans up after
another, 48 is harmless to the rest when the error was contained (94), 154 says that another value changed, and some of
144 to 150 ask for what 154 says. A code of the application that comes again on the same GPU, and on no other, is not
the application's.
"""

from collections import deque
from dataclasses import dataclass, field

from holdfast.controller.detectors.base.table import Tuning, finding
from holdfast.controller.detectors.base.windows import BoundedDict
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Node
from holdfast.facts import nvlink5, xid
from holdfast.facts.xid import RecoveryAction, Xid, XidEntry
from holdfast.wire import types as t

_KEPT = 256  # reports of one GPU
_BURST = 180.0  # seconds of silence that end a burst of reports


@dataclass(slots=True)
class _Gpu:
    node: Node
    index: int  # -1: not one that the agent knows
    device: str
    reports: deque[tuple[float, int, RecoveryAction]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    waiting: dict[int, tuple[float, Xid]] = field(default_factory=dict)  # code -> when to judge it (mono), the report

    @property
    def name(self) -> str:
        return f"{self.node.name}/gpu{self.index}" if self.index >= 0 else f"{self.node.name}/{self.device or 'gpu'}"

    def codes(self, since: float) -> set[int]:
        return {code for at, code, _ in self.reports if at >= since}

    def said(self, since: float) -> set[tuple[int, RecoveryAction]]:
        """A code may ask for nothing, and for a reset a second later: 154, and those of NVLink 5."""
        return {(code, action) for at, code, action in self.reports if at >= since}

    def bursts(self, report: Xid, since: float) -> int:
        """How many separate times such a report came."""
        kind = (report.code, report.action)
        times = [at for at, code, action in self.reports if (code, action) == kind and at >= since]
        return sum(1 for before, at in zip([-_BURST, *times], times, strict=False) if at - before >= _BURST)


class XidDetector:
    def __init__(self, tuning: Tuning) -> None:
        self._repeated = tuning.limits(t.FindingKind.GPU_XID_REPEATED)
        self._settle = tuning.limit(t.FindingKind.GPU_XID, "settle_seconds")
        self._gpus: BoundedDict[tuple[str, int, str], _Gpu] = BoundedDict()

    def observe(self, report: Xid, node: Node, now: Instant) -> list[Finding]:
        """One report of a node. A code that depends on others near it is judged later, by `due`."""
        gpu, action = self._gpu(report, node), report.action
        is_known = (report.code, action) in gpu.said(now.mono - _BURST)
        gpu.reports.append((now.mono, report.code, action))
        if action.takes_gpu_away:
            gpu.waiting.clear()
            return [] if is_known else [self._gone(gpu, report, action, now)]
        if action is RecoveryAction.FOLLOW:
            gpu.waiting.setdefault(report.code, (now.mono + self._settle, report))
            return []
        if action is RecoveryAction.IGNORE or is_known:
            return []
        return [self._reported(gpu, report, action, now)]

    def due(self, now: Instant) -> list[Finding]:
        """Judge the reports that have waited for other codes."""
        found = []
        for gpu in self._gpus.values():
            for code in [code for code, (at, _) in gpu.waiting.items() if at <= now.mono]:
                _, report = gpu.waiting.pop(code)
                if (one := self._judge(gpu, report, now)) is not None:
                    found.append(one)
        return found

    def _gpu(self, report: Xid, node: Node) -> _Gpu:
        index = next((g.index for g in node.identity.gpus if xid.same_device(report.device, g.uuid, g.pci)), -1)
        device = "" if index >= 0 else report.device
        gpu = self._gpus.setdefault((node.name, index, device), _Gpu(node, index, device))
        gpu.node = node
        return gpu

    def _judge(self, gpu: _Gpu, report: Xid, now: Instant) -> Finding | None:
        code, neighbours = report.code, gpu.codes(now.mono - _BURST) - {report.code}
        if code in (xid.DOUBLE_BIT, 171, 172):
            if xid.DOUBLE_BIT in gpu.waiting or (code != xid.DOUBLE_BIT and xid.DOUBLE_BIT in neighbours):
                return None  # a detail of 48, which is reported itself
            if xid.CONTAINED in neighbours and xid.UNCONTAINED not in neighbours:
                return None  # 94 said it: only its application is hit
            return self._gone(gpu, report, RecoveryAction.RESET_GPU, now)
        if code == xid.RECOVERY_CHANGED or code in nvlink5.CODES:
            number = int(gpu.node.gpus.get(gpu.index, {}).get("recovery_action", 0))
            action = xid.RECOVERY_ACTIONS[number][0] if number < len(xid.RECOVERY_ACTIONS) else RecoveryAction.SUPPORT
            if action.takes_gpu_away:
                return self._gone(gpu, report, action, now)
            if code == xid.RECOVERY_CHANGED:
                return None
            if action is RecoveryAction.DRAIN:
                return self._reported(gpu, report, action, now)
            # Where no 154 came with it, NVIDIA's table says restart the application; what it lacks is for support.
            otherwise = (
                RecoveryAction.RESTART_APP if report.advice is nvlink5.Advice.FOLLOW_154 else RecoveryAction.SUPPORT
            )
            return self._reported(gpu, report, otherwise, now)
        if neighbours:
            return None  # 45: the other code is the one to follow
        return self._reported(gpu, report, RecoveryAction.SUPPORT, now, " and nothing else: restart the fabric manager")

    def _gone(self, gpu: _Gpu, report: Xid, action: RecoveryAction, now: Instant) -> Finding:
        times = gpu.bursts(report, now.mono - self._repeated["window_seconds"])
        again = f"; {times} times in a day: contact support" if times >= self._repeated["support"] else ""
        text = f"Xid {report.code} on {gpu.name}: {_meaning(report)}; {action}{again}"
        return _finding(t.FindingKind.GPU_XID, gpu, report.entry, action, times, text, now)

    def _reported(self, gpu: _Gpu, report: Xid, action: RecoveryAction, now: Instant, more: str = "") -> Finding:
        since, code = now.mono - self._repeated["window_seconds"], report.code
        times = gpu.bursts(report, since)
        elsewhere = any(code in other.codes(since) for other in self._gpus.values() if other is not gpu)
        # NVLink 5 errors that ask for the application's restart are another GPU's or the software's.
        is_apps = action is RecoveryAction.RESTART_APP and code not in nvlink5.CODES
        if is_apps and times >= self._repeated["times"] and not elsewhere:
            kind = t.FindingKind.GPU_XID_REPEATED
            text = f"Xid {code} on {gpu.name} for the {times}. time, and on no other GPU: {_meaning(report)}"
            text += "; test this GPU"
        else:
            kind = t.FindingKind.GPU_XID_APP
            text = f"Xid {code} on {gpu.name}{more}: {_meaning(report)}; {action}"
        return _finding(kind, gpu, report.entry, action, times, text, now)


def _meaning(report: Xid) -> str:
    """Of NVLink 5 errors with the part and the link."""
    nvlink = report.nvlink
    return report.entry.meaning if nvlink is None else f"NVLink error in {nvlink.where}"


def _finding(
    kind: t.FindingKind, gpu: _Gpu, entry: XidEntry, action: RecoveryAction, times: int, text: str, now: Instant
) -> Finding:
    said = {"code": entry.code, "action": action.value, "fault": entry.fault.value, "gpu": gpu.index, "times": times}
    return finding(kind, gpu.name, text, now, node=gpu.node.name, signature=f"xid-{entry.code}", evidence=said)
