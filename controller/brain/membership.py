"""Nodes that join and leave: compare a hello with what should run, end orphaned workers, report absent nodes."""

from holdfast.base.bounds import MAX_NODES
from holdfast.base.errors import NotFound
from holdfast.controller.brain.job_brain import JobBrain
from holdfast.controller.brain.roster import Roster
from holdfast.controller.cluster.alerts import Alerts
from holdfast.controller.cluster.placement import natural
from holdfast.controller.cluster.state import ClusterState
from holdfast.controller.detectors.agents.silence import stream_finding
from holdfast.controller.detectors.workers.exits import LOST
from holdfast.controller.job.stages import Stage
from holdfast.controller.state.events import Action, AgentJoined, AgentLeft, CordonRequested, Record, Say, Send
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Node
from holdfast.controller.state.ranks import RankState
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from holdfast.wire.holds import HOLD, PASSES


class Membership:
    def __init__(self, cluster: ClusterState, roster: Roster, alerts: Alerts) -> None:
        self.c, self.roster, self.alerts = cluster, roster, alerts

    def joined(self, event: AgentJoined, now: Instant) -> list[Action]:
        hello, name = event.hello, event.hello.identity.node
        node = self.c.nodes.get(name)
        if node is None:
            self._make_room()
            node = self.c.nodes[name] = Node(name, hello.identity, history=self.c.history(name))
        if node.identity.incarnation != hello.identity.incarnation:
            node.leaving = False
        is_news = node.history.returned(now.wall, self.c.options.agent_grace)
        self.c.connected += not node.connected
        node.identity, node.connected = hello.identity, True
        # Silence is judged against a fresh start: the gap of its absence says nothing of its heartbeat interval.
        node.frame_at, node.heartbeat_interval = now.mono, max(self.c.heartbeat_interval, node.heartbeat_interval)
        self.c.set_healthy(node)
        actions: list[Action] = [Record("node", name, node.history.kept())] if is_news else []
        actions += self._end_orphans(node, hello)
        for brain in self.roster.active():
            actions += self._reported(brain, hello, now)
        return actions

    def _reported(self, brain: JobBrain, hello: msg.Hello, now: Instant) -> list[Action]:
        """What the hello says of what this job has on the node, or may have there."""
        job, life, name = brain.c.job, brain.c.life, hello.identity.node
        actions: list[Action] = []
        holds = any(w.running and (w.job, w.generation) == (job.spec.id, job.generation) for w in hello.workers)
        actions += life.node_back(job, name, now, holds)
        lost = self._lost(brain, name, hello)
        if life.stage is Stage.UP and lost:
            actions += self._lacks(brain, name, lost, now)
        if life.is_adopting and name in job.nodes:
            actions += life.reported(job, name, missing=lost)
        return actions + life.advance(job, self.c.nodes, now) + brain.node_loss.watch(now)

    def has_room(self, name: str) -> bool:
        """May a node of this name join? It may not if it is one more than `MAX_NODES` and none can be forgotten."""
        return name in self.c.nodes or len(self.c.nodes) < MAX_NODES or self._least() is not None

    def waits_for_another(self, hello: msg.Hello, now: Instant) -> str:
        """Why this agent is not the one that a controller waits for that has just come back; empty when it may be.

        Of two agents that say one name, the one with the workers is right, also where the other asks first.
        """
        name = hello.identity.node
        if name in self.c.nodes or now.mono >= self.c.reconcile_until:
            return ""
        if all(_may_be_of(brain, hello) for brain in self.roster.holders(name)):
            return ""
        return f"the controller has just restarted and waits for the agent of {name} that runs ranks of its job"

    def _make_room(self) -> None:
        if len(self.c.nodes) < MAX_NODES:
            return
        least = self._least()
        if least is not None:
            del self.c.nodes[least.name]
            self.c.histories.pop(least.name, None)

    def _least(self) -> Node | None:
        """The node that left first, of those that no job and no finding refers to."""
        newest = self.c.newest
        placed = {*self.c.holders, *(newest.nodes if newest is not None else ())}
        idle = [n for n in self.c.nodes.values() if not n.connected and n.name not in placed and n.history.is_blank]
        return min(idle, key=lambda node: node.left_at, default=None)

    def _end_orphans(self, node: Node, hello: msg.Hello) -> list[Action]:
        """Workers of jobs or generations that are over must not run on. A job that comes after them waits for it."""
        orphans, unread = set(), set()
        for worker in hello.workers:
            job = self.c.jobs.get(worker.job)
            if worker.job in self.c.unread_jobs:
                unread |= {worker.job} if worker.running else set()
                continue
            if worker.running and (job is None or job.state.ended or worker.generation < job.generation):
                orphans.add((worker.job, worker.generation))
        node.draining = {f"job {job} of a damaged journal" for job in unread}
        actions: list[Action] = [Say("node.unread-job", {"node": node.name, "job": job}) for job in sorted(unread)]
        for job_id, generation in sorted(orphans):
            send = self._drain(node.name, job_id, generation)
            if all(holder.spec.id != job_id for holder in self.c.holders_of(node.name)):
                node.draining.add(send.command.id)
            actions.append(send)
            actions.append(Say("node.orphans", {"node": node.name, "job": job_id, "generation": generation}))
        return actions

    def _drain(self, name: str, job: str, generation: int) -> Send:
        def answered(result: msg.CommandResult, now: Instant) -> list[Action]:
            return self._drained(result, job, generation, now)

        return self.c.commands.issue(name, job, generation, msg.StopWorkers(0.0), answered)

    def _drained(self, result: msg.CommandResult, job: str, generation: int, now: Instant) -> list[Action]:
        """An agent stopped orphaned workers, or could not: then the node takes no other job. What somebody holds is
        waited for."""
        node = next((node for node in self.c.nodes.values() if result.id in node.draining), None)
        if node is None:
            return []
        node.draining.discard(result.id)
        if result.ok:
            return []
        if result.data.get(HOLD) in PASSES:
            send = self._drain(node.name, job, generation)
            node.draining.add(send.command.id)
            return [send]
        return self.alerts.evict(
            node.name, f"orphaned workers of an ended job do not stop: {result.error}", now, quarantined=False
        )

    def _lost(self, brain: JobBrain, name: str, hello: msg.Hello) -> list[int]:
        """What the node lacks of what it should hold; an exit that it knows of comes as an event of its own."""
        job = brain.c.job
        held = {w.rank for w in hello.workers if w.job == job.spec.id and w.generation == job.generation}
        return [r for r in job.ranks_on(name) if r not in held and not brain.c.ranks.is_in(RankState.DONE)[r]]

    def _lacks(self, brain: JobBrain, name: str, lost: list[int], now: Instant) -> list[Action]:
        finding = Finding(
            kind=t.FindingKind.WORKER_EXIT,
            severity=t.Severity.CRITICAL,
            subject=f"rank{lost[0]}",
            text=f"{name} reconnected without its workers (ranks {lost[0]} to {lost[-1]})",
            since=now.wall,
            at=now.wall,
            node=name,
            rank=lost[0],
            signature=LOST,
        )
        return brain.recovery.found(finding, now)

    def left(self, event: AgentLeft, now: Instant) -> list[Action]:
        node = self.c.nodes.get(event.node)
        if node is None or node.identity.incarnation != event.incarnation:
            return []  # an older stream of a node that is back already
        finding = stream_finding(node, now)
        self.c.connected -= node.connected
        node.connected, node.left_at, node.frozen = False, now.mono, False
        node.history.left(now.wall)
        if node.state is not t.NodeState.LOST:
            node.state, node.reason = t.NodeState.SUSPECT, finding.text
        node.draining.clear()
        actions: list[Action] = []
        for brain in self.roster.holders(node.name):
            brain.c.life.node_left(node.name)
            actions += brain.recovery.found(finding, now) + brain.c.life.advance(brain.c.job, self.c.nodes, now)
        return actions

    def give_up(self, now: Instant) -> list[Action]:
        """A node without work whose agent does not reconnect is lost: no job waits for it."""
        actions: list[Action] = []
        for node in self.c.nodes.values():
            away = not node.connected and node.state is t.NodeState.SUSPECT
            is_late = now.mono - node.left_at > self.c.options.agent_grace
            if not away or not is_late:
                continue
            brains = self.roster.holders(node.name)
            if all(brain.node_loss.may_do_without(node.name) for brain in brains):
                node.state, node.reason = t.NodeState.LOST, "its agent disconnected and did not reconnect"
                actions += [action for brain in brains for action in brain.node_loss.kept([node.name])]
        return actions

    def leaving(self, name: str) -> None:
        """Its agent is stopping: nothing more is started there until an agent reconnects."""
        node = self.c.nodes.get(name)
        if node is not None:
            node.leaving, node.state, node.reason = True, t.NodeState.CORDONED, "its agent is stopping"

    def cordon(self, event: CordonRequested, now: Instant) -> list[Action]:
        node = self.find(event.node)
        if event.on:
            node.history.cordoned = True
            node.state, node.reason = t.NodeState.CORDONED, "cordoned by an operator"
        else:
            node.history.reset(now.wall)
            if node.connected:
                self.c.set_healthy(node)
        return [Record("node", node.name, node.history.kept())]

    def evict(self, name: str, now: Instant) -> list[Action]:
        """Evict the node now, as recovery does by itself, and restart the job without it if it runs ranks."""
        node, brains = self.find(name), self.roster.holders(name)
        actions = self.alerts.evict(node.name, "evicted by an operator", now, quarantined=True, by_hand=True)
        brains = [brain for brain in brains if not brain.c.job.stop_asked]
        if not brains:
            return actions
        finding = Finding(
            kind=t.FindingKind.EVICTION,
            severity=t.Severity.WARNING,
            subject=node.name,
            text=f"{node.name} was evicted by an operator",
            since=now.wall,
            at=now.wall,
            node=node.name,
            signature=f"evict:{node.name}",
        )
        return actions + [action for brain in brains for action in brain.recovery.found(finding, now)]

    def find(self, name: str) -> Node:
        """NotFound when there is no such node."""
        node = self.c.nodes.get(name)
        if node is None:
            raise NotFound(f"no node {name!r}; known are {', '.join(sorted(self.c.nodes, key=natural)) or 'none'}")
        return node


def _may_be_of(brain: JobBrain, hello: msg.Hello) -> bool:
    """Just after the controller's restart: may this agent be the one that the job waits for? True if none is."""
    job, ranks = brain.c.job, brain.c.job.ranks_on(hello.identity.node)
    holds = any((w.job, w.generation) == (job.spec.id, job.generation) for w in hello.workers)
    over = brain.c.ranks.is_in(RankState.DONE)[ranks.start : ranks.stop].all()
    return bool(holds or over or brain.c.life.stage is not Stage.UP or brain.c.life.is_adopting)
