"""The detectors that look at what nodes report of themselves, behind one face."""

import math

from holdfast.controller.detectors.base.table import Tuning
from holdfast.controller.detectors.base.windows import BoundedDict
from holdfast.controller.detectors.hardware.gpu import GpuDetector
from holdfast.controller.detectors.hardware.host import HostDetector
from holdfast.controller.detectors.hardware.links import LinkDetector
from holdfast.controller.detectors.hardware.sxids import SXidDetector
from holdfast.controller.detectors.hardware.xids import XidDetector
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Node
from holdfast.facts import sxid
from holdfast.facts.xid import Xid
from holdfast.wire import types as t

_GPUS_EVERY = 4.9  # seconds between two looks at the gauges of a node's GPUs: what is urgent comes as an Xid


class NodeDetectors:
    def __init__(self, tuning: Tuning) -> None:
        self._gpus = GpuDetector(tuning)
        self._gpus_at: BoundedDict[str, float] = BoundedDict()
        self._xids = XidDetector(tuning)
        self._sxids = SXidDetector(tuning)
        self._links = LinkDetector(tuning)
        self._host = HostDetector(tuning)

    def gauges(self, node: Node, frame: t.Frame, training: bool, now: Instant) -> list[Finding]:
        """`frame` is the newest of the node, which holds its values already. `training`: all its workers are."""
        found: list[Finding] = []
        if frame.gpus and now.mono - self._gpus_at.get(node.name, -math.inf) >= _GPUS_EVERY:
            self._gpus_at[node.name] = now.mono
            found += self._gpus.observe(node, training, now)
        if frame.host:
            found += self._links.observe(node, frame, training, now)
            found += self._host.observe(node, now)
        return found

    def logged(self, event: t.LogMatched, node: Node, now: Instant) -> list[Finding]:
        """A line of the node's own log."""
        prefix, _, code = event.rule.partition("-")
        if prefix == "sxid" and (report := sxid.parse(event.line)) is not None:
            return self._sxids.observe(report, node, now)
        if prefix != "xid" or not code.isdigit():
            return []
        return self._xids.observe(Xid(int(code), event.device, event.line), node, now)

    def due(self, now: Instant) -> list[Finding]:
        """What waited for more evidence, and has waited long enough."""
        return self._xids.due(now)
