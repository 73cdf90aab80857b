"""The detectors that look at what one job does: its steps, its losses, the traffic of its nodes."""

from holdfast.controller.detectors.base.table import Tuning
from holdfast.controller.detectors.network.traffic_pattern import Volume
from holdfast.controller.detectors.network.volumes import Copied, VolumeDetector
from holdfast.controller.detectors.workers.losses import LossDetector
from holdfast.controller.detectors.workers.pace import PaceDetector
from holdfast.controller.detectors.workers.spikes import SpikeDetector
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Job, Node
from holdfast.controller.state.ranks import RankTable
from holdfast.wire import types as t

_START = t.PHASES.index(t.Phase.START)


class JobDetectors:
    def __init__(self, tuning: Tuning) -> None:
        self._volumes = VolumeDetector(tuning)
        self._losses = LossDetector(tuning)
        self._norms = SpikeDetector(tuning, t.FindingKind.GRADIENT_SPIKE, "gradient norm")
        self._pace = PaceDetector(tuning)

    def step(self, record: t.StepRecord, is_new: bool, now: Instant) -> list[Finding]:
        """A step that a worker of the running generation finished; `is_new`: the first such record of the step."""
        found = self._losses.observe(record, now)
        return found + (self._pace.observe(record, now) if is_new else [])

    def printed(self, event: t.LogMatched, step: int, now: Instant) -> list[Finding]:
        """A loss that a worker printed; `step`: the job's newest."""
        return self._losses.printed(event, step, now)

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

    def take_volumes(self, node: str) -> list[tuple[Volume, Copied]]:
        """What the steps moved that the node's last frame completed, and copies of snapshots in it; each once."""
        return self._volumes.take(node)
