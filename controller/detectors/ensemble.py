"""The detectors that look at what nodes report of themselves, behind one face."""

from holdfast import types as t
from holdfast.controller.detectors.gpu import GpuDetector
from holdfast.controller.detectors.table import Tuning
from holdfast.controller.detectors.xids import XidDetector
from holdfast.controller.model import Finding, Instant, Node
from holdfast.xid import Xid


class Ensemble:
    def __init__(self, tuning: Tuning) -> None:
        self._gpus = GpuDetector(tuning)
        self._xids = XidDetector(tuning)

    def gauges(self, node: Node, frame: t.Frame, training: bool, now: Instant) -> list[Finding]:
        """`frame` is the newest of the node, which holds its values already. `training`: all its workers are."""
        found: list[Finding] = []
        if frame.gpus:
            found += self._gpus.observe(node, training, now)
        return found

    def logged(self, event: t.LogMatched, node: Node, now: Instant) -> list[Finding]:
        """A line of the node's own log."""
        prefix, _, code = event.rule.partition("-")
        if prefix != "xid" or not code.isdigit():
            return []
        return self._xids.observe(Xid(int(code), event.device, event.line), node, now)

    def due(self, now: Instant) -> list[Finding]:
        """What waited for more evidence, and has waited long enough."""
        return self._xids.due(now)
