"""Requests to a running job, by operators or by the controller: fault injection, checkpoints."""

import dataclasses
import math

from holdfast.base.errors import Conflict, UsageError
from holdfast.controller.cluster.placement import natural
from holdfast.controller.cluster.state import ClusterState
from holdfast.controller.job.stages import Stage
from holdfast.controller.job.state import JobState
from holdfast.controller.state.commands import Answered
from holdfast.controller.state.events import Action, Record, Say, Send
from holdfast.controller.state.model import Instant, Job
from holdfast.facts import faults as fault_syntax
from holdfast.wire import messages as msg

_PRECAUTIONS_APART = 60.0
"""Seconds between checkpoints that are made because a finding predicts a fault."""


class Requests:
    def __init__(self, job: JobState) -> None:
        self.c = job
        self._precaution_at = -math.inf
        self._ordered: set[str] = set()  # ids of orders that were sent, in this run of the controller

    def due_faults(self, job: Job, now: Instant) -> list[Action]:
        """Armed faults whose step was reached, once each, as soon as there is an agent to do it."""
        actions: list[Action] = []
        for text in job.spec.faults:
            fault = fault_syntax.parse_fault(text)
            if text in job.unanswered:
                actions += self._ask_again(job, text, fault)
            if text in job.fired or fault.step is None or fault.target == "controller":
                continue
            if job.best_step < fault.step or self.c.life.stage is not Stage.UP:
                continue
            name = _node_of(fault, job)
            if name is None:
                continue  # the job has shrunk, or trains elsewhere: its target may be back
            node = self.c.nodes.get(name)  # after a controller restart, not all are back at once
            if node is not None and node.connected:
                job.fired[text] = now.wall
                said, send = self.inject(fault)
                if fault.kind not in fault_syntax.UNANSWERED_KINDS:
                    job.unanswered[text] = send.command.id
                    self._ordered.add(send.command.id)
                actions += [Record("job", job.spec.id, job.to_doc()), said, send]
        return actions

    def _ask_again(self, job: Job, text: str, fault: fault_syntax.FaultSpec) -> list[Action]:
        """An order in the journal of an earlier run may never have been sent. Under the same id, an agent that
        did it only answers again."""
        sent = job.unanswered[text]
        name = _node_of(fault, job)
        node = self.c.nodes.get(name) if name is not None else None
        if (
            name is None
            or sent in self._ordered
            or node is None
            or not node.connected
            or self.c.life.stage is not Stage.UP
        ):
            return []
        self._ordered.add(sent)
        order = msg.Inject(fault.order, fault.rank)
        return [self.c.commands.issue(name, job.spec.id, job.generation, order, self._answered, id=sent)]

    def _answered(self, result: msg.CommandResult, now: Instant) -> list[Action]:
        """An agent reports a fault that it was ordered, done or not."""
        job = self.c.job
        text = next((text for text, sent in job.unanswered.items() if sent == result.id), None)
        if text is None:
            return []  # requested by an operator
        del job.unanswered[text]
        return [Record("job", job.spec.id, job.to_doc())]

    def fault(self, fault: fault_syntax.FaultSpec) -> list[Action]:
        """Break something now, or when its step is reached. UsageError when that cannot be."""
        if fault.step is None:
            return list(self.inject(fault))
        self.arm(fault)
        return []

    def inject(self, fault: fault_syntax.FaultSpec) -> tuple[Say, Send]:
        """Break something now. UsageError when that cannot be."""
        return injection(self.c.cluster, self.c.active, fault, self._answered)

    def checkpoint(self) -> list[Action]:
        """Ask rank 0 for a checkpoint. Conflict when nothing trains, or rank 0 could not receive it."""
        job = self.c.active
        if job is None or self.c.life.stage is not Stage.UP:
            raise Conflict("no job is training: a checkpoint needs a running job")
        name = job.node_of(0)
        node = self.c.nodes.get(name)
        if node is None or not node.connected:
            raise Conflict(f"node {name}, which has rank 0, is not connected: try again when it is")
        return [
            Say("checkpoint.asked", {"job": job.spec.id, "node": name}),
            self.c.commands.issue(name, job.spec.id, job.generation, msg.RequestCheckpoint()),
        ]

    def precaution(self, now: Instant) -> list[Action]:
        """A checkpoint while the ranks can still make it: a finding predicts a fault."""
        if now.mono - self._precaution_at < _PRECAUTIONS_APART:
            return []
        return self.checkpoint_if_possible(now)

    def checkpoint_if_possible(self, now: Instant) -> list[Action]:
        """One if the job trains and rank 0 can be asked."""
        try:
            actions = self.checkpoint()
        except Conflict:
            return []  # nothing trains, or no rank could be asked
        self._precaution_at = now.mono
        return actions

    def arm(self, fault: fault_syntax.FaultSpec) -> None:
        """Let a fault strike when the running job reaches its step. UsageError when it never can."""
        job = self.c.active
        if job is None:
            raise Conflict(f"fault {str(fault)!r}: no job is running")
        names = self.c.cluster.nodes
        fault_syntax.check_fault(fault, job.spec.world, job.spec.nnodes, job.spec.max_steps, names)
        job.spec = dataclasses.replace(job.spec, faults=(*job.spec.faults, str(fault)))


def _node_of(fault: fault_syntax.FaultSpec, job: Job) -> str | None:
    """Where it strikes; None where the job has no such rank or node now."""
    if fault.is_on_node:
        return fault.node_among(job.nodes)
    return job.node_of(fault.rank) if fault.rank < job.world else None


def injection(
    cluster: ClusterState, job: Job | None, fault: fault_syntax.FaultSpec, answered: Answered
) -> tuple[Say, Send]:
    """The order that breaks something now, on a rank or a node of the job; without one, on a node of the cluster.

    UsageError when that cannot be.
    """
    if fault.kind in fault_syntax.CONTROLLER_KINDS:
        raise UsageError(f"fault {str(fault)!r}: the controller does not kill itself on request; kill its process")
    names = job.nodes if job is not None and job.nodes else sorted(cluster.nodes, key=natural)
    if fault.rank >= 0 and (job is None or not job.nodes):
        raise Conflict(f"fault {str(fault)!r}: no job is running")
    fault_syntax.check_fault(fault, job.world if job is not None else 0, len(names), names=cluster.nodes)
    node = job.node_of(fault.rank) if job is not None and fault.rank >= 0 else fault.node_among(names)
    if node is None:
        raise Conflict(f"fault {str(fault)!r}: the job has no rank on {fault.target}")
    if node not in cluster.nodes or not cluster.nodes[node].connected:
        raise Conflict(f"fault {str(fault)!r}: {node} is not connected; try again when it is")
    job_id, generation = (job.spec.id, job.generation) if job is not None else ("", 0)
    send = cluster.commands.issue(node, job_id, generation, msg.Inject(fault.order, fault.rank), answered)
    return Say("inject", {"fault": str(fault), "node": node}), send
