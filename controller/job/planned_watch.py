"""A job beside its plan: what a step takes and was planned to take, and where it takes longer. For information. Pure.

No incident, no alert, and no evidence against a node: a plan may simply promise too much.
"""

from dataclasses import dataclass

from holdfast.base.errors import ProtocolError
from holdfast.controller.detectors.base.table import Response, finding
from holdfast.controller.detectors.workers.planned import PlannedPace, PlannedPaceDetector
from holdfast.controller.job.state import JobState
from holdfast.controller.state.events import Action, PlanCompared, Say
from holdfast.controller.state.model import Instant
from holdfast.plan.planned_step import PlannedStep
from holdfast.wire import types as t
from holdfast.wire.plans import decode_plan, decode_planned

_KIND = t.FindingKind.SLOWER_THAN_PLANNED


@dataclass(frozen=True, slots=True)
class _Read:
    """A published plan, read once."""

    data: bytes
    step: PlannedStep | None
    world: int


class PlannedWatch:
    def __init__(self, job: JobState) -> None:
        self.c = job
        self.since: float | None = None
        """Unix time since when steps are slower than planned; None: they are not."""
        self._pace = PlannedPaceDetector(job.tuning)
        self._read = _Read(b"", None, 0)
        self._seen: PlanCompared | None = None
        self._slow = 0  # steps in a row that were slower, before that is said

    @property
    def planned(self) -> PlannedStep | None:
        """What a step of the job is planned to take, on as many ranks as it has now."""
        plan = self.c.plan
        if plan is None:
            return None
        if plan.data is not self._read.data:
            self._read = _read(plan.data)
        return self._read.step if self._read.world == self.c.job.world else None

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

    def compared(self, seen: PlanCompared) -> list[Action]:
        """What spans of a generation's steps say of its kinds of action."""
        if seen.generation == self.c.job.generation:
            self._seen = seen
        return []

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


def _read(data: bytes) -> _Read:
    step = decode_planned(data)
    if step is None:
        return _Read(data, None, 0)
    try:
        return _Read(data, step, decode_plan(data).mesh.world)
    except ProtocolError:
        return _Read(data, None, 0)
