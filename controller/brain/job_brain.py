"""All decisions about one job: reports of its workers, requests of operators, deadlines. Pure."""

import base64

from holdfast.base.errors import Conflict
from holdfast.controller.brain.job_frames import JobFrames
from holdfast.controller.cluster import incidents as books
from holdfast.controller.cluster.alerts import Alerts
from holdfast.controller.detectors.base import table
from holdfast.controller.detectors.job_detectors import JobDetectors
from holdfast.controller.diagnosis.diagnoses import Diagnoses
from holdfast.controller.diagnosis.suspects import Suspects
from holdfast.controller.hang.watch import HangWatch
from holdfast.controller.job.elastic import Elastic
from holdfast.controller.job.ending.finish import Ending
from holdfast.controller.job.ending.unended import would_not_end
from holdfast.controller.job.lifecycle import Failure
from holdfast.controller.job.node_loss import NodeLoss
from holdfast.controller.job.planned_watch import PlannedWatch
from holdfast.controller.job.preemption import Preemption
from holdfast.controller.job.recovery import Recovery
from holdfast.controller.job.requests import Requests
from holdfast.controller.job.stages import Stage
from holdfast.controller.job.state import JobState
from holdfast.controller.job.store_watch import StoreWatch
from holdfast.controller.job.straggler_watch import StragglerWatch
from holdfast.controller.job.worker_exits import WorkerExits
from holdfast.controller.state.events import Action, Record
from holdfast.controller.state.incidents import Finding, IncidentState
from holdfast.controller.state.model import Instant, JobStatus
from holdfast.controller.state.ranks import RankTable
from holdfast.wire import messages as msg
from holdfast.wire import types as t


