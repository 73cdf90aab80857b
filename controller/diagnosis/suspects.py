"""Between the end of a generation and the start of the next: is the node that is suspected fit to train?"""

from holdfast.base.errors import UsageError
from holdfast.controller.cluster import incidents as books
from holdfast.controller.diagnosis.diagnoses import Diagnoses, DiagnosisOutcome
from holdfast.controller.job import policy
from holdfast.controller.job.recovery import Recovery
from holdfast.controller.job.stages import Stage
from holdfast.controller.job.state import JobState
from holdfast.controller.state.events import Action, Say
from holdfast.controller.state.model import Instant, Job
from holdfast.diagnostics.catalog.catalog import INCIDENT_PASSES, Suite, limit_s
from holdfast.diagnostics.catalog.verdicts import Grade

_END_S = 90.0
"""Seconds from the order to end the workers, after which the job goes on without a diagnosis."""
_LIMIT_S = _END_S + limit_s(Suite.QUICK, INCIDENT_PASSES)
"""Likewise, to the end of the diagnosis, which ends by itself at its limit."""


class Suspects:
    def __init__(self, job: JobState, recovery: Recovery, diagnoses: Diagnoses) -> None:
        self.c, self.recovery, self.diagnoses = job, recovery, diagnoses

    def tick(self, job: Job, now: Instant) -> list[Action]:
        """Start the diagnosis once the workers are gone; go on with what it says, or without it when it takes long."""
        held = self.c.life.pending_diagnosis
        if held is None:
            return []
        live = self.c.book.live()
        if live is None or self.c.life.stage is not Stage.DRAINING:
            self.c.life.pending_diagnosis = None
            return []
        id = f"{live.id}-{job.generation}"
        if self.c.life.stopping:
            return self._late(now, _END_S)
        if live.phase != "diagnosing":
            live.enter("diagnosing", now.wall)
            why = f"{live.id}: {live.cause.text}"
            try:
                begun = self.diagnoses.begin(id, (held,), "quick", (), True, why, now, INCIDENT_PASSES)
            except UsageError as error:
                return [Say("diagnose.refused", {"node": held, "error": str(error)}), *self._go_on(job, now)]
            return [books.saved(live), *begun]
        outcome = self.diagnoses.outcome(id)
        if outcome is None:
            return self._late(now, _LIMIT_S if id in self.diagnoses.running else _END_S)
        if held not in outcome.failed:
            live.reason = f"the diagnosis of {held} ended: {_said_of(held, outcome)}; restarting"
            return [books.saved(live), *self._go_on(job, now)]
        bad = next(v for v in outcome.verdicts if v.node == held and v.grade == "fail")
        live.action, live.reason = policy.Move.EVICT.value, f"{held} failed its diagnosis: {bad.check}: {bad.text}"
        live.enter("evicting", now.wall)
        out = self.recovery.evict(held, live.reason, now, quarantined=True)
        return [*out, books.saved(live), *self._go_on(job, now)]

    def _late(self, now: Instant, limit_s: float) -> list[Action]:
        """Neither an answer nor an end of the workers: a job does not wait for ever to learn which node is faulty."""
        if now.mono - self.c.life.pending_since > limit_s:
            self.c.life.pending_diagnosis = None
        return []

    def _go_on(self, job: Job, now: Instant) -> list[Action]:
        self.c.life.pending_diagnosis = None
        return [*self.c.life.advance(job, self.c.nodes, now), *self.recovery.entered(job, now)]


def _said_of(node: str, outcome: DiagnosisOutcome) -> str:
    """What a diagnosis says of a node that it did not fail, as text."""
    if node in outcome.cleared:
        return "no fault found"
    open_ones = [v for v in outcome.verdicts if v.node == node and v.grade in (Grade.DEGRADED, Grade.UNABLE)]
    first = next((v for v in open_ones if v.grade is Grade.DEGRADED), next(iter(open_ones), None))
    return f"no clear fault; {first.check}: {first.text}" if first is not None else "no test could run"
