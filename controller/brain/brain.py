"""The controller's decisions, all of them: an event and an instant go in, actions come out. No I/O, no clock.

The order of an answer matters: every `Record` in a batch is durable before any `Send` of it leaves.
"""

import base64
from typing import Any

from holdfast.base.errors import UsageError
from holdfast.controller.brain.heartbeats import Heartbeats
from holdfast.controller.brain.membership import Membership
from holdfast.controller.brain.peer_probe import Knocking
from holdfast.controller.brain.restore import restore
from holdfast.controller.detectors.agents.silence import silence_finding
from holdfast.controller.detectors.base import table
from holdfast.controller.detectors.network.traffic import TrafficDetector
from holdfast.controller.detectors.node_detectors import Ensemble
from holdfast.controller.detectors.workers.training import (
    full_finding,
    log_finding,
    notice_finding,
    store_finding,
)
from holdfast.controller.diagnosis.diagnoses import Diagnoses
from holdfast.controller.diagnosis.suspects import Suspects
from holdfast.controller.hang.watch import HangWatch
from holdfast.controller.job import incidents as books
from holdfast.controller.job import timekeeping
from holdfast.controller.job.cluster import Cluster
from holdfast.controller.job.elastic import Elastic
from holdfast.controller.job.ending import Ending
from holdfast.controller.job.lifecycle import Lifecycle, Stage
from holdfast.controller.job.node_loss import Absence
from holdfast.controller.job.recovery import Recovery
from holdfast.controller.job.requests import Requests
from holdfast.controller.job.store_watch import StoreWatch
from holdfast.controller.job.worker_exits import WorkerExits
from holdfast.controller.state.commands import CommandBook
from holdfast.controller.state.events import (
    Action,
    AgentJoined,
    AgentLeft,
    BrainEvent,
    CheckpointAsked,
    CordonAsked,
    DiagnoseAsked,
    EventSeen,
    EvictAsked,
    FaultAsked,
    Found,
    FrameSeen,
    JobSubmitted,
    Record,
    RestartAsked,
    ResultSeen,
    Say,
    StacksAsked,
    StopAsked,
    Tick,
)
from holdfast.controller.state.goodput import Goodput
from holdfast.controller.state.ledger import Ledger, StepRow
from holdfast.controller.state.model import (
    IncidentState,
    Instant,
    Job,
    JobState,
    Options,
    RankTable,
)
from holdfast.facts import faults as fault_syntax
from holdfast.wire import messages as msg
from holdfast.wire import types as t

_HEARD = frozenset({t.NodeState.HEALTHY, t.NodeState.SPARE, t.NodeState.JOINING})
_ABSENT = 0.2  # seconds that we did not run at all, beyond which we did not hear anybody


