"""The controller's decisions, all of them: an event and an instant go in, actions come out. No I/O, no clock.

What concerns one job goes to that job's brain. Nodes, their diagnoses, the queue and the nodes of each job are decided
here. The order of an answer matters: every `Record` in a batch is durable before any `Send` of it leaves.
"""

import dataclasses
from typing import Any

from holdfast.base.errors import Conflict
from holdfast.controller.brain.allocator import Allocator
from holdfast.controller.brain.heartbeats import Heartbeats
from holdfast.controller.brain.job_brain import JobBrain
from holdfast.controller.brain.membership import Membership
from holdfast.controller.brain.peer_probe import PeerProbe
from holdfast.controller.brain.quarantine import Quarantine
from holdfast.controller.brain.restore import Steps, restore
from holdfast.controller.brain.roster import Roster
from holdfast.controller.cluster.alerts import Alerts
from holdfast.controller.cluster.state import ClusterState
from holdfast.controller.detectors.agents.silence import silence_finding
from holdfast.controller.detectors.base.table import Response
from holdfast.controller.detectors.node_detectors import NodeDetectors
from holdfast.controller.detectors.workers.losses import PRINTED
from holdfast.controller.detectors.workers.training import full_finding, log_finding, notice_finding, store_finding
from holdfast.controller.diagnosis.diagnoses import Diagnoses
from holdfast.controller.job import policy, timekeeping
from holdfast.controller.job.lifecycle import Lifecycle
from holdfast.controller.job.requests import injection
from holdfast.controller.job.state import JobState
from holdfast.controller.state.commands import CommandBook, ignored
from holdfast.controller.state.events import (
    Action,
    AgentJoined,
    AgentLeft,
    BrainEvent,
    CheckpointRequested,
    CordonRequested,
    DiagnoseRequested,
    EventSeen,
    EvictRequested,
    FaultRequested,
    Found,
    FrameSeen,
    JobSubmitted,
    PlanCompared,
    RestartRequested,
    ResultSeen,
    Say,
    StacksRequested,
    StopRequested,
    StragglersSeen,
    Tick,
)
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Job, Options
from holdfast.facts import faults as fault_syntax
from holdfast.wire import types as t

_HEARD = frozenset({t.NodeState.HEALTHY, t.NodeState.SPARE, t.NodeState.JOINING})
_ABSENT = 0.2  # seconds without running at all, beyond which no agent was heard


