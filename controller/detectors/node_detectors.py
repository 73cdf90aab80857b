"""The detectors that look at what nodes report of themselves, behind one face."""

import math

from holdfast.controller.detectors.base.table import Tuning
from holdfast.controller.detectors.base.windows import Bounded
from holdfast.controller.detectors.hardware.gpu import GpuDetector
from holdfast.controller.detectors.hardware.host import HostDetector
from holdfast.controller.detectors.hardware.links import LinkDetector
from holdfast.controller.detectors.hardware.sxids import SXidDetector
from holdfast.controller.detectors.hardware.xids import XidDetector
from holdfast.controller.detectors.network.volumes import VolumeDetector
from holdfast.controller.detectors.workers.pace import PaceDetector
from holdfast.controller.detectors.workers.spikes import SpikeDetector
from holdfast.controller.state.model import Finding, Instant, Job, Node, RankTable
from holdfast.facts import sxid
from holdfast.facts.xid import Xid
from holdfast.wire import types as t

_START = t.PHASES.index(t.Phase.START)
_GPUS_EVERY = 4.9  # seconds between two looks at the gauges of a node's GPUs: what is urgent comes as an Xid


class Ensemble:
    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._gpus = GpuDetector(tuning)
        self._gpus_at: Bounded[str, float] = Bounded()
        self._xids = XidDetector(tuning)
        self._sxids = SXidDetector(tuning)
        self._links = LinkDetector(tuning)
        self._host = HostDetector(tuning)
        self.begin_job()

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

    def begin_job(self) -> None:
        """What was usual for the last job says nothing of the next."""
        self._volumes = VolumeDetector(self._tuning)
        self._losses = SpikeDetector(self._tuning, t.FindingKind.LOSS_SPIKE, "loss")
        self._norms = SpikeDetector(self._tuning, t.FindingKind.GRADIENT_SPIKE, "gradient norm")
        self._pace = PaceDetector(self._tuning)

    def step(self, record: t.StepRecord, is_new: bool, now: Instant) -> list[Finding]:
        """A step that a worker of the running generation finished; `is_new`: the first such record of the step."""
        found = self._losses.observe(record.step, record.loss, now)
        return found + (self._pace.observe(record, now) if is_new else [])

    def gradients(self, step: int, meters: t.Meters, now: Instant) -> list[Finding]:
        """What a worker said of its last step."""
        return self._norms.observe(step, meters.grad_norm, now)

    def traffic(self, node: Node, frame: t.Frame, job: Job, ranks: RankTable, now: Instant) -> list[Finding]:
        """`node` holds ranks of a job that runs on several nodes."""
        if all(nic.name == "lo" for nic in frame.nics):
            return []  # loopback carries everybody's traffic
        first = job.ranks_on(node.name).start
        if not frame.offsets or (job.life_last < 0 and not (ranks.phase == _START).all()):
            return []
        return self._volumes.observe(node.name, frame, first, job.generation, job.life_last >= 0, now)

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
