"""From findings to what is done: open or join the incident, decide, restart, watch, close. Pure as all of the brain."""

import dataclasses
import math
from collections import deque

from holdfast import types as t
from holdfast.controller import incidents as books
from holdfast.controller import policy
from holdfast.controller.cluster import Cluster
from holdfast.controller.detectors.table import Response
from holdfast.controller.events import Action, Say
from holdfast.controller.lifecycle import Stage, fresh_table
from holdfast.controller.model import Finding, Incident, IncidentState, Instant, Job, JobState

_STAYS_UP = 5.0  # seconds
_TOLD_AGAIN = 600.0  # seconds between two alerts of the same
_WATCHED = (t.FindingKind.AGENT_EXIT, t.FindingKind.NODE_SILENT)


class Recovery:
    def __init__(self, cluster: Cluster) -> None:
        self.c = cluster
        self.settling: Finding | None = None  # a victim's echo that waits for its cause, until `stop_at` (mono)
        self.stop_at = math.inf
        self.told: dict[tuple[t.FindingKind, str, str], float] = {}  # alerts and when (mono)
        self.logs: deque[tuple[float, Finding]] = deque(maxlen=100)  # critical lines that nothing followed yet

    # --- findings to moves -------------------------------------------------------------------------------------

    def found(self, finding: Finding, now: Instant) -> list[Action]:
        """One finding: join the live incident or open one; then do what its cause asks for."""
        response = self.c.tuning.response(finding.kind)
        if response is Response.OFF:
            return []
        if response is Response.ALERT or policy.is_alert(finding.kind):
            return self.noted(finding, now)
        job = self.c.job
        if job is None or job.state.ended:
            return []
        live = self.c.book.live()
        said = Say("finding", {"kind": finding.kind.value, "subject": finding.subject, "text": finding.text})
        if live is None:
            live = self.c.book.open(finding, job, now)
            self._recall_logs(live, now)
            return [said, *self._act(live, finding, job, now)]
        changed = self.c.book.attach(live, finding)
        up = self.c.life.stage in (Stage.UP, Stage.LAUNCHING) and live.action == policy.Move.RESTART
        waiting = live.action in (policy.Move.WATCH, "")
        if (up or waiting) and finding.kind not in _WATCHED and not (finding.secondary and self.settling):
            return [said, *self._act(live, finding, job, now)]
        return [said, books.saved(live)] if changed else [said]

    def _recall_logs(self, incident: Incident, now: Instant) -> None:
        while self.logs:
            at, finding = self.logs.popleft()
            if now.mono - at < 30:
                self.c.book.attach(incident, finding)

    def _act(self, incident: Incident, cause: Finding, job: Job, now: Instant, settled: bool = False) -> list[Action]:
        """Decide by the newest cause; the incident keeps the one that explains all of it best."""
        if cause.secondary and not settled:
            # Whoever reset this connection will speak within moments; do not blame the messenger.
            self.settling, self.stop_at = cause, now.mono + self.c.options.settle
            return [books.saved(incident)]
        self.settling, self.stop_at = None, math.inf
        if policy.is_failure(cause.kind):
            policy.count_try(job, cause)
        decision = policy.decide(cause, job, self.c.options)
        incident.action, incident.reason = decision.move.value, decision.reason
        said = Say("incident", {
            "id": incident.id, "kind": incident.cause.kind.value, "culprit": incident.cause.subject,
            "action": decision.move.value, "reason": decision.reason,
        })  # fmt: skip
        if decision.move is policy.Move.RESTART:
            incident.state = IncidentState.RECOVERING
            incident.source, incident.step_resumed = "store", None
            incident.generation_from = job.generation
            incident.enter("stopping", now.wall)
            return [books.saved(incident), said, *self.clear_for_restart(job, now)]
        if decision.move is policy.Move.STOP:
            actions = [books.saved(incident), said, *books.closed(incident, IncidentState.FAILED, now)]
            code = cause.exit_code if cause.exit_code else 1
            return actions + self.c.life.end(job, self.c.nodes, (JobState.FAILED, decision.reason, code), 0.0, now)
        if decision.move is policy.Move.WATCH:
            incident.enter("watching", now.wall)
            return [books.saved(incident), said]
        return [said, *books.closed(incident, IncidentState.CLOSED, now)]

    def clear_for_restart(self, job: Job, now: Instant) -> list[Action]:
        self.c.traffic.reset()
        actions = self.c.life.begin(job, self.c.nodes, now)
        return actions + self.entered(job, now)

    def entered(self, job: Job, now: Instant) -> list[Action]:
        """Keep table and incident in step with the lifecycle's stage."""
        live = self.c.book.live()
        recovering = live is not None and live.action == policy.Move.RESTART
        if self.c.life.stage is Stage.LAUNCHING and self.c.stale(job):
            self.c.ranks = fresh_table(job)
            self.c.progress_at = now.mono
            for node in self.c.nodes.values():
                if node.usable:
                    self.c.set_healthy(node)
            if live is not None and recovering:
                live.generation_to = job.generation
                live.enter("starting", now.wall)
                return [books.saved(live)]
        if self.c.life.stage is Stage.UP and live is not None and recovering and live.phases[-1][0] == "starting":
            live.enter("restoring", now.wall)
            return [books.saved(live)]
        return []

    def survived(self, job: Job, now: Instant) -> list[Action]:
        """A program that never reported a step has none to wait for: it is well again when it stays up."""
        live = self.c.book.live()
        if live is None or job.best_step >= 0 or live.phases[-1][0] != "restoring":
            return []
        if self.c.life.stage is not Stage.UP or now.mono - self.c.life.up_at < _STAYS_UP:
            return []
        return books.closed(live, IncidentState.CLOSED, now)

    def logged(self, finding: Finding, generation: int, now: Instant) -> list[Action]:
        live = self.c.book.live()
        if live is not None and (finding.rank < 0 or generation >= live.generation_from):
            self.c.book.attach(live, finding)
            return [books.saved(live)]
        self.c.book.count(finding)
        if finding.severity is t.Severity.CRITICAL:
            self.logs.append((now.mono, finding))
        return []

    def alert(self, finding: Finding, now: Instant) -> list[Action]:
        """A finding that nothing is done about: kept as an incident that is over at once."""
        if finding.severity is t.Severity.INFO:
            return [Say("notice", {"node": finding.node, "text": finding.text})]
        incident = self.c.book.open(finding, self.c.job, now)
        incident.action, incident.reason = policy.Move.ALERT.value, "people are told; nothing that a restart would mend"
        return books.closed(incident, IncidentState.CLOSED, now)

    def noted(self, finding: Finding, now: Instant) -> list[Action]:
        """A finding that only tells: evidence in the live incident, else an alert, and not the same one every time."""
        live = self.c.book.live()
        if live is not None:
            known = len(live.findings)
            self.c.book.attach(live, finding)
            return [books.saved(live)] if len(live.findings) != known else []
        key = finding.kind, finding.subject, finding.signature
        if now.mono - self.told.get(key, -math.inf) < _TOLD_AGAIN:
            return []
        self.told[key] = now.mono
        said = Say("finding", {"kind": finding.kind.value, "subject": finding.subject, "text": finding.text})
        return [said, *self.alert(finding, now)]

    def restored(self, told: t.StateRestored) -> list[Action]:
        """Where a generation's state came from. The incident it was started for may be over already."""
        incident = self.c.book.of_generation(told.generation)
        if incident is None:
            return []
        incident.source, incident.restore_s, incident.restored_bytes = told.source, told.seconds, told.num_bytes
        return [books.saved(incident)]

    def resumed(self, record: t.StepRecord, now: Instant) -> list[Action]:
        """The first new step of a new generation ends the incident that made it necessary."""
        live = self.c.book.live()
        if live is None or live.action != policy.Move.RESTART or record.generation <= live.generation_from:
            return []
        if live.step_resumed is None:
            live.step_resumed, live.generation_to = record.step, record.generation
        return books.closed(live, IncidentState.CLOSED, now)

    def finished(self, job: Job, now: Instant) -> list[Action]:
        actions: list[Action] = []
        live = self.c.book.live()
        if live is not None:
            actions += books.closed(live, IncidentState.CLOSED, now)
        return actions + self.c.life.end(job, self.c.nodes, (JobState.FINISHED, "", 0), 0.0, now)

    def at_node(self, finding: Finding, job: Job) -> Finding:
        if finding.rank < 0:
            return finding
        return dataclasses.replace(finding, node=job.node_of(finding.rank))

    def settle(self, now: Instant) -> list[Action]:
        """No better explanation came: act on what there is."""
        if now.mono < self.stop_at or self.c.job is None or self.settling is None:
            return []
        cause, live = self.settling, self.c.book.live()
        self.settling, self.stop_at = None, math.inf
        return self._act(live, cause, self.c.job, now, settled=True) if live is not None else []

    def watch(self, now: Instant) -> list[Action]:
        """A watched incident ends when everybody is back; it escalates when training stands still without them."""
        live, job = self.c.book.live(), self.c.job
        if live is None or job is None or live.action != policy.Move.WATCH:
            return []
        away = [n for n in job.nodes if not self.c.present(n)]
        if not away and self.c.life.stage is Stage.UP:
            live.enter("back", now.wall)
            live.reason = "the watcher is back and training never stopped"
            return books.closed(live, IncidentState.CLOSED, now)
        gone = [n for n in away if self.c.away_for(n, now) > self.c.options.agent_grace]
        median = sorted(self.c.ledger.recent)[len(self.c.ledger.recent) // 2] if self.c.ledger.recent else math.nan
        patience = max(3 * median + 1, 5.0) if not math.isnan(median) else self.c.options.agent_grace
        if not gone or now.mono - self.c.progress_at < patience:
            return []
        for name in gone:
            if name in self.c.nodes:
                self.c.nodes[name].state, self.c.nodes[name].reason = (
                    t.NodeState.LOST,
                    "silent, and training stopped with it",
                )
        live.action, live.state = policy.Move.RESTART.value, IncidentState.RECOVERING
        live.reason = f"{', '.join(gone)} did not come back and training stopped: start again without"
        live.source, live.generation_from = "store", job.generation
        live.enter("stopping", now.wall)
        return [books.saved(live), *self.clear_for_restart(job, now)]

    def late_answers(self, job: Job, now: Instant) -> list[Action]:
        actions: list[Action] = []
        for failure in self.c.life.overdue(now):
            if failure.what == "stop":
                node = self.c.nodes.get(failure.node)
                if node is not None:
                    node.state, node.reason = t.NodeState.FAULTY, "did not end its workers when told to"
                    self.c.life.unstopped.add(failure.node)
            text = f"{failure.what}: {failure.error}"
            actions += self.found(self.command_finding(t.FindingKind.WORKER_EXIT, failure.node, text, now), now)
        if self.c.life.waiting_since is not None and now.mono - self.c.life.waiting_since > self.c.options.agent_grace:
            for name in list(self.c.life.unstopped):
                node = self.c.nodes.get(name)
                if node is not None and not node.connected:
                    node.state, node.reason = t.NodeState.LOST, "gone for too long"
            actions += self._capacity(now)
        return actions

    def _capacity(self, now: Instant) -> list[Action]:
        live = self.c.book.live()
        finding = Finding(
            kind=t.FindingKind.CAPACITY,
            severity=t.Severity.CRITICAL,
            subject="job",
            text=f"the job {self.c.life.missing}: add a node or uncordon one",
            since=now.wall,
            at=now.wall,
        )
        if live is None:
            if any(i.cause.kind is t.FindingKind.CAPACITY and i.closed is None for i in self.c.book.incidents.values()):
                return []
            live = self.c.book.open(finding, self.c.job, now)
            live.action, live.reason = policy.Move.RESTART.value, "waiting for room"
            live.generation_from = self.c.job.generation if self.c.job else 0
            return [books.saved(live)]
        known = len(live.findings)
        self.c.book.attach(live, finding)
        return [books.saved(live)] if len(live.findings) != known else []

    def stray_logs(self, now: Instant) -> list[Action]:
        """A critical line that no fault followed is an alert of its own."""
        actions: list[Action] = []
        while self.logs and now.mono - self.logs[0][0] > 5.0 and self.c.book.live() is None:
            actions += self.alert(self.logs.popleft()[1], now)
        return actions

    def command_finding(self, kind: t.FindingKind, node: str, error: str, now: Instant) -> Finding:
        return Finding(
            kind=kind,
            severity=t.Severity.CRITICAL,
            subject=node,
            text=f"{node}: {error}",
            since=now.wall,
            at=now.wall,
            node=node,
            signature=f"{kind.value}:{error[:80]}",
        )