class ClusterBrain:
    def __init__(self, boot: str, options: Options | None = None) -> None:
        """`boot`: unique for every start of the controller; command ids begin with it."""
        self.c = ClusterState(options or Options(), CommandBook(boot))
        self.alerts = Alerts(self.c)
        self.diagnoses = Diagnoses(self.c)
        self.detectors = NodeDetectors(self.c.tuning)
        self.jobs = Roster(self.c, self._build)
        self.allocator = Allocator(self.c, lambda job: self.jobs.brains[job.spec.id].c.life)
        self.membership = Membership(self.c, self.jobs, self.alerts)
        self.heartbeats = Heartbeats(self.c, self.jobs, self.detectors, self.found_at_nodes)
        self.peer_probe = PeerProbe(self.c, self.found_at_nodes)
        self.quarantine = Quarantine(self.c, self.jobs, self.diagnoses, self.alerts)
        self.version = 0
        self._ticked_at, self._late = 0.0, 0.0  # mono of the last tick; seconds that frames may have waited to be read
        self.damaged: list[str] = []
        """What could not be read in the journal of an earlier run, one line each."""

    def _build(self, job: Job) -> JobBrain:
        life = Lifecycle(
            self.c.commands,
            self.c.options,
            on_answer=lambda result, now: self.jobs.brains[job.spec.id].advanced(result, now),
            choose=lambda job, now: self.jobs.brains[job.spec.id].elastic.choose(*self.allocator.choose(job), now),
            on_nodes=self._holds_others,
        )
        state = JobState(
            self.c,
            job,
            life,
            free_nodes=lambda: self.allocator.free_nodes(job),
            is_queued=lambda: self.allocator.is_queued(job),
        )
        return JobBrain(state, self.alerts, self.diagnoses)

    def _holds_others(self, job: Job) -> None:
        if job.state.ended:
            self.c.let_go(job)
        else:
            self.c.hold(job)

    def restore(self, entities: list[tuple[str, str, dict[str, Any]]], steps: Steps, now: Instant) -> None:
        """Restore from the journal of an earlier run; the nodes will report the actual state."""
        self.damaged = restore(self.c, self.jobs, self.diagnoses, entities, steps, now)

    # --- the one way in ----------------------------------------------------------------------------------------

    def handle(self, event: BrainEvent, now: Instant) -> list[Action]:
        self.version += 1
        if isinstance(event, FrameSeen):
            actions = self.heartbeats.frame(event, now)
            if not event.frame.steps:
                return actions  # of thousands a second; what else it brings is booked with the next tick
            touched = self.jobs.holders(event.node)
        else:
            self.allocator.begin_turn()
            actions = self._decide(event, now)
            touched = self.jobs.unsettled()
        kept = [timekeeping.keep(brain.c, now) for brain in touched]
        return [*actions, *(action for one in kept for action in one)]

    def _decide(self, event: BrainEvent, now: Instant) -> list[Action]:
        match event:
            case Tick():
                return self._tick(event, now)
            case EventSeen():
                return self._event(event, now)
            case ResultSeen():
                return self._result(event, now)
            case Found():
                return self._found(event, now)
            case StragglersSeen():
                seen = self.jobs.brains.get(event.job)
                return seen.stragglers.looked(event.seconds, event.costs, now) if seen is not None else []
            case PlanCompared():
                seen = self.jobs.brains.get(event.job)
                return seen.plans.compared(event) if seen is not None else []
            case AgentJoined():
                return self.membership.joined(event, now)
            case AgentLeft():
                return [*self.membership.left(event, now), *self.diagnoses.left(event.node, now)]
            case JobSubmitted():
                return self._submitted(event, now)
            case StopRequested():
                return self.jobs.wanted(event.job).stop(event.grace, now)
            case RestartRequested():
                return self.jobs.wanted(event.job).restart(now)
            case FaultRequested():
                return self._fault(event)
            case CheckpointRequested():
                return self.jobs.wanted(event.job).requests.checkpoint()
            case StacksRequested():
                return self.jobs.wanted(event.job).hangs.stacks.ask(now)
            case EvictRequested():
                return self.membership.evict(event.node, now)
            case DiagnoseRequested():
                return self.diagnoses.asked(event, now)
            case CordonRequested():
                return self._cordon(event, now)
        raise TypeError(f"unknown event: {type(event).__name__}")

    # --- events of agents --------------------------------------------------------------------------------------

    def _event(self, event: EventSeen, now: Instant) -> list[Action]:
        match event.event:
            case t.WorkerExited() as exited:
                brain = self._of(event.node, exited.job, exited.generation, exited.rank)
                return brain.exits.exited(exited, event.node, now) if brain is not None else []
            case t.LogMatched() as matched:
                return self._logged(matched, event.node, now)
            case t.AgentNotice() as notice:
                return self._noticed(notice, event.node, now)
            case t.PlanPublished() as published:
                brain = self._of(event.node, published.job, published.generation, 0)
                return brain.planned(published) if brain is not None else []
            case t.ProgressSeen() as seen:
                brain = self._of(event.node, seen.job, seen.generation, seen.rank)
                return brain.progressed(seen, event.node, now) if brain is not None else []
            case t.ImportsTimed() as timed:
                brain = self._of(event.node, timed.job, timed.generation, 0)
                return brain.recovery.imported(timed) if brain is not None else []
            case t.StateRestored() as restored:
                brain = self._of(event.node, restored.job, restored.generation, 0)
                return brain.recovery.restored(restored, now) if brain is not None else []

    def _of(self, node: str, job: str, generation: int, rank: int) -> JobBrain | None:
        """The brain of the job of which this node holds, or held, that rank; None is counted."""
        found = self.c.find(node, job, generation, rank)
        return self.jobs.brains[found.spec.id] if found is not None else None

    def _logged(self, matched: t.LogMatched, name: str, now: Instant) -> list[Action]:
        if matched.rank >= 0:
            brain = self._of(name, matched.job, matched.generation, matched.rank)
            if matched.rule in PRINTED:
                return brain.printed(matched, now) if brain is not None else []
            finding = log_finding(matched, name, now)
            return brain.recovery.logged(finding, matched.generation, now) if brain is not None else []
        brains, node = self.jobs.all_about(name), self.c.nodes.get(name)
        found = self.detectors.logged(matched, node, now) if node is not None else []
        if found:
            actions = self.found_at_nodes(found, now)
        elif brains:
            finding = log_finding(matched, name, now)
            logged = [brain.recovery.logged(finding, matched.generation, now) for brain in brains]
            actions = [action for one in logged for action in one]
        elif matched.severity is t.Severity.CRITICAL:
            actions = self.alerts.found(log_finding(matched, name, now), now)
        else:
            actions = []
        # What the host itself says (its kernel, its GPU driver) comes before the worker feels it.
        if matched.severity is t.Severity.INFO:
            return actions
        return actions + [action for brain in brains for action in brain.requests.precaution(now)]

    def _noticed(self, notice: t.AgentNotice, name: str, now: Instant) -> list[Action]:
        if notice.kind == "checkpoint-store" and notice.severity is t.Severity.WARNING:
            brain = self.jobs.about(name, notice.job)
            if brain is None:
                self.c.drop("stale")
                return []
            return brain.store_failed(name, store_finding(notice, now), now)
        brain = self.jobs.about(name)
        if notice.kind == "disk-full":
            if (node := self.c.nodes.get(name)) is not None:
                node.refused_at = now.mono
            return self.found_at_nodes([full_finding(notice, name, now)], now)
        finding = notice_finding(notice, name, now)
        actions = self.alerts.alert(finding, brain.c.job if brain is not None else None, now)
        if notice.kind != "drain":
            return actions
        self.membership.leaving(name)
        return actions + [action for one in self.jobs.all_about(name) for action in one.requests.precaution(now)]

    # --- findings ----------------------------------------------------------------------------------------------

    def _found(self, event: Found, now: Instant) -> list[Action]:
        brain = self.jobs.about(event.finding.node, event.job)
        if brain is not None and event.finding.kind is t.FindingKind.STRAGGLER:
            return brain.stragglers.reported(event.finding, now)
        if brain is not None:
            return brain.recovery.found(event.finding, now)
        return self.alerts.found(event.finding, now) if policy.is_alert(event.finding.kind) else []

    def found_at_nodes(self, findings: list[Finding], now: Instant) -> list[Action]:
        """What nodes report of themselves, or what is found about them: given to the job that runs there, if any."""
        actions: list[Action] = []
        for finding in findings:
            brains = self.jobs.all_about(finding.node)
            for brain in brains:
                actions += brain.recovery.found_at_node(finding, now)
            actions += self._found_at_idle(finding, now) if not brains else []
        return actions

    def _found_at_idle(self, finding: Finding, now: Instant) -> list[Action]:
        broken = self.c.tuning.response(finding.kind) is Response.ACT and policy.is_broken(finding.kind)
        out = self.alerts.evict(finding.node, finding.text, now, quarantined=True) if broken else []
        return [*out, *self.alerts.found(finding, now)]

    # --- answers -----------------------------------------------------------------------------------------------

    def _result(self, event: ResultSeen, now: Instant) -> list[Action]:
        answered = self.c.commands.take(event.node, event.result)
        if answered is None:
            self.c.drop("answer")
            return []
        return answered(event.result, now)

    # --- what people request -----------------------------------------------------------------------------------

    def _submitted(self, event: JobSubmitted, now: Instant) -> list[Action]:
        for text in event.spec.faults:
            fault_syntax.parse_fault(text)
        if event.spec.id in self.c.jobs:
            raise Conflict(f"a job {event.spec.id} already exists")
        name = _free_name(event.spec.name, {job.spec.name for job in self.c.active()})
        brain = self.jobs.add(Job(dataclasses.replace(event.spec, name=name), submitted_at=now.wall))
        return brain.submitted(now)

    def _fault(self, event: FaultRequested) -> list[Action]:
        fault = fault_syntax.parse_fault(event.fault)
        if event.job or self.jobs.has_active:
            return self.jobs.wanted(event.job).requests.fault(fault)
        if fault.step is not None:
            raise Conflict(f"fault {str(fault)!r}: no job is running")
        return [*injection(self.c, None, fault, ignored)]

    def _cordon(self, event: CordonRequested, now: Instant) -> list[Action]:
        holders = self.jobs.holders(event.node) if event.on else []
        actions = self.membership.cordon(event, now)
        return actions + [action for holder in holders for action in holder.requests.precaution(now)]

    # --- time --------------------------------------------------------------------------------------------------

    def _tick(self, event: Tick, now: Instant) -> list[Action]:
        actions = self.diagnoses.tick(now)
        for brain in self.jobs.unsettled():
            actions += brain.stores.tick(now) + brain.stragglers.tick(now)
        away = max(0.0, event.lag - event.worked)
        absent = away >= _ABSENT
        if absent:
            self._extend_deadlines(away, now)
        # What waited while the controller was busy is read within about as long.
        self._late = max(event.lag - (away if absent else 0.0), self._late - (now.mono - self._ticked_at))
        self._ticked_at = now.mono
        actions += self._silent(self._late, now)
        actions += self.found_at_nodes(self.detectors.due(now), now)
        actions += self.membership.give_up(now)
        actions += self.quarantine.tick(now)
        for brain in self.jobs.active():
            actions += brain.tick(absent, now)
        return [*actions, *self._preempt(now)]

    def _silent(self, lag: float, now: Instant) -> list[Action]:
        """Nodes whose last frame is older than its limit."""
        actions: list[Action] = []
        spoken = now.mono - lag - self.c.options.silence_floor  # a node heard since then is not silent
        for node in [node for node in self.c.nodes.values() if node.frame_at < spoken and node.state in _HEARD]:
            finding = silence_finding(node, now, lag, self.c.options)
            if finding is not None:
                node.state, node.reason = t.NodeState.SUSPECT, finding.text
                holders = self.jobs.holders(node.name)
                said: list[Action] = [Say("node.silent", {"text": finding.text})] if not holders else []
                actions += said + [action for holder in holders for action in holder.recovery.found(finding, now)]
                actions += self.peer_probe.ask(node)
        return actions

    def _preempt(self, now: Instant) -> list[Action]:
        chosen = self.allocator.victims()
        if chosen is None:
            return []
        first, victims = chosen
        ordered = [self.jobs.brains[job.spec.id].preemption.order(first, now) for job in victims]
        return [action for one in ordered for action in one]

    def _extend_deadlines(self, away: float, now: Instant) -> None:
        """The controller itself stood still (stopped, starved, host asleep): that time counts against no node, also not
        in the next tick, which may come before the first waiting frame is read."""
        for node in self.c.nodes.values():
            node.frame_at = min(now.mono, node.frame_at + away) if node.frame_at else 0.0
        for brain in self.jobs.active():
            brain.extend_deadlines(away, now)


def _free_name(name: str, taken: set[str]) -> str:
    """The name, or with a number behind it where an active job has it: names label metrics."""
    number = 2
    found = name
    while found in taken:
        found, number = f"{name}-{number}", number + 1
    return found
