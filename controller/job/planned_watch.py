"""A job beside its plan: what a step takes and was planned to take, and where it takes longer; what its nodes send, and
its layout says that they send. For information. Pure.

No incident, no alert, and no evidence against a node: a plan may simply promise too much.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.base.errors import ProtocolError, UsageError
from holdfast.controller.detectors.base.table import Response, finding
from holdfast.controller.detectors.network.traffic_pattern import Volume
from holdfast.controller.detectors.network.unplanned import Change, UnplannedTraffic
from holdfast.controller.detectors.network.volumes import Copied
from holdfast.controller.detectors.workers.planned import PlannedPace, PlannedPaceDetector
from holdfast.controller.job.state import JobState
from holdfast.controller.state.events import Action, PlanCompared, Say
from holdfast.controller.state.model import Instant
from holdfast.plan.planned_step import PlannedStep
from holdfast.planner.placement.expected import NodeBytes, node_bytes
from holdfast.wire import types as t
from holdfast.wire.plans import decode_plan, decode_planned, decode_traffic

_KIND, _TRAFFIC = t.FindingKind.SLOWER_THAN_PLANNED, t.FindingKind.TRAFFIC_UNPLANNED


@dataclass(frozen=True, slots=True)
class _Read:
    """A published plan, read once."""

    data: bytes
    step: PlannedStep | None
    world: int
    traffic: NodeBytes | None = None


@dataclass(frozen=True, slots=True)
class OffPlan:
    """A finding of `traffic-unplanned` that lasts."""

    node: str
    """Empty: most nodes of the job."""
    text: str
    since: float
    """Unix time."""


class PlannedWatch:
    def __init__(self, job: JobState) -> None:
        self.c = job
        self.since: float | None = None
        """Unix time since when steps are slower than planned; None: they are not."""
        self._pace = PlannedPaceDetector(job.tuning)
        self.off_plan: dict[str, OffPlan] = {}
        """By node."""
        self._unplanned = UnplannedTraffic(job.tuning)
        self._read = _Read(b"", None, 0)
        self._seen: PlanCompared | None = None
        self._slow = 0  # steps in a row that were slower, before that is said

    @property
    def planned(self) -> PlannedStep | None:
        """What a step of the job is planned to take, on as many ranks as it has now."""
        read = self._now()
        return read.step if read is not None else None

    @property
    def traffic_planned(self) -> NodeBytes | None:
        """What the job's nodes send in a step of its plan, on as many ranks as it has now; None: not known."""
        read = self._now()
        return read.traffic if read is not None else None

    def traffic_measured(self, node: str) -> tuple[float, float] | None:
        """Bytes that a node sends and receives in a step: the median of the newest."""
        return self._unplanned.measured(node)

    def _now(self) -> _Read | None:
        """The plan of what runs."""
        plan = self.c.plan
        if plan is None:
            return None
        if plan.data is not self._read.data:
            self._read = _read(plan.data, self.c.job.spec.nproc)
        return self._read if self._read.world == self.c.job.world else None

    @property
    def where(self) -> str:
        """Which kind of action exceeds its plan by the most that nothing hides; empty: not known, or none does."""
        seen = self._seen
        return seen.text if seen is not None and seen.generation == self.c.job.generation else ""

    def step(self, record: t.StepRecord, now: Instant) -> list[Action]:
        """The first record of a step of the running generation."""
        if self._seen is not None and self._seen.generation != record.generation:
            self._seen = None
        pace, planned = self._pace.observe(record.generation, record.seconds), self.planned
        if planned is None:
            return self._ended("there is no plan of this number of ranks any more", now)
        if pace is None:
            return []
        if self.since is not None:
            return self._ended(_text(pace, planned), now) if self._pace.is_over(pace, planned.step) else []
        explained = self._seen.explained_s if self._seen is not None else 0.0
        if not self._pace.is_slower(pace, planned.step, explained):
            self._slow = 0
            return []
        self._slow += 1
        if self._seen is None and self._slow <= self._pace.steps:
            return []  # where it is slower is worked out from spans, soon: or it has none
        if self.c.tuning.response(_KIND) is Response.OFF:
            return []
        return self._began(pace, planned, now)

    def traffic(self, node: str, volumes: Sequence[tuple[Volume, Copied]], now: Instant) -> list[Action]:
        """What the newest steps of a node moved, and copies of snapshots in it."""
        if not volumes or self.c.tuning.response(_TRAFFIC) is Response.OFF:
            return []
        planned, job = self.traffic_planned, self.c.job
        if planned is None:
            return self._said(self._unplanned.end("there is no plan of this number of ranks any more"), now)
        at = job.ranks_on(node).start // job.spec.nproc
        limits = float(planned.sent[at]), float(planned.received[at])
        changes = []
        for volume, copies in volumes:
            changes += self._unplanned.observe(node, job.generation, volume, copies, limits)
        return self._said(changes, now)

    def compared(self, seen: PlanCompared) -> list[Action]:
        """What spans of a generation's steps say of its kinds of action."""
        if seen.generation == self.c.job.generation:
            self._seen = seen
        return []

    def _said(self, changes: Sequence[Change], now: Instant) -> list[Action]:
        actions: list[Action] = []
        for one in changes:
            said = {"kind": _TRAFFIC.value, "subject": one.node or self.c.job.spec.id, "text": one.text}
            if one.is_over:
                was = self.off_plan.pop(one.node, None)
                lasted = now.wall - was.since if was is not None else 0.0
                actions.append(Say("finding.ended", {**said, "lasted_s": round(lasted, 1)}))
                continue
            self.off_plan[one.node] = OffPlan(one.node, one.text, now.wall)
            self.c.book.count(finding(_TRAFFIC, one.node or "job", one.text, now, node=one.node))
            actions.append(Say("finding", said))
        return actions

    def _began(self, pace: PlannedPace, planned: PlannedStep, now: Instant) -> list[Action]:
        self.since = now.wall
        where = f": {self.where}" if self.where else ": no kind of action exceeds its own plan by as much"
        if self._seen is None:
            where = ": its spans do not say where"
        found = finding(_KIND, "job", _text(pace, planned) + where, now)
        self.c.book.count(found)
        return [Say("finding", {"kind": _KIND.value, "subject": self.c.job.spec.id, "text": found.text})]

    def _ended(self, why: str, now: Instant) -> list[Action]:
        self._slow = 0
        if self.since is None:
            return []
        lasted, self.since = now.wall - self.since, None
        said = {"kind": _KIND.value, "subject": self.c.job.spec.id, "text": why, "lasted_s": round(lasted, 1)}
        return [Say("finding.ended", said)]


def _text(pace: PlannedPace, planned: PlannedStep) -> str:
    more = pace.median / planned.step - 1
    return f"steps take {pace.median:.3g} s, planned {planned.step:.3g} s ({more:+.0%})"


def _read(data: bytes, per_node: int) -> _Read:
    step, traffic = decode_planned(data), decode_traffic(data)
    if step is None and traffic is None:
        return _Read(data, None, 0)
    try:
        plan = decode_plan(data)
    except ProtocolError:
        return _Read(data, None, 0)
    try:
        links = node_bytes(plan, traffic, per_node) if traffic is not None else None
    except UsageError:
        links = None
    return _Read(data, step, plan.mesh.world, links)