class JobBrain:
    def __init__(self, job: JobState, alerts: Alerts, diagnoses: Diagnoses) -> None:
        self.c = job
        self.recovery = Recovery(job, alerts)
        self.requests = Requests(job)
        self.ending = Ending(job)
        self.node_loss = NodeLoss(job, self.recovery, self.ending)
        self.elastic = Elastic(job, self.recovery, self.requests)
        self.preemption = Preemption(job, self.recovery, self.requests)
        self.suspects = Suspects(job, self.recovery, diagnoses)
        self.stores = StoreWatch(job)
        self.stragglers = StragglerWatch(job, self.recovery)
        self.hangs = HangWatch(job, self.recovery)
        self.detectors = JobDetectors(job.tuning)
        self.plans = PlannedWatch(job)
        self.frames = JobFrames(job, self.recovery, self.requests, self.hangs, self.detectors, self.plans)
        self.exits = WorkerExits(job, self.recovery, self.ending)

    @property
    def is_settled(self) -> bool:
        """Is the job over, and nothing about it left to decide?"""
        is_quiet = self.stores.is_quiet and self.stragglers.is_quiet
        return self.c.job.state.ended and self.c.time.ended and is_quiet

    # --- what people request -----------------------------------------------------------------------------------

    def submitted(self, now: Instant) -> list[Action]:
        job = self.c.job
        self.c.ranks = RankTable(job.spec.world)
        self.c.time.begin(now.wall)
        self.c.progress_at = now.mono
        actions = self.c.life.begin(job, self.c.nodes, now)
        return actions + self.recovery.entered(job, now)

    def stop(self, grace: float, now: Instant) -> list[Action]:
        self.c.job.stop_asked = True
        return [Record("job", self.c.job.spec.id, self.c.job.to_doc()), *self._end_by_hand(grace, now)]

    def _end_by_hand(self, grace: float, now: Instant) -> list[Action]:
        live = self.c.book.live()
        closed = books.closed(live, IncidentState.CLOSED, now) if live is not None else []
        final = (JobStatus.STOPPED, "stopped by an operator", 130)
        return closed + self.c.life.end(self.c.job, self.c.nodes, final, grace, now)

    def restart(self, now: Instant) -> list[Action]:
        """Conflict when it does not run."""
        if self.c.life.stage is not Stage.UP:
            raise Conflict("no job is running")
        finding = table.finding(t.FindingKind.RESTART, "job", "restarted by an operator", now)
        actions = self.recovery.found(finding, now)
        self.c.job.uncounted_restarts += 1  # it counts neither as a try nor towards max_restarts
        return [*actions, *self.hangs.keep_stacks()]

    # --- what agents report ------------------------------------------------------------------------------------

    def store_failed(self, node: str, finding: Finding, now: Instant) -> list[Action]:
        """A node of the job cannot store checkpoints; a report by a node outside the job is counted."""
        if not self.c.job.ranks_on(node) and not self.c.job.state.ended:
            self.c.drop("foreign")
            return []
        return self.stores.reported(node, finding, now)

    def progressed(self, seen: t.ProgressSeen, node: str, now: Instant) -> list[Action]:
        job = self.c.job
        if seen.source == t.GRADIENTS:  # read at the exit of a worker, it is of the generation before
            self.frames.origins.saw(seen, node)
            return self.frames.origin(now)
        if job.state.ended or seen.generation != job.generation:
            return []
        before = job.progress.advanced
        job.progress.saw(seen.source, seen.number, seen.count, seen.text[:200])
        if job.progress.advanced != before:  # what a restarted controller must know of this attempt
            return [Record("job", job.spec.id, job.to_doc())]
        return []

    def printed(self, matched: t.LogMatched, now: Instant) -> list[Action]:
        """A loss that one of its workers printed is far too high."""
        job = self.c.job
        if job.state.ended or matched.generation != job.generation:
            return []
        return self.recovery.found_at_nodes(self.detectors.printed(matched, job.best_step, now), now)

    def planned(self, published: t.PlanPublished) -> list[Action]:
        """Rank 0 reports for the job, and its agent for rank 0."""
        job, known = self.c.job, self.c.plan
        if published.generation != job.generation:
            return []
        self.c.plan = published
        if known is not None and known.data == published.data:
            return []  # every generation reports it again: one copy in the journal is enough
        data = base64.b64encode(published.data).decode()
        doc = {"job": published.job, "generation": published.generation, "data": data}
        return [Record("plan", job.spec.id, doc)]

    def advanced(self, result: msg.CommandResult, now: Instant) -> list[Action]:
        """An answer that a transition of the job waits for."""
        job = self.c.job
        failure = self.c.life.answered(result)
        if job.state.ended:
            return []
        if failure is not None and self.c.life.stage is not Stage.ENDING:
            if failure.what == "stop":
                return would_not_end(self.recovery, failure, now)
            if failure.is_refused:
                return self._refused(failure, now)
            finding = self.recovery.command_finding(failure.kind, failure.node, failure.error, now)
            return self.recovery.found(finding, now)
        return self.advance(now)

    def _refused(self, failure: Failure, now: Instant) -> list[Action]:
        """The request itself is wrong: the job ends as a command with bad input does."""
        live = self.c.book.live()
        closed = books.closed(live, IncidentState.FAILED, now) if live is not None else []
        final = (JobStatus.FAILED, f"{failure.node}: {failure.error}", 2)
        return closed + self.c.life.end(self.c.job, self.c.nodes, final, 0.0, now)

    def advance(self, now: Instant) -> list[Action]:
        """Go on as far as answers, nodes and the queue allow."""
        return [*self.c.life.advance(self.c.job, self.c.nodes, now), *self.recovery.entered(self.c.job, now)]

    # --- time --------------------------------------------------------------------------------------------------

    def tick(self, absent: bool, now: Instant) -> list[Action]:
        """`absent`: the controller itself did not run for a while."""
        job = self.c.job
        if job.state.ended:
            return []
        actions: list[Action] = []
        if self.c.life.stage is Stage.UP and not absent:
            actions += self.hangs.look(job, now)
        actions += self.requests.due_faults(job, now) if job.spec.faults else []
        actions += self.recovery.survived(job, now)
        actions += self.recovery.settle(now)
        actions += self.node_loss.tick(job, now)
        actions += self.suspects.tick(job, now)
        actions += self.elastic.tick(job, now) if job.spec.node_counts else []
        actions += self.preemption.tick(now)
        actions += self.recovery.orphan_logs(now)
        if self.c.life.is_adopting and now.mono >= self.c.reconcile_until:
            self.c.life.unreported.clear()  # a node that has not come back is awaited as in any running generation
        if self.c.life.stage is Stage.IDLE and not job.state.ended and self.c.reconciled(now):
            # The controller died in the middle of a change, or of ending the job.
            actions += self._end_by_hand(0.0, now) if job.stop_asked else self.recovery.clear_for_restart(job, now)
        actions += self.exits.finish_if_done(job, now)
        return [*actions, *self.advance(now)]

    def extend_deadlines(self, away: float, now: Instant) -> None:
        """The controller stood still for so long: that time counts against no node."""
        self.c.progress_at = min(now.mono, self.c.progress_at + away)
        self.c.life.deadline += away
