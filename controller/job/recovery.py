"""From findings to what is done: open or join the incident, decide, restart, watch, close. Pure as all of the brain."""

import dataclasses
import math
from collections import deque

from holdfast.controller.cluster import incidents as books
from holdfast.controller.cluster.alerts import WATCHED, Alerts, concerns
from holdfast.controller.cluster.placement import has_spare, may_shrink
from holdfast.controller.detectors.base.table import Response, finding
from holdfast.controller.detectors.hardware.host import has_full_disk
from holdfast.controller.job import policy
from holdfast.controller.job.lifecycle import fresh_table
from holdfast.controller.job.stages import Stage
from holdfast.controller.job.state import JobState
from holdfast.controller.state.events import Action, Record, Say
from holdfast.controller.state.history import SAME_FAULT_S
from holdfast.controller.state.incidents import Finding, Incident, IncidentState
from holdfast.controller.state.model import Instant, Job, JobStatus
from holdfast.controller.state.progress import pattern_text
from holdfast.wire import types as t
from holdfast.wire.rollback import Rollback

_STAYS_UP = 5.0  # seconds
_SAME_PLACE = 20  # steps


class Recovery:
    def __init__(self, job: JobState, alerts: Alerts) -> None:
        self.c, self.alerts = job, alerts
        self.settling: Finding | None = None  # a victim's echo that waits for its cause, until `stop_at` (mono)
        self.stop_at = math.inf
        self.logs: deque[tuple[float, Finding]] = deque(maxlen=100)  # critical lines that nothing followed yet

    # --- findings to moves -------------------------------------------------------------------------------------

    def found(self, finding: Finding, now: Instant) -> list[Action]:
        """One finding: join the live incident or open one; then do what its cause asks for."""
        response = self.c.tuning.response(finding.kind)
        if response is Response.OFF:
            return []
        if response is Response.ALERT or (policy.is_alert(finding.kind) and response is not Response.ROLL_BACK):
            return self.noted(finding, now)
        job = self.c.job
        if not self.c.may_begin:
            return []
        if policy.is_pause(finding) and self.c.ending_since(now) is not None:
            return []  # ending is not hanging: what remains is waited for until `--exit-limit`
        if policy.is_network_wait(finding) and 0 <= job.spec.max_restarts <= job.restarts - job.uncounted_restarts:
            return self.noted(finding, now)  # it is found again and again
        live = self.c.book.live()
        said = Say("finding", {"kind": finding.kind.value, "subject": finding.subject, "text": finding.text})
        if live is None:
            live = self.c.book.open(finding, now)
            self._recall_logs(live, now)
            return [said, *self._act(live, finding, job, now)]
        changed = self.c.book.attach(live, finding)
        if changed:
            self._recall_logs(live, now)
        up = self.c.life.stage in (Stage.UP, Stage.LAUNCHING) and live.action in policy.RECOVERS
        if self.c.life.stage is Stage.DRAINING and live.action in policy.RECOVERS and policy.is_broken(finding.kind):
            return [said, *self._leave_out(live, finding, job, now)]
        waiting = live.action in (policy.Move.WATCH, "")
        if (up or waiting) and finding.kind not in WATCHED and not (finding.secondary and self.settling):
            return [said, *self._act(live, finding, job, now)]
        return [said, books.saved(live)] if changed else [said]

    def _leave_out(self, incident: Incident, finding: Finding, job: Job, now: Instant) -> list[Action]:
        """The reason came after the decision: the generation that is being prepared does without this node."""
        decision = policy.decide(self._case(finding, job, now))
        if decision.move is not policy.Move.EVICT:
            return [books.saved(incident)]
        incident.action, incident.reason = decision.move.value, decision.reason
        return [*self.evict(finding.node, decision.reason, now, quarantined=True), books.saved(incident)]

    def found_at_node(self, finding: Finding, now: Instant) -> list[Action]:
        """What a node reports of its own hardware: it concerns the job only if the job runs there."""
        is_jobs = self.c.may_begin and bool(self.c.job.ranks_on(finding.node))
        if is_jobs or not policy.is_failure(finding.kind):
            return self.found(finding, now)
        response = self.c.tuning.response(finding.kind)
        if response is Response.OFF:
            return []
        broken = response is Response.ACT and policy.is_broken(finding.kind)
        out = self.evict(finding.node, finding.text, now, quarantined=True) if broken else []
        return [*out, *self.noted(finding, now)]

    def found_at_nodes(self, findings: list[Finding], now: Instant) -> list[Action]:
        return [action for finding in findings for action in self.found_at_node(finding, now)]

    def _recall_logs(self, incident: Incident, now: Instant) -> None:
        for _ in range(len(self.logs)):
            at, finding = self.logs.popleft()
            if not concerns(finding, incident):
                self.logs.append((at, finding))
            elif now.mono - at < 30:
                self.c.book.attach(incident, finding)

    def _act(self, incident: Incident, cause: Finding, job: Job, now: Instant, settled: bool = False) -> list[Action]:
        """Decide by the newest cause; the incident keeps the one that explains all of it best."""
        if cause.secondary and not settled:
            # The rank that reset this connection reports soon; do not blame the one that noticed.
            self.settling, self.stop_at = cause, now.mono + self.c.options.settle
            return [books.saved(incident)]
        self.settling, self.stop_at = None, math.inf
        noted = self._note_fault(cause, job, now)
        refused = self._drop_layout(cause, job)
        case = self._case(cause, job, now)
        if refused:  # other arguments come next: what this start was says nothing of them
            case = dataclasses.replace(case, refused_layout=True, fruitless=1, stillborn=0)
        decision = policy.decide(case)
        incident.action, incident.reason = decision.move.value, decision.reason + refused
        said = Say("incident", {
            "id": incident.id, "kind": incident.cause.kind.value, "culprit": incident.cause.subject,
            "action": decision.move.value, "reason": decision.reason,
        })  # fmt: skip
        if decision.move in policy.RECOVERS:
            if decision.move is policy.Move.EVICT:
                noted = self.evict(case.node, decision.reason, now, quarantined=case.row.fault is policy.Fault.BROKEN)
            if decision.move is policy.Move.ROLL_BACK:
                incident.reason += f"; {self._go_back(cause, job)}"
            if decision.move is policy.Move.DIAGNOSE:
                self.c.life.pending_diagnosis, self.c.life.pending_since = case.node, now.mono
                self.c.history(case.node).tested_at = now.wall
            phase = "evicting" if decision.move is policy.Move.EVICT else "suspended"
            backoff, attempt = self._backoff(decision.move, cause, job)
            self.c.life.not_before = now.mono + backoff
            if backoff:
                incident.reason += f"; waiting {backoff:g} s before attempt {attempt} without progress"
                phase = "waiting"
            return [*noted, said, *self.recover(incident, job, now, phase)]
        if decision.move is policy.Move.STOP:
            actions = [books.saved(incident), said, *books.closed(incident, IncidentState.FAILED, now)]
            code = cause.exit_code if cause.exit_code else 1
            return actions + self.c.life.end(job, self.c.nodes, (JobStatus.FAILED, decision.reason, code), 0.0, now)
        if decision.move is policy.Move.WATCH:
            return [books.saved(incident), said]
        return [said, *books.closed(incident, IncidentState.CLOSED, now)]

    def _drop_layout(self, cause: Finding, job: Job) -> str:
        """A planned layout that the program itself refuses is not tried again: the job goes on with fewer nodes, if a
        layout is planned for them, or waits for more."""
        layout = job.spec.layout_on(len(job.nodes))
        if layout is None or job.life_steps or not policy.refuses_input(cause):
            return ""
        job.refused[str(layout.nodes)] = layout.throughput
        others = tuple(one for one in job.spec.layouts if one is not layout)
        job.spec = dataclasses.replace(job.spec, layouts=others, node_counts=tuple(one.nodes for one in others))
        text = f" ({layout.text})" if layout.text else ""
        return f"; it refused the layout planned for {layout.nodes} nodes{text}, which is left out"

    def _backoff(self, move: policy.Move, cause: Finding, job: Job) -> tuple[float, int]:
        """Seconds before the next attempt, and its number. None where something changes with it (other nodes, an older
        state), and where the fault is not the program's."""
        attempt, longest = job.progress.idle, self.c.options.restart_backoff
        if policy.waits_longer(cause):
            job.network_waits = 1 if job.life_steps else job.network_waits + 1
            attempt = job.network_waits
            if policy.is_network_wait(cause) and not policy.is_pause(cause):
                job.uncounted_restarts += 1  # for a pause `PauseWatch` counts it
        elif not policy.counts_as_try(cause) or not policy.may_repeat(cause):
            return 0.0, attempt
        return (policy.backoff_before(attempt, longest) if move is policy.Move.RESTART else 0.0), attempt

    def _go_back(self, cause: Finding, job: Job) -> str:
        """From the next generation on, states that older ones kept from shortly before the fault on do not count."""
        step = int(cause.evidence["step"])
        at_most = max(0, step - int(self.c.tuning.limit(cause.kind, "steps_back")))
        job.rollbacks.append(Rollback(at_most, job.generation + 1))
        job.rolled_at = step
        return f"rolling back to a checkpoint of at most {at_most} steps"

    def _note_fault(self, cause: Finding, job: Job, now: Instant) -> list[Action]:
        """Count a failed attempt of the job, and a node failure if it is one."""
        if not policy.counts_as_try(cause):
            return []
        policy.count_try(job, cause, now)
        reported = self._pattern(cause, job, now)
        name = self._node_of(cause)
        # The same again without a step of progress may well be the script's, whose own bug counts against no node.
        if not name or job.fruitless > 1 or not policy.counts_against(cause):
            return reported
        return [*reported, *self.offend(name, cause.kind, now)]

    def _pattern(self, cause: Finding, job: Job, now: Instant) -> list[Action]:
        """Attempts that keep ending alike are reported, and go on: for a program that numbers no steps it is unknown
        whether it makes progress."""
        attempts = [] if job.numbers_steps else job.progress.pattern()
        if not attempts or self.c.tuning.response(t.FindingKind.LIVES_ALIKE) is Response.OFF:
            return []
        found = finding(
            t.FindingKind.LIVES_ALIKE,
            cause.subject,
            pattern_text(attempts, job.progress.alike, cause.text),
            now,
            node=cause.node,
            rank=cause.rank,
            evidence={"attempts": [dataclasses.asdict(life) for life in attempts], "reported": job.progress.reported},
        )
        return self.alert(found, now)

    def offend(self, name: str, kind: t.FindingKind, now: Instant) -> list[Action]:
        history = self.c.history(name)
        if not (self.c.others_on(name) and history.recent(now.wall, SAME_FAULT_S)):
            history.offend(kind, now.wall)
        return [Record("node", name, history.kept())]

    def _node_of(self, cause: Finding) -> str:
        return cause.node if cause.node in self.c.nodes else ""

    def _case(self, cause: Finding, job: Job, now: Instant) -> policy.Case:
        name, o = self._node_of(cause), self.c.options
        return policy.Case(
            cause=cause,
            options=o,
            restarts=job.restarts - job.uncounted_restarts,
            max_restarts=job.spec.max_restarts,
            fruitless=job.fruitless if policy.counts_as_try(cause) else 1,
            fruitless_node=job.fruitless_node,
            stillborn=job.progress.stillborn,
            node=name,
            node_failures=self.c.history(name).recent(now.wall, o.failure_window) if name else 0,
            evictions=self.c.evictions(now),
            # Where others train on, a test would measure them, too.
            tested=bool(name) and (self.c.history(name).tested_at > now.wall - 3600.0 or bool(self.c.others_on(name))),
            replaceable=has_spare(job.spec, self.c.free_nodes(), job.nodes) or may_shrink(job.spec, job.nodes),
            no_room=bool(cause.evidence.get("no_room")) and bool(name) and has_full_disk(self.c.nodes[name], now),
            stored=self.c.time.safe >= 0,
            goes_back=self.c.tuning.response(cause.kind) is Response.ROLL_BACK,
            worked_before=job.best_step >= 0 and not job.life_steps,
            went_back=bool(job.rollbacks) and cause.evidence.get("step", math.inf) <= job.rolled_at + _SAME_PLACE,
        )

    def evict(self, name: str, reason: str, now: Instant, quarantined: bool) -> list[Action]:
        """Evict a node: no later generation starts there. Its workers stop with the generation, if any, or at once."""
        return self.alerts.evict(name, reason, now, quarantined, job=self.c.job.spec.id)

    def recover(self, incident: Incident, job: Job, now: Instant, phase: str = "suspended") -> list[Action]:
        """End the generation, begin the next one: what all moves of `policy.RECOVERS` come to."""
        incident.state = IncidentState.RECOVERING
        incident.source, incident.step_resumed = "store", None
        incident.generation_from = job.generation
        incident.enter(phase, now.wall)
        return [books.saved(incident), *self.clear_for_restart(job, now)]

    def clear_for_restart(self, job: Job, now: Instant) -> list[Action]:
        self.c.traffic.reset()
        actions = self.c.life.begin(job, self.c.nodes, now)
        return actions + self.entered(job, now)

    def entered(self, job: Job, now: Instant) -> list[Action]:
        """Keep table and incident in step with the lifecycle's stage."""
        live = self.c.book.live()
        recovering = live is not None and live.action in policy.RECOVERS
        if live is not None and recovering and self.c.life.story:
            live.reason, self.c.life.story = f"{live.reason}; {self.c.life.story}", ""
        if recovering and live is not None and self.c.life.waiting_since is not None and live.phase != "replenishing":
            live.enter("replenishing", now.wall)
            return [books.saved(live)]
        if self.c.life.stage is Stage.LAUNCHING and self.c.stale():
            self.c.ranks = fresh_table(job)
            self.c.progress_at = now.mono
            for node in self.c.nodes.values():
                holders = self.c.cluster.holders_of(node.name)
                if node.usable and (not holders or any(one is job for one in holders)):
                    self.c.set_healthy(node)
            if live is not None and recovering:
                live.generation_to = job.generation
                self._report_change(live)
                live.enter("starting", now.wall)
                return [books.saved(live)]
        if self.c.life.stage is Stage.UP and live is not None and recovering and live.phase == "starting":
            live.enter("restoring", now.wall)
            return [books.saved(live)]
        return []

    def _report_change(self, incident: Incident) -> None:
        """Add the change of nodes to the incident: replaced, fewer, or more."""
        gone, new = self.c.life.dropped, self.c.life.taken
        if not gone and not new:
            return
        if len(gone) == len(new):
            incident.action = policy.Move.EVICT.value
            change = f"{', '.join(new)} in place of {', '.join(gone)}"
        elif len(gone) > len(new):
            incident.action = policy.Move.SHRINK.value
            change = f"without {', '.join(gone)}" + (f", with {', '.join(new)}" if new else "")
        else:
            incident.action = policy.Move.GROW.value
            change = f"with {', '.join(new)}" + (f", without {', '.join(gone)}" if gone else "")
        incident.reason = f"{incident.reason}; {change}" if incident.reason else change

    def survived(self, job: Job, now: Instant) -> list[Action]:
        """A program that never reported a step has none to wait for: it is well again when it stays up."""
        live = self.c.book.live()
        if live is None or job.best_step >= 0 or live.phase != "restoring":
            return []
        if self.c.life.stage is not Stage.UP or now.mono - self.c.life.up_at < _STAYS_UP:
            return []
        return books.closed(live, IncidentState.CLOSED, now)

    def logged(self, finding: Finding, generation: int, now: Instant) -> list[Action]:
        live = self.c.book.live()
        is_of_it = live is not None and (finding.rank < 0 or generation >= live.generation_from)
        if live is not None and is_of_it and concerns(finding, live):
            self.c.book.attach(live, finding)
            return [books.saved(live)]
        self.c.book.count(finding)
        if finding.severity is t.Severity.CRITICAL:
            self.logs.append((now.mono, finding))
        return []

    def alert(self, finding: Finding, now: Instant) -> list[Action]:
        """A finding that no action follows."""
        return self.alerts.alert(finding, self.c.job, now)

    def noted(self, finding: Finding, now: Instant) -> list[Action]:
        """A finding that only alerts: evidence in the live incident, else an alert."""
        return self.alerts.noted(finding, self.c.job, now)

    def restored(self, reported: t.StateRestored, now: Instant) -> list[Action]:
        """Where a generation's state came from. The incident it was started for may be over already."""
        incident = self.c.book.of_generation(reported.generation)
        if incident is None:
            return []
        incident.source, incident.restore_s = reported.source, reported.seconds
        incident.restored_bytes, incident.restore_sent_bytes = reported.num_bytes, reported.sent_bytes
        if incident.live and incident.phase == "restoring":
            incident.enter("resuming", now.wall)
        return [books.saved(incident)]

    def imported(self, timed: t.ImportsTimed) -> list[Action]:
        """What a recovery's workers imported again. The incident is over as a rule: the first step ends both."""
        incident = self.c.book.of_generation(timed.generation)
        if incident is None:
            return []
        incident.imports_s, incident.frameworks = timed.seconds, timed.frameworks
        return [books.saved(incident)]

    def resumed(self, record: t.StepRecord, now: Instant) -> list[Action]:
        """The first new step of a new generation ends the incident that made it necessary."""
        live = self.c.book.live()
        if live is None or live.action not in policy.RECOVERS or record.generation <= live.generation_from:
            return []
        if live.step_resumed is None:
            live.generation_to = record.generation
            if not record.is_counted:  # else it is known how many steps were done, not at which the program is
                live.step_resumed = record.step
        return books.closed(live, IncidentState.CLOSED, now)

    def finished(self, job: Job, now: Instant, why: str = "", grace: float = 0.0) -> list[Action]:
        """`why`: what else there is to know of its end. `grace`: seconds from SIGTERM to SIGKILL of ranks that run."""
        actions: list[Action] = []
        live = self.c.book.live()
        if live is not None:
            live.reason = f"{live.reason}; {why}" if why else live.reason
            actions += books.closed(live, IncidentState.CLOSED, now)
        return actions + self.c.life.end(job, self.c.nodes, (JobStatus.FINISHED, why, 0), grace, now)

    def at_node(self, finding: Finding, job: Job) -> Finding:
        if finding.rank < 0:
            return finding
        return dataclasses.replace(finding, node=job.node_of(finding.rank))

    def settle(self, now: Instant) -> list[Action]:
        """No better explanation came: act on what there is."""
        if now.mono < self.stop_at or self.settling is None:
            return []
        cause, live = self.settling, self.c.book.live()
        self.settling, self.stop_at = None, math.inf
        return self._act(live, cause, self.c.job, now, settled=True) if live is not None else []

    def orphan_logs(self, now: Instant) -> list[Action]:
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
