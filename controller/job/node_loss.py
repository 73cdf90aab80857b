"""Absent nodes of the job: how long to wait for them, when to go on without, and when it is a correlated loss."""

import math

from holdfast.controller.cluster import incidents as books
from holdfast.controller.cluster.placement import has_spare, may_shrink
from holdfast.controller.detectors.agents.correlated_loss import correlated_loss
from holdfast.controller.job import policy
from holdfast.controller.job.ending.finish import Ending
from holdfast.controller.job.ending.unended import would_not_end
from holdfast.controller.job.recovery import Recovery
from holdfast.controller.job.stages import Stage
from holdfast.controller.job.state import JobState
from holdfast.controller.state.events import Action, Record, Say
from holdfast.controller.state.incidents import Finding, IncidentState
from holdfast.controller.state.model import Instant, Job
from holdfast.wire import types as t

_LOOK_S = 1.0  # between two looks whether the cluster could hold the job
_DEAD_GRACE = 0.75  # seconds that an agent may be away whose workers went down with it


class NodeLoss:
    def __init__(self, job: JobState, recovery: Recovery, ending: Ending) -> None:
        self.c, self.recovery, self.ending = job, recovery, ending
        self._room_looked_at = -math.inf

    def tick(self, job: Job, now: Instant) -> list[Action]:
        """Called often while there is a job."""
        return [*self.gather(now), *self.watch(now), *self.late_answers(job, now)]

    def watch(self, now: Instant) -> list[Action]:
        """A watched incident ends when everybody is back; it escalates when training stands still without them.

        So does a restart whose new generation loses a node before its first step.
        """
        live, job = self.c.book.live(), self.c.job
        if live is None or not self.c.may_begin:
            return []
        is_up, watching = self.c.life.stage is Stage.UP, live.action == policy.Move.WATCH
        if not watching and not (is_up and live.action in policy.RECOVERS):
            return []
        away = [n for n in job.nodes if not self.c.present(n)]
        if not away and is_up and watching:
            live.reason = self.c.life.story or "the agent reconnected, no worker was stopped"
            self.c.life.story = ""
            return books.closed(live, IncidentState.CLOSED, now)
        if self.ending.unreported(job) is not None:
            return []  # what can be seen of the job is over: how it ends is not decided here
        away = [n for n in away if not self.ending.is_over_at(job, n)]
        median = sorted(self.c.ledger.recent)[len(self.c.ledger.recent) // 2] if self.c.ledger.recent else math.nan
        patience = max(3 * median + 1, 5.0) if not math.isnan(median) else self.c.options.agent_grace
        if now.mono - self.c.progress_at < patience or not (gone := self._overdue(away, job, now)):
            return []
        actions = self._give_up(gone, "silent, and training stopped", now)
        live.action = policy.Move.RESTART.value
        live.reason = f"{', '.join(gone)} did not reconnect and training stopped: restarting without"
        return [*actions, *self.recovery.recover(live, job, now, phase="evicting")]

    def _give_up(self, names: list[str], reason: str, now: Instant) -> list[Action]:
        """Mark nodes lost. It counts as a node failure of each, except after a correlated loss."""
        live = self.c.book.live()
        together = live is not None and live.cause.kind is t.FindingKind.NODES_AWAY
        actions: list[Action] = []
        for name in names:
            if name in self.c.nodes:
                self.c.nodes[name].state, self.c.nodes[name].reason = t.NodeState.LOST, reason
            else:
                self.c.life.given_up.add(name)
            if not together and not self._is_frozen(name):
                self.c.history(name).failed(self.c.job.spec.id, self.c.others_on(name))
                actions += self.recovery.offend(name, t.FindingKind.NODE_SILENT, now)
        return actions + self.kept(names) if together else actions

    def may_do_without(self, name: str) -> bool:
        """Has this node, which it holds, none of its workers any more while it waits for nodes, and may it go on with
        fewer? Then it waits for no agent that only may be back."""
        life = self.c.life
        waits = life.stage is Stage.DRAINING and life.waiting_since is not None
        return waits and bool(self.c.job.spec.node_counts) and name not in life.unstopped

    def kept(self, names: list[str]) -> list[Action]:
        """Lost nodes, for the journal: a controller that starts later must know since when they are away. Where
        nothing is planned for fewer nodes, nobody asks.

        Not when an agent leaves: when a controller ends, all of them do.
        """
        if not self.c.job.spec.layouts:
            return []
        return [Record("node", name, self.c.history(name).kept()) for name in names]

    def gather(self, now: Instant) -> list[Action]:
        """Many nodes lost at once are one incident: the cause is what they share, not a node."""
        live, job = self.c.book.live(), self.c.job
        if live is None or live.cause.kind is t.FindingKind.NODES_AWAY:
            return []
        finding = correlated_loss(job.nodes, self.c.nodes, now)
        if finding is None or not self.c.book.attach(live, finding):
            return []
        return [Say("finding", {"kind": finding.kind.value, "subject": finding.subject, "text": finding.text}),
                books.saved(live)]  # fmt: skip

    def late_answers(self, job: Job, now: Instant) -> list[Action]:
        actions: list[Action] = []
        silent = [name for name in self.c.life.awaited if not self.c.present(name)]
        for failure in self.c.life.overdue(silent, now):
            if failure.what == "stop":
                actions += would_not_end(self.recovery, failure, now)
                continue
            text = f"{failure.what}: {failure.error}"
            actions += self.recovery.found(self.recovery.command_finding(failure.kind, failure.node, text, now), now)
        known = self.c.nodes
        away = [n for n in self.c.life.unstopped if n not in known or not known[n].connected]
        lost = self.c.life.given_up | {n for n in away if n in known and known[n].state is t.NodeState.LOST}
        if gone := self._overdue([n for n in away if n not in lost], job, now):
            actions += self._give_up(sorted(gone), "not connected for too long", now)
        if now.mono >= self.c.life.deadline and (gone := self._overdue(silent, job, now)):
            actions += self._give_up(sorted(gone), "silent while its workers were to end", now)
            for name in gone:
                self.c.life.node_left(name)
        if self._lacks_room(now):
            actions += self._capacity(now)
        return actions

    def _lacks_room(self, now: Instant) -> bool:
        """Whether the job has waited for nodes for too long, and not only for its turn in the queue."""
        since = self.c.life.waiting_since
        if since is None or now.mono - since <= self.c.options.agent_grace or now.mono < self._room_looked_at + _LOOK_S:
            return False
        self._room_looked_at = now.mono
        return not self.c.is_queued()

    def _overdue(self, away: list[str], job: Job, now: Instant) -> list[str]:
        """The nodes for which training no longer waits."""
        if not away:
            return []
        o = self.c.options
        replaceable = has_spare(job.spec, self.c.free_nodes(), job.nodes)
        goes_on = replaceable or may_shrink(job.spec, job.nodes)
        usual = o.spare_grace if replaceable else o.agent_grace

        idle = float(job.spec.limits.get("idle_limit", o.idle_limit))

        def grace(name: str) -> float:
            if self._is_frozen(name):  # all that it runs may go on when it is thawed
                return max(usual, idle)
            # Where the workers went down too, nothing runs that would be worth the wait.
            return min(_DEAD_GRACE, o.spare_grace) if goes_on and self._went_down(name) else usual

        return [name for name in away if self.c.away_for(name, now) > grace(name)]

    def _is_frozen(self, name: str) -> bool:
        node = self.c.nodes.get(name)
        return node is not None and node.frozen

    def _went_down(self, name: str) -> bool:
        """Its agent's stream broke first, and then workers elsewhere lost their connections, for no other known
        reason: the node's workers went down with it."""
        live = self.c.book.live()
        job = self.c.active
        if live is None or job is None or live.cause.kind is not t.FindingKind.AGENT_EXIT or live.cause.node != name:
            return False
        if not all(self.c.present(other) for other in job.nodes if other != name):
            return False  # it is unknown whose peers lost the connection
        return any(finding.secondary and finding.node != name for finding in live.findings)

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
            if any(i.cause.kind is t.FindingKind.CAPACITY and i.closed is None for i in self.c.book.own()):
                return []
            live = self.c.book.open(finding, now)
            live.action, live.reason = policy.Move.RESTART.value, "waiting for free nodes"
            live.state = IncidentState.RECOVERING
            live.generation_from = self.c.job.generation
            return [books.saved(live)]
        known = len(live.findings)
        self.c.book.attach(live, finding)
        return [books.saved(live)] if len(live.findings) != known else []
