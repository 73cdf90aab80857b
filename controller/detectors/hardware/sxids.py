"""SXid reports of a host's NVSwitches: the fatal ones take the host away, all others are evidence.

One fault makes many lines, on every switch that the fault's GPU is linked to: a host is reported once in a burst, and
again only when a more severe one comes.
"""

from dataclasses import dataclass

from holdfast.controller.detectors.base.table import Tuning, finding
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Node
from holdfast.facts.sxid import SXid, Weight
from holdfast.wire import types as t

_BURST = 180.0  # seconds of silence that end a burst of reports


@dataclass(slots=True)
class _Burst:
    weight: Weight
    last: float
    ports: set[str]


class SXidDetector:
    def __init__(self, tuning: Tuning) -> None:
        self._repeated = tuning.limits(t.FindingKind.GPU_XID_REPEATED)
        self._bursts: dict[str, _Burst] = {}
        self._began: dict[str, list[float]] = {}  # when bursts began, by host

    def observe(self, report: SXid, node: Node, now: Instant) -> list[Finding]:
        """One report of a host."""
        if not report.action.takes_gpu_away:
            return []
        burst = self._bursts.get(node.name)
        if burst is not None and now.mono - burst.last < _BURST:
            is_heavier = report.weight is Weight.ALWAYS_FATAL and burst.weight is Weight.FATAL
            burst.last = now.mono
            burst.ports.add(report.port)
            if not is_heavier:
                return []
            burst.weight = report.weight
        else:
            burst = self._bursts[node.name] = _Burst(report.weight, now.mono, {report.port})
            since = now.mono - self._repeated["window_seconds"]
            self._began[node.name] = [at for at in self._began.get(node.name, []) if at >= since] + [now.mono]
        times = len(self._began[node.name])
        again = f"; {times} times in a day: contact support" if times >= self._repeated["support"] else ""
        gpus = len(node.identity.gpus)
        concerned = f"all {gpus} GPUs of the host are" if gpus else "all GPUs of the host are"
        text = (
            f"SXid {report.code} ({report.weight}) on {node.name}, {report.port}: {report.text}; "
            f"{concerned} concerned: {report.action}{again}"
        )
        evidence = {
            "code": report.code, "weight": report.weight.value, "switch": report.switch, "pci": report.pci,
            "port": report.link, "action": report.action.value, "gpus": gpus, "times": times,
        }  # fmt: skip
        subject = f"{node.name}/{report.switch}" + (f"/port{report.link}" if report.link >= 0 else "")
        return [
            finding(
                t.FindingKind.GPU_SXID, subject, text, now,
                node=node.name, signature=f"sxid-{report.code}", evidence=evidence,
            )
        ]  # fmt: skip
