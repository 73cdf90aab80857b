"""The controller's decisions, all of them: an event and an instant go in, actions come out. No I/O, no clock.

The order of an answer matters: every `Record` in a batch is durable before any `Send` of it leaves.
"""

import base64
import math
from typing import Any

from holdfast import faults as fault_syntax
from holdfast import types as t
from holdfast.bounds import MAX_STEP
from holdfast.controller import comeback, timekeeping
from holdfast.controller import incidents as books
from holdfast.controller.absence import Absence
from holdfast.controller.cluster import Cluster
from holdfast.controller.detectors import table
from holdfast.controller.detectors.ensemble import Ensemble
from holdfast.controller.detectors.silence import note_arrival, silence_finding
from holdfast.controller.detectors.traffic import TrafficDetector
from holdfast.controller.detectors.training import (
    full_finding,
    log_finding,
    loss_finding,
    notice_finding,
    store_finding,
)
from holdfast.controller.diagnoses import Diagnoses
from holdfast.controller.elastic import Elastic
from holdfast.controller.ending import Ending
from holdfast.controller.events import (
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
from holdfast.controller.goodput import Goodput
from holdfast.controller.hang_watch import HangWatch
from holdfast.controller.knocking import Knocking
from holdfast.controller.ledger import Ledger, StepRow
from holdfast.controller.lifecycle import Lifecycle, Stage
from holdfast.controller.membership import Membership
from holdfast.controller.model import (
    RANK_STATES,
    Finding,
    IncidentState,
    Instant,
    Job,
    JobState,
    Node,
    Options,
    RankState,
    RankTable,
)
from holdfast.controller.recovery import Recovery
from holdfast.controller.requests import Requests
from holdfast.controller.store_watch import StoreWatch
from holdfast.controller.suspects import Suspects
from holdfast.controller.worker_exits import WorkerExits
from holdfast.errors import UsageError

_TRAIN, _RUNNING = t.PHASES.index(t.Phase.TRAIN), RANK_STATES.index(RankState.RUNNING)
_HEARD = frozenset({t.NodeState.HEALTHY, t.NodeState.SPARE, t.NodeState.JOINING})
_AHEAD = 3600.0  # seconds by which a node's clock may be ahead of ours
_ABSENT = 0.2  # seconds that we did not run at all, beyond which we did not hear anybody


class Brain:
    def __init__(self, boot: str, options: Options | None = None) -> None:
        """`boot`: unique for every start of the controller; command ids begin with it."""
        options = options or Options()
        self.c = Cluster(options, Lifecycle(boot, options))
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
        self.knocking = Knocking(self.c)
        self.exits = WorkerExits(self.c, self.recovery, self.ending)
        self.version = 0
        self._ticked_at, self._late = 0.0, 0.0  # mono of the last tick; seconds that frames may have waited for us
        self.steps_total = 0
        self.damaged: list[str] = []
        """What of an earlier life's journal could not be understood, one line each."""

    def restore(self, entities: list[tuple[str, str, dict[str, Any]]], steps: list[StepRow], now: Instant) -> None:
        """Take up what an earlier life of the controller wrote down; nodes will report what really is."""
        comeback.restore(self, entities, steps, now)

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
                return self._frame(event, now)
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

    # --- heartbeats --------------------------------------------------------------------------------------------

    def _frame(self, event: FrameSeen, now: Instant) -> list[Action]:
        node, frame = self.c.nodes.get(event.node), event.frame
        if node is None:
            return []
        note_arrival(node, now.mono, frame.cadence)
        actions: list[Action] = []
        if node.state in (t.NodeState.SUSPECT, t.NodeState.LOST) and node.connected:
            # One that was given up has its orders to stop in that stream; while a generation ends, we wait for them.
            self.c.set_healthy(node)
            actions += self.c.life.node_back(self.c.active, node.name, now) if self.c.active else []
        if frame.host:
            node.host, node.host_at = frame.host, now.mono
        for gauges in frame.gpus:
            node.gpus[gauges.index] = gauges.values
        fresh_bytes = self._count_bytes(node, frame)
        job = self.c.active
        if job is None:
            return actions + self._gauges(node, frame, False, now)
        held = job.ranks_on(node.name)
        for sample in frame.workers:
            if sample.rank in held and sample.generation == job.generation:
                self.c.ranks.update(sample, now.mono, node.lag, frame.cadence)
                if sample.meters is not None:
                    actions += self._found(self.detectors.gradients(sample.step, sample.meters, now), now)
        busy = self.c.life.stage is Stage.UP and self._busy(job.ranks_on(node.name))
        actions += self._gauges(node, frame, busy, now)
        for record in frame.steps:
            actions += self._step(record, node.name, now)
        timekeeping.frame(self.c, job, node.name, frame)
        return actions + self._traffic(job, node, frame, fresh_bytes, busy, now) if frame.nics else actions

    def _gauges(self, node: Node, frame: t.Frame, busy: bool, now: Instant) -> list[Action]:
        if not (frame.host or frame.gpus):
            return []
        return self._found(self.detectors.gauges(node, frame, busy, now), now)

    def _found(self, findings: list[Finding], now: Instant) -> list[Action]:
        return [action for finding in findings for action in self.recovery.found_at_node(finding, now)]

    def _busy(self, ranks: range) -> bool:
        """Do all these ranks train?"""
        part = slice(ranks.start, ranks.stop)
        training = (self.c.ranks.phase[part] == _TRAIN) & (self.c.ranks.state[part] == _RUNNING)
        return bool(ranks) and bool(training.all())

    def _count_bytes(self, node: Node, frame: t.Frame) -> int:
        """Bytes since the node's last frame, both directions; keeps its running rates."""
        if not frame.nics:
            return 0
        tx, rx = sum(n.tx_total for n in frame.nics), sum(n.rx_total for n in frame.nics)
        width = (frame.mono_ns - node.counted_ns) / 1e9
        fresh_tx, fresh_rx = max(0, tx - node.tx_total), max(0, rx - node.rx_total)
        first = not node.counted_ns or width <= 0
        node.tx_total, node.rx_total, node.counted_ns = tx, rx, frame.mono_ns
        if first:
            return 0
        weight = min(1.0, width)  # a running mean over about a second
        node.tx_rate += weight * (fresh_tx / width - node.tx_rate)
        node.rx_rate += weight * (fresh_rx / width - node.rx_rate)
        return fresh_tx + fresh_rx

    def _traffic(self, job: Job, node: Node, frame: t.Frame, fresh: int, busy: bool, now: Instant) -> list[Action]:
        ranks = job.ranks_on(node.name)
        if len(job.nodes) < 2 or not ranks or self.c.life.stage is not Stage.UP:
            return []
        median = float(self.c.ranks.median_step[ranks.start])
        finding = self.c.traffic.observe(node.name, fresh, busy, median, self.c.progress_at, now)
        # Quiet is a fault only where everybody waits in communication: a rank that saves or evaluates is in none.
        if finding is not None and all(self.c.ranks.operation) and self.hangs.is_transfer_stuck:
            return self.recovery.found(finding, now)
        return self._found(self.detectors.traffic(node, frame, job, self.c.ranks, now), now)

    def _step(self, record: t.StepRecord, node: str, now: Instant) -> list[Action]:
        job = self.c.job
        if job is None or record.generation > job.generation or record.rank >= self.c.ranks.world:
            return []
        if record.generation == job.generation and record.rank not in job.ranks_on(node):
            return []  # not its to tell
        if record.end_wall_ns > (now.wall + _AHEAD) * 1e9:
            record = record._replace(end_wall_ns=int(now.wall * 1e9))
        actions: list[Action] = []
        if record.is_counted:
            if not job.progress.counted:
                job.progress.counted = True
                actions.append(Record("job", job.spec.id, job.to_doc()))
            record = record._replace(step=min(record.step + job.progress.base(record.generation), MAX_STEP))
        if record.generation == job.generation:
            # An agent that was restarted reads its workers' last steps again.
            if record.step <= self.c.ranks.counted[record.rank]:
                self.c.ledger.complete(record)  # nor do we know, after a restart of ours, whose record was there
                return actions
            self.c.ranks.counted[record.rank] = record.step
        elif self.c.ledger.has(record):
            self.c.ledger.complete(record)  # last words of an earlier life, read again by the agent's successor
            return actions
        finding = loss_finding(record, node, now) if record.generation == job.generation else None
        if finding is not None:
            actions += self.recovery.found(finding, now)
        is_new = self.c.ledger.add(record)
        if record.generation == job.generation and (is_new or not math.isnan(record.loss)):
            actions += self._found(self.detectors.step(record, is_new, now), now)
        if not is_new:
            return actions
        self.steps_total += 1
        timekeeping.step(self.c, job, record, now)
        self.c.progress_at = now.mono
        if record.generation == job.generation and finding is None:  # a loss that is no number is no progress
            job.best_step = max(job.best_step, record.step)
            job.life_first = record.step if job.life_first < 0 else min(job.life_first, record.step)
            job.life_last = max(job.life_last, record.step)
            actions += self.recovery.resumed(record, now)
        return actions + self.requests.due_faults(job, now)

    # --- events of agents --------------------------------------------------------------------------------------

    def _event(self, event: EventSeen, now: Instant) -> list[Action]:
        match event.event:
            case t.WorkerExited() as exited:
                return self.exits.exited(exited, event.node, now)
            case t.LogMatched() as matched:
                actions = self._logged(matched, event.node, now)
                # What the host itself says (its kernel, its GPU driver) comes before the worker feels it.
                foretells = matched.rank < 0 and matched.severity is not t.Severity.INFO
                return actions + (self.requests.precaution(now) if foretells else [])
            case t.AgentNotice(kind="checkpoint-store", severity=t.Severity.WARNING) as notice:
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
                return self._progressed(seen)
            case t.StateRestored() as told:
                job = self.c.job
                is_ours = job is not None and told.job == job.spec.id and 0 in job.ranks_on(event.node)
                return self.recovery.restored(told, now) if is_ours else []

    def _logged(self, matched: t.LogMatched, name: str, now: Instant) -> list[Action]:
        node = self.c.nodes.get(name)
        found = self.detectors.logged(matched, node, now) if node is not None and matched.rank < 0 else []
        if found:
            return self._found(found, now)
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
        if job is None or published.job != job.spec.id or published.generation != job.generation:
            return []
        if 0 not in job.ranks_on(node):
            return []  # rank 0 speaks for the job, and its agent for rank 0
        self.c.plan = published
        if known is not None and known.data == published.data:
            return []  # every generation tells again: one copy in the journal is enough
        data = base64.b64encode(published.data).decode()
        return [Record("plan", "newest", {"job": published.job, "generation": published.generation, "data": data})]

    # --- answers -----------------------------------------------------------------------------------------------

    def _result(self, event: ResultSeen, now: Instant) -> list[Action]:
        measured = self.diagnoses.answered(event.result, now)
        if measured is not None:
            return measured
        if (kept := self.hangs.answered(event.result, now)) is not None:
            return kept
        if (heard := self.knocking.answered(event.result, now)) is not None:
            return self._found(heard, now)
        if (cut := self.hangs.reach.answered(event.result, now)) is not None:
            return self._found(cut, now)
        if (struck := self.requests.answered(event.result)) is not None:
            return struck
        job = self.c.job
        failure = self.c.life.answered(event.result)
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
        actions += self._found(self.detectors.due(now), now)
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