class Brain:
    def __init__(self, boot: str, options: Options | None = None) -> None:
        """`boot`: unique for every start of the controller; command ids begin with it."""
        options = options or Options()
        commands = CommandBook(boot)
        self.c = Cluster(options, Lifecycle(commands, options, self._advanced), commands)
        self.recovery = Recovery(self.c)
        self.requests = Requests(self.c)
        self.ending = Ending(self.c)
        self.absence = Absence(self.c, self.recovery, self.ending)
        self.membership = Membership(self.c, self.recovery, self.absence)
        self.elastic = Elastic(self.c, self.recovery, self.requests)
        self.diagnoses = Diagnoses(self.c)
        self.suspects = Suspects(self.c, self.recovery, self.diagnoses)
        self.stores = StoreWatch(self.c)
        self.hangs = HangWatch(self.c, self.recovery)
        self.detectors = Ensemble(self.c.tuning)
        self.heartbeats = Heartbeats(self.c, self.recovery, self.requests, self.hangs, self.detectors)
        self.knocking = Knocking(self.c, self.recovery.found_at_nodes)
        self.exits = WorkerExits(self.c, self.recovery, self.ending)
        self.version = 0
        self._ticked_at, self._late = 0.0, 0.0  # mono of the last tick; seconds that frames may have waited for us
        self.damaged: list[str] = []
        """What of an earlier life's journal could not be understood, one line each."""

    def restore(self, entities: list[tuple[str, str, dict[str, Any]]], steps: list[StepRow], now: Instant) -> None:
        """Take up what an earlier life of the controller wrote down; nodes will report what really is."""
        self.damaged = restore(self.c, self.diagnoses, self.stores, entities, steps, now)

    # --- the one way in ----------------------------------------------------------------------------------------

    def handle(self, event: BrainEvent, now: Instant) -> list[Action]:
        self.version += 1
        actions = self._decide(event, now)
        if isinstance(event, FrameSeen) and not event.frame.steps:
            return actions  # of thousands a second; what else it brings is booked with the next tick
        return [*actions, *timekeeping.keep(self.c, now)]

    def _decide(self, event: BrainEvent, now: Instant) -> list[Action]:
        match event:
            case FrameSeen():
                return self.heartbeats.frame(event, now)
            case Tick():
                return self._tick(event, now)
            case EventSeen():
                return self._event(event, now)
            case ResultSeen():
                return self._result(event, now)
            case Found():
                return self.recovery.found(event.finding, now)
            case AgentJoined():
                return self.membership.joined(event, now)
            case AgentLeft():
                return [*self.membership.left(event, now), *self.diagnoses.left(event.node, now)]
            case JobSubmitted():
                return self._submitted(event, now)
            case StopAsked():
                return self._stop_asked(event, now)
            case RestartAsked():
                return self._restart_asked(now)
            case FaultAsked():
                return self.requests.fault(fault_syntax.parse_fault(event.fault))
            case CheckpointAsked():
                return self.requests.checkpoint()
            case StacksAsked():
                return self.hangs.stacks.ask(now)
            case EvictAsked():
                return self.membership.evict(event.node, now)
            case DiagnoseAsked():
                return self.diagnoses.asked(event, now)
            case CordonAsked():
                is_in_use = self.c.active is not None and bool(self.c.active.ranks_on(event.node))
                return [
                    *self.membership.cordon(event),
                    *(self.requests.precaution(now) if event.on and is_in_use else []),
                ]

    # --- events of agents --------------------------------------------------------------------------------------

    def _event(self, event: EventSeen, now: Instant) -> list[Action]:
        match event.event:
            case t.WorkerExited() as exited:
                return self.exits.exited(exited, event.node, now)
            case t.LogMatched() as matched:
                if matched.rank >= 0 and not self.c.is_of(event.node, matched.job, matched.generation, matched.rank):
                    return []
                actions = self._logged(matched, event.node, now)
                # What the host itself says (its kernel, its GPU driver) comes before the worker feels it.
                foretells = matched.rank < 0 and matched.severity is not t.Severity.INFO
                return actions + (self.requests.precaution(now) if foretells else [])
            case t.AgentNotice(kind="checkpoint-store", severity=t.Severity.WARNING) as notice:
                if not self._is_of_its_job(event.node, notice):
                    return []
                return self.stores.told(event.node, store_finding(notice, now), now)
            case t.AgentNotice(kind="disk-full") as notice:
                if (node := self.c.nodes.get(event.node)) is not None:
                    node.refused_at = now.mono
                return self.recovery.found(full_finding(notice, event.node, now), now)
            case t.AgentNotice() as notice:
                actions = self.recovery.alert(notice_finding(notice, event.node, now), now)
                if notice.kind != "drain":
                    return actions
                self.membership.leaving(event.node)
                return actions + self.requests.precaution(now)
            case t.PlanPublished() as published:
                return self._planned(published, event.node)
            case t.ProgressSeen() as seen:
                is_its = self.c.is_of(event.node, seen.job, seen.generation, seen.rank)
                return self._progressed(seen) if is_its else []
            case t.StateRestored() as told:
                job = self.c.job
                is_its = job is not None and self.c.is_of(event.node, told.job, told.generation, 0)
                return self.recovery.restored(told, now) if is_its else []

    def _is_of_its_job(self, node: str, notice: t.AgentNotice) -> bool:
        """Is it about the job that the node has ranks of? Counts it if not."""
        job = self.c.job
        if job is None or notice.job not in ("", job.spec.id):
            self.c.drop("stale")
            return False
        if not job.ranks_on(node) and not job.state.ended:
            self.c.drop("foreign")
            return False
        return True

    def _logged(self, matched: t.LogMatched, name: str, now: Instant) -> list[Action]:
        node = self.c.nodes.get(name)
        found = self.detectors.logged(matched, node, now) if node is not None and matched.rank < 0 else []
        if found:
            return self.recovery.found_at_nodes(found, now)
        return self.recovery.logged(log_finding(matched, name, now), matched.generation, now)

    def _progressed(self, seen: t.ProgressSeen) -> list[Action]:
        job = self.c.active
        if job is not None and (seen.job, seen.generation) == (job.spec.id, job.generation):
            before = job.progress.advanced
            job.progress.saw(seen.source, seen.number, seen.count, seen.text[:200])
            if job.progress.advanced != before:  # what a restarted controller must know of this life
                return [Record("job", job.spec.id, job.to_doc())]
        return []

    def _planned(self, published: t.PlanPublished, node: str) -> list[Action]:
        job, known = self.c.job, self.c.plan
        if job is None or not self.c.is_of(node, published.job, published.generation, 0):
            return []  # rank 0 speaks for the job, and its agent for rank 0
        if published.generation != job.generation:
            return []
        self.c.plan = published
        if known is not None and known.data == published.data:
            return []  # every generation tells again: one copy in the journal is enough
        data = base64.b64encode(published.data).decode()
        return [Record("plan", "newest", {"job": published.job, "generation": published.generation, "data": data})]

    # --- answers -----------------------------------------------------------------------------------------------

    def _result(self, event: ResultSeen, now: Instant) -> list[Action]:
        answered = self.c.commands.take(event.node, event.result)
        if answered is None:
            self.c.drop("answer")
            return []
        return answered(event.result, now)

    def _advanced(self, result: msg.CommandResult, now: Instant) -> list[Action]:
        """An answer that a transition of the job waits for."""
        job = self.c.job
        failure = self.c.life.answered(result)
        if job is None or job.state.ended:
            return []
        if failure is not None and self.c.life.stage is not Stage.ENDING:
            if failure.what == "stop":
                return self.recovery.would_not_end(failure.node, failure.error, now)
            finding = self.recovery.command_finding(failure.kind, failure.node, failure.error, now)
            return self.recovery.found(finding, now)
        return [*self.c.life.advance(job, self.c.nodes, now), *self.recovery.entered(job, now)]

    # --- the user's wishes -------------------------------------------------------------------------------------

    def _submitted(self, event: JobSubmitted, now: Instant) -> list[Action]:
        if self.c.job is not None and not self.c.job.state.ended:
            raise UsageError(f"job {self.c.job.spec.id} is {self.c.job.state.value}: one job at a time; stop it first")
        for text in event.spec.faults:
            fault_syntax.parse_fault(text)
        self.c.job = Job(event.spec, submitted_at=now.wall)
        self.c.ledger, self.c.traffic, self.c.plan = Ledger(), TrafficDetector(self.c.tuning), None
        self.detectors.begin_job()
        self.c.ranks = RankTable(event.spec.world)
        self.c.time = Goodput()
        self.c.time.begin(now.wall)
        self.c.progress_at = now.mono
        actions = self.c.life.begin(self.c.job, self.c.nodes, now)
        return actions + self.recovery.entered(self.c.job, now)

    def _stop_asked(self, event: StopAsked, now: Instant) -> list[Action]:
        job = self.c.job
        if job is None or job.state.ended:
            raise UsageError("no job is running")
        job.stop_asked = True
        live = self.c.book.live()
        actions: list[Action] = [Record("job", job.spec.id, job.to_doc())]
        actions += books.closed(live, IncidentState.CLOSED, now) if live is not None else []
        return actions + self._end_by_hand(job, event.grace, now)

    def _restart_asked(self, now: Instant) -> list[Action]:
        job = self.c.job
        if job is None or job.state.ended or self.c.life.stage is not Stage.UP:
            raise UsageError("no job is running that could be restarted")
        finding = table.finding(t.FindingKind.RESTART, "job", "restarted by hand", now)
        actions = self.recovery.found(finding, now)
        job.uncounted_restarts += 1  # it counts neither as a try nor towards max_restarts
        return [*actions, *self.hangs.keep_stacks()]

    def _end_by_hand(self, job: Job, grace: float, now: Instant) -> list[Action]:
        return self.c.life.end(job, self.c.nodes, (JobState.STOPPED, "stopped by hand", 130), grace, now)

    # --- time --------------------------------------------------------------------------------------------------

    def _tick(self, event: Tick, now: Instant) -> list[Action]:
        actions = [*self.diagnoses.tick(now), *self.stores.tick(now)]
        away = max(0.0, event.lag - event.worked)
        absent = away >= _ABSENT
        if absent:
            self._pardon(away, now)
        # What waited while we were busy is read within about as long.
        self._late = max(event.lag - (away if absent else 0.0), self._late - (now.mono - self._ticked_at))
        self._ticked_at = now.mono
        lag = self._late
        spoken = now.mono - lag - self.c.options.silence_floor  # who spoke since then is not silent
        for node in [node for node in self.c.nodes.values() if node.frame_at < spoken and node.state in _HEARD]:
            finding = silence_finding(node, now, lag, self.c.options)
            if finding is not None:
                node.state, node.reason = t.NodeState.SUSPECT, finding.text
                holds = self.c.job is not None and not self.c.job.state.ended and self.c.job.ranks_on(node.name)
                actions += self.recovery.found(finding, now) if holds else [Say("node.silent", {"text": finding.text})]
                actions += self.knocking.ask(node)
        actions += self.recovery.found_at_nodes(self.detectors.due(now), now)
        self.membership.give_up(now)
        job = self.c.job
        if job is None or job.state.ended:
            return actions
        if self.c.life.stage is Stage.UP and not absent:
            actions += self.hangs.look(job, now)
        actions += self.requests.due_faults(job, now) if job.spec.faults else []
        actions += self.recovery.survived(job, now)
        actions += self.recovery.settle(now)
        actions += self.absence.tick(job, now)
        actions += self.suspects.tick(job, now)
        actions += self.elastic.tick(job, now) if job.spec.node_counts else []
        actions += self.recovery.stray_logs(now)
        if self.c.life.is_adopting and now.mono >= self.c.reconcile_until:
            self.c.life.unreported.clear()  # whoever has not come back is awaited as in any running generation
        if self.c.life.stage is Stage.IDLE and not job.state.ended and self.c.reconciled(job, now):
            # We died in the middle of a change, or of ending the job.
            again = self._end_by_hand(job, 0.0, now) if job.stop_asked else self.recovery.clear_for_restart(job, now)
            actions += again
        actions += self.exits.finish_if_done(job, now)
        return [*actions, *self.c.life.advance(job, self.c.nodes, now), *self.recovery.entered(job, now)]

    def _pardon(self, away: float, now: Instant) -> None:
        """We stood still ourselves (stopped, starved, a laptop asleep): that time counts against nobody, not even
        in the next tick, which may come before the first frame that waited for us is read."""
        for node in self.c.nodes.values():
            node.frame_at = min(now.mono, node.frame_at + away) if node.frame_at else 0.0
        self.c.progress_at = min(now.mono, self.c.progress_at + away)
        self.c.life.deadline += away
