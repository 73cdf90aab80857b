"""A job's generations: place, stop what is left, make sure of a store, launch, run, give its nodes up, end.

Two generations never overlap: a launch waits until every node that may still hold workers of an older one has
answered that they are gone, or is lost (its workers cannot join: each generation has its own store, and an
agent that comes back is asked to end them first).
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from holdfast.controller.job.stages import Stage, StageEvent, StageMachine
from holdfast.controller.state.commands import CommandBook
from holdfast.controller.state.events import Action, Record, Say, Send
from holdfast.controller.state.model import PAST, Instant, Job, JobStatus, Node, Options
from holdfast.controller.state.ranks import RankState, RankTable
from holdfast.wire import messages as msg
from holdfast.wire import rollback, turns
from holdfast.wire import types as t
from holdfast.wire.holds import HOLD


@dataclass(slots=True)
class Failure:
    """A command that could not be done: what it was for, where, and the agent's own text."""

    what: str
    node: str
    error: str
    is_refused: bool = False
    """Can the node tell that it never works? The request is wrong then, and no restart attempt helps."""
    hold: str = ""
    """Of workers that do not end: why (`wire.holds`). Empty: not known."""

    @property
    def kind(self) -> t.FindingKind:
        return t.FindingKind.RENDEZVOUS if self.what == "store" else t.FindingKind.WORKER_EXIT


