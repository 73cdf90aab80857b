"""A job gives its nodes up for one with a higher priority: a checkpoint first, then back to the queue. Pure."""

import math

from holdfast.controller.cluster import incidents as books
from holdfast.controller.detectors.base.table import finding
from holdfast.controller.job import policy
from holdfast.controller.job.elastic import SAVE_LIMIT, is_saved
from holdfast.controller.job.recovery import Recovery
from holdfast.controller.job.requests import Requests
from holdfast.controller.job.stages import Stage
from holdfast.controller.job.state import JobState
from holdfast.controller.state.events import Action, Say
from holdfast.controller.state.incidents import IncidentState
from holdfast.controller.state.model import Instant, Job
from holdfast.wire import types as t


class Preemption:
    def __init__(self, job: JobState, recovery: Recovery, requests: Requests) -> None:
        self.c, self.recovery, self.requests = job, recovery, requests
        self._by: Job | None = None
        self._asked_at = math.inf
        self._asked_step = -1

    def order(self, by: Job, now: Instant) -> list[Action]:
        """Let the job give its nodes up for `by`, as soon as what it has trained is safe. May be called often."""
        if self._by is not None or self.c.life.gives_up or not self.c.may_begin:
            return []
        self._by, self._asked_at, self._asked_step = by, now.mono, self.c.job.best_step
        said = Say("job.preempt", {"job": self.c.job.spec.id, "by": by.spec.id, "priority": by.spec.priority})
        return [said, *self.requests.checkpoint_if_possible(now)]

    def tick(self, now: Instant) -> list[Action]:
        """Release the nodes once the checkpoint is stored, or has taken too long; not if no job waits for them."""
        by = self._by
        if by is None:
            return []
        if by.state.ended or by.nodes or not self.c.may_begin:
            self._by = None
            return []
        trains = self.c.life.stage is Stage.UP
        if trains and not is_saved(self.c, self._asked_step) and now.mono - self._asked_at < SAVE_LIMIT:
            return []
        self._by = None
        return self._requeue(by, now)

    def _requeue(self, by: Job, now: Instant) -> list[Action]:
        job = self.c.job
        text = (
            f"{by.spec.name} ({by.spec.id}, priority {by.spec.priority}) takes the nodes of this job "
            f"(priority {job.spec.priority}): it waits in the queue and resumes from its newest checkpoint"
        )
        found = finding(t.FindingKind.JOB_PREEMPTED, "job", text, now, evidence={"by": by.spec.id})
        incident = self.c.book.live()
        if incident is None:
            incident = self.c.book.open(found, now)
        else:
            self.c.book.attach(incident, found)
        incident.action, incident.reason = policy.Move.REQUEUE.value, text
        incident.state = IncidentState.RECOVERING
        incident.source, incident.step_resumed, incident.generation_from = "store", None, job.generation
        incident.enter("suspended", now.wall)
        job.uncounted_restarts += 1  # it is no fault of the job's
        self.c.traffic.reset()
        self.c.life.pending_diagnosis = None
        actions = self.c.life.requeue(job, self.c.nodes, now)
        return [books.saved(incident), *actions, *self.recovery.entered(job, now)]