@dataclass(slots=True)
class Lifecycle:
    commands: CommandBook
    options: Options
    on_answer: Callable[[msg.CommandResult, Instant], list[Action]]
    """What an answer to a command of a transition is given to."""
    choose: Callable[[Job, Instant], tuple[list[str], str]]
    """The nodes of the next generation by group rank; none, and why, when there is no room for it now."""
    on_nodes: Callable[[Job], None]
    """Called when the job holds other nodes than before."""
    machine: StageMachine = field(default_factory=StageMachine)
    placement: list[str] = field(default_factory=list)
    waiting: dict[str, tuple[str, str]] = field(default_factory=dict)  # command id -> (what, node)
    unstopped: set[str] = field(default_factory=set)  # gone nodes that may still hold workers
    given_up: set[str] = field(default_factory=set)  # of those, which never came back after the controller's restart
    deadline: float = 0.0
    up_at: float = 0.0  # mono at which the running generation was up
    store: str = ""
    stores_at: set[str] = field(default_factory=set)  # nodes that were asked for the store of the next generation
    final: tuple[JobStatus, str, int] | None = None
    waiting_since: float | None = None  # no room for the next generation since
    missing: str = ""
    pending_diagnosis: str | None = None  # the node that is tested before the next generation starts
    pending_since: float = 0.0
    # Mono at which the next generation may start: the ones before made no progress. That clock may begin below 0: the
    # simulated past of a machine that has booted since.
    not_before: float = -math.inf
    dropped: list[str] = field(default_factory=list)  # nodes that the newest generation lacks, of the one before
    taken: list[str] = field(default_factory=list)  # and those that it has in addition
    unreported: set[str] = field(default_factory=set)  # after a controller restart: nodes with an unknown launch
    repeated: list[str] = field(default_factory=list)  # nodes that held too few workers of it, and were asked again
    is_adopting: bool = False
    story: str = ""  # what came of the adoption, as text
    gives_up: bool = False  # its nodes, once its workers are gone: another job with a higher priority gets them

    @property
    def stage(self) -> Stage:
        return self.machine.stage

    # --- commands ----------------------------------------------------------------------------------------------

    def send(self, job: Job, node: str, what: str, order: msg.Order) -> Send:
        send = self.commands.issue(node, job.spec.id, job.generation, order, self.on_answer)
        self.waiting[send.command.id] = (what, node)
        return send

    # --- transitions -------------------------------------------------------------------------------------------

    def begin(self, job: Job, nodes: dict[str, Node], now: Instant) -> list[Action]:
        """Clear what is left of the running generation and prepare the next one, in parallel."""
        self.machine.apply(StageEvent.BEGIN)
        self.waiting.clear()
        self.unreported.clear()
        self.is_adopting, self.story, job.launching = False, "", False
        self.placement = []
        self.final = None
        self.store = ""
        self.deadline = now.mono + self.options.stop_timeout
        job.state = JobStatus.RECOVERING if job.generation else JobStatus.STARTING
        actions: list[Action] = [Record("job", job.spec.id, job.to_doc())]
        actions += self._stop_all(job, nodes, 0.0)
        return actions + self.advance(job, nodes, now)

    def requeue(self, job: Job, nodes: dict[str, Node], now: Instant) -> list[Action]:
        """End the running generation, give all nodes up, and wait for others in the queue."""
        self.gives_up = True
        return self.begin(job, nodes, now)

    def _give_up(self, job: Job) -> list[Action]:
        """The last worker is gone: the nodes are free."""
        self.gives_up = False
        job.release()
        job.state = JobStatus.PENDING
        self.unstopped.clear()
        self.on_nodes(job)
        return [
            Record("job", job.spec.id, job.to_doc()),
            Say("job.requeued", {"job": job.spec.id, "generation": job.generation}),
        ]

    def end(
        self,
        job: Job,
        nodes: dict[str, Node],
        final: tuple[JobStatus, str, int],
        grace: float,
        now: Instant,
    ) -> list[Action]:
        """End the job for good: workers first, then the record. `final`: state, reason, exit code."""
        self.machine.apply(StageEvent.END)
        self.waiting.clear()
        self.final = final
        self.deadline = now.mono + grace + self.options.stop_timeout
        unused = self._stop_stores(job, job.generation + 1)
        return [*self._stop_all(job, nodes, grace), *unused, *self.advance(job, nodes, now)]

    def _stop_stores(self, job: Job, generation: int) -> list[Action]:
        """Stores that were started for this generation, which has no use for them."""
        names, self.stores_at = sorted(self.stores_at), set()
        return [self.commands.issue(name, job.spec.id, generation, msg.StopWorkers()) for name in names]

    def _stop_all(self, job: Job, nodes: dict[str, Node], grace: float) -> list[Action]:
        actions: list[Action] = []
        self.unstopped = set()
        for name in job.nodes:
            node = nodes.get(name)
            if node is not None and node.connected and node.state is not t.NodeState.LOST:
                actions.append(self.send(job, name, "stop", msg.StopWorkers(grace)))
                continue
            self.unstopped.add(name)
            if node is not None and node.connected:  # its stream is still open: it may yet receive it
                actions.append(self.commands.issue(name, job.spec.id, job.generation, msg.StopWorkers(grace)))
        return actions

    def advance(self, job: Job, nodes: dict[str, Node], now: Instant) -> list[Action]:
        """Go on as far as the answers allow. Called after every answer, arrival, loss and tick."""
        if self.stage is Stage.DRAINING:
            return self._clear(job, nodes, now)
        if self.stage is Stage.LAUNCHING and not self.waiting and not self.unreported:
            self.machine.apply(StageEvent.STARTED)
            self.up_at = now.mono
            job.state, job.launching = JobStatus.RUNNING, False
            self._report_adoption(job)
            return [Record("job", job.spec.id, job.to_doc())]
        if self.stage is Stage.ENDING and not self._outstanding("stop") and self.final:
            self.machine.apply(StageEvent.GONE)
            job.state, job.reason, job.exit_code = self.final
            job.ended_at = now.wall
            self.waiting_since = None
            self.on_nodes(job)
            return [
                Record("job", job.spec.id, job.to_doc()),
                Say("job.ended", {"job": job.spec.id, "state": job.state.value, "reason": job.reason}),
            ]
        return []

    def _give_time(self, now: Instant) -> None:
        """Something is asked late in a change, maybe hours after it began: its answer has its time, too."""
        self.deadline = max(self.deadline, now.mono + self.options.stop_timeout)

    def _outstanding(self, what: str) -> bool:
        return any(w == what for w, _ in self.waiting.values())

    @property
    def stopping(self) -> bool:
        """Is any node still ending workers?"""
        return self._outstanding("stop")

    def _clear(self, job: Job, nodes: dict[str, Node], now: Instant) -> list[Action]:
        actions: list[Action] = []
        if self.gives_up:
            if self._outstanding("stop") or self._blocked(nodes):
                return actions
            actions += self._give_up(job)
        if self.waiting and self.waiting_since is None and (self.store or self._outstanding("store")):
            return actions  # the last answer decides: choosing again at each of thousands would take seconds
        chosen, missing = self.choose(job, now)
        if not chosen:
            # No node to run it yet; a node that only lost its agent for a moment will be back.
            self.missing, self.placement = missing, []
            self.waiting_since = now.mono if self.waiting_since is None else self.waiting_since
            job.reason = f"waiting for nodes: {missing}"
            if not job.nodes:
                job.state = JobStatus.PENDING
            return actions
        self.waiting_since, self.missing = None, ""
        if job.state is JobStatus.PENDING:
            job.state = JobStatus.RECOVERING if job.generation else JobStatus.STARTING
        if not self.store and not self._outstanding("store"):
            self.placement = chosen
            self._give_time(now)
            if not job.generation:  # nothing runs yet, and a node that just came up may still import
                self.deadline = max(self.deadline, now.mono + self.options.start_timeout)
            self.stores_at.add(chosen[0])
            actions.append(self.send(job, chosen[0], "store", msg.StartStore("")))
        if self.waiting or self._blocked(nodes) or not self.store or self.pending_diagnosis is not None:
            return actions
        if now.mono < self.not_before:
            return actions
        if not all(name in nodes and nodes[name].usable for name in self.placement) or self.placement != chosen:
            self.store = ""  # a node left meanwhile: ask again, on the new first node
            return actions + self._clear(job, nodes, now)
        return actions + self._launch(job, now)

    def _blocked(self, nodes: dict[str, Node]) -> bool:
        """May a node that is gone still hold workers? After a controller restart, nodes that have not come back are
        unknown, and may well hold some."""
        unheard = self.unstopped - self.given_up
        return any(n not in nodes or nodes[n].state is not t.NodeState.LOST for n in unheard)

    def _launch(self, job: Job, now: Instant) -> list[Action]:
        self.machine.apply(StageEvent.LAUNCH)
        self.deadline = now.mono + self.options.start_timeout
        if job.generation:
            job.restarts += 1
        else:
            job.started_at = now.wall
        job.generation += 1
        job.launching = True
        job.unanswered.clear()
        job.life_first = job.life_last = -1
        job.progress.launch(job.generation, job.best_step + 1, now.wall)
        if job.generation > 1 and job.nodes:
            job.past = [*job.past, (job.generation - 1, list(job.nodes))][-PAST:]
        self.dropped = [name for name in job.nodes if name not in self.placement]
        self.taken = [name for name in self.placement if job.nodes and name not in job.nodes]
        job.nodes, job.store, job.reason = list(self.placement), self.store, ""
        self.on_nodes(job)
        actions: list[Action] = [Record("job", job.spec.id, job.to_doc())]
        self.stores_at.difference_update(job.nodes)  # where its workers end, its stores do
        actions += self._stop_stores(job, job.generation)
        actions += [self.send(job, name, "start", _start_order(job, name)) for name in job.nodes]
        placed = dict(enumerate(job.nodes))
        actions.append(Say("job.launch", {"job": job.spec.id, "generation": job.generation, "nodes": placed}))
        return actions

    # --- after a controller restart ----------------------------------------------------------------------------

    def resume(self) -> None:
        """The generation was up when the controller died."""
        self.machine.apply(StageEvent.RESUME)

    def adopt(self, job: Job, now: Instant) -> None:
        """The controller died during the launch: each node's report decides whether the launch is repeated there."""
        self.machine.apply(StageEvent.ADOPT)
        self.is_adopting = True
        self.unreported, self.repeated = set(job.nodes), []
        self.placement, self.store = list(job.nodes), job.store
        self.deadline = now.mono + self.options.start_timeout

    def reported(self, job: Job, name: str, missing: Collection[int]) -> list[Action]:
        """A node reported what it holds. `missing`: ranks that it lacks of the generation that is being adopted. Should
        an older order of the same still arrive, it starts none twice."""
        if self.stage is not Stage.LAUNCHING or name not in self.unreported:
            return []
        self.unreported.discard(name)
        if not missing:
            return []
        self.repeated.append(name)
        return [self.send(job, name, "start", _start_order(job, name, missing))]

    def _report_adoption(self, job: Job) -> None:
        if not self.is_adopting:
            return
        self.is_adopting = False
        held = [name for name in job.nodes if name not in self.repeated]
        parts = [f"{', '.join(held)} had the workers of generation {job.generation}"] if held else []
        parts += [f"{', '.join(self.repeated)} lacked them and started them again"] if self.repeated else []
        self.story = f"{'; '.join(parts)}: the launch was adopted, no worker was stopped"

    # --- answers -----------------------------------------------------------------------------------------------

    def answered(self, result: msg.CommandResult) -> Failure | None:
        """Note an answer; a failure to start or to make a store is the caller's to judge."""
        what, node = self.waiting.pop(result.id, ("", ""))
        if not what:
            return None
        # In a recording that is replayed on, the answer may be to another command.
        if what == "store" and result.ok and {"host", "port"} <= result.data.keys():
            self.store = f"{result.data['host']}:{result.data['port']}"
        if result.ok:
            return None
        return Failure(what, node, result.error, "refused" in result.data, result.data.get(HOLD, ""))

    def stop_again(self, job: Job, name: str, now: Instant) -> list[Action]:
        """The workers of this node are held, and end when they are let go: wait for them."""
        self._give_time(now)
        return [self.send(job, name, "stop", msg.StopWorkers(0.0))]

    def node_left(self, name: str) -> None:
        """Its answers will not come; what it holds is not known to have ended."""
        stopping = {i for i, (_, n) in self.waiting.items() if n == name}
        if any(self.waiting[i][0] in ("stop", "start") for i in stopping):
            self.unstopped.add(name)
        for i in stopping:
            del self.waiting[i]

    def node_back(self, job: Job, name: str, now: Instant, holds: bool = False) -> list[Action]:
        """Repeat the commands that a reconnected node may have missed, also for a node that was marked lost while its
        workers run on. `holds`: its hello reported running workers of the job."""
        if self.stage in (Stage.DRAINING, Stage.ENDING) and (holds or name in self.unstopped):
            self.unstopped.discard(name)
            self._give_time(now)
            return [self.send(job, name, "stop", msg.StopWorkers(0.0))]
        return []

    def overdue(self, silent: Collection[str], now: Instant) -> list[Failure]:
        """Commands without an answer in time, with their nodes. A stop stays with a node that is silent: that explains
        it, and what silence comes to is decided elsewhere."""
        if not self.waiting or now.mono < self.deadline:
            return []
        kept = {id: (what, node) for id, (what, node) in self.waiting.items() if what == "stop" and node in silent}
        late = [Failure(what, node, "no answer in time") for id, (what, node) in self.waiting.items() if id not in kept]
        self.waiting = kept
        return late

    @property
    def awaited(self) -> set[str]:
        """Nodes that have not answered yet that their workers are gone."""
        return {node for what, node in self.waiting.values() if what == "stop"}


def _start_order(job: Job, name: str, only: Collection[int] | None = None) -> msg.StartWorkers:
    """The start command of a node for the running generation: all its ranks, or only these."""
    program = job.spec.program
    layout = job.spec.layout_on(len(job.nodes))
    if layout is not None:
        program = replace(program, args=(*program.args, *layout.args))
    if job.rollbacks:
        reported = {rollback.VARIABLE: rollback.to_text(job.rollbacks)}
        program = replace(program, env={**program.env, **reported})
    if job.spec.share_bytes:
        program = replace(program, env={**program.env, turns.SHARES: "1"})
    host, _, port = job.store.rpartition(":")
    group = job.nodes.index(name)
    return msg.StartWorkers(
        program=program,
        ranks=tuple(msg.Rank(r, i, group) for i, r in enumerate(job.ranks_on(name)) if only is None or r in only),
        world_size=job.world,
        nnodes=len(job.nodes),
        master_addr=host,
        master_port=int(port),
        max_restarts=max(job.spec.max_restarts, 0),
    )


def fresh_table(job: Job) -> RankTable:
    """All ranks of a new generation: expected to run, nothing known of them yet."""
    table = RankTable(job.world)
    table.generation[:] = job.generation
    table.base = job.progress.base(job.generation)
    for rank in range(job.world):
        table.mark(rank, RankState.RUNNING)
    return table
