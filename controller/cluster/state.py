"""The controller's state of the cluster: nodes, the jobs that hold them, incidents, commands. Plain state, no I/O."""

from collections.abc import Collection
from dataclasses import dataclass, field

from holdfast.controller.cluster.incidents import IncidentBook
from holdfast.controller.detectors.agents.silence import frame_interval
from holdfast.controller.detectors.base.table import Tuning
from holdfast.controller.state.commands import CommandBook
from holdfast.controller.state.history import History
from holdfast.controller.state.model import Instant, Job, Node, Options
from holdfast.planner.placement.sites import SlowLinks
from holdfast.wire import types as t


@dataclass(slots=True)
class ClusterState:
    options: Options
    commands: CommandBook
    nodes: dict[str, Node] = field(default_factory=dict)
    connected: int = 0  # nodes that have a stream: a name seen once lengthens no heartbeat interval
    histories: dict[str, History] = field(default_factory=dict)  # by node, of absent ones too
    jobs: dict[str, Job] = field(default_factory=dict)  # by id, in the order of their submission; ended ones too
    unread_jobs: set[str] = field(default_factory=set)
    """Jobs of the journal that cannot be read and may not be over: what runs of them is left alone."""
    holders: dict[str, tuple[Job, ...]] = field(default_factory=dict)
    """Node -> the active jobs whose newest generation is placed there: one, or several that share, in their order."""
    book: IncidentBook = field(default_factory=IncidentBook)
    tuning: Tuning = field(init=False)
    reconcile_until: float = 0.0  # mono until which nodes may still report after a controller restart
    slow: SlowLinks = field(default_factory=SlowLinks)  # ways that diagnoses found slow: no group is to use them
    steps_total: int = 0  # steps of all jobs, each once
    dropped: dict[str, int] = field(default_factory=dict)  # what nodes said of what they do not hold, by reason

    def __post_init__(self) -> None:
        self.tuning = Tuning(self.options.detectors)

    # --- jobs and their nodes ----------------------------------------------------------------------------------

    @property
    def newest(self) -> Job | None:
        """The job that was submitted last."""
        return next(reversed(self.jobs.values()), None)

    def active(self) -> list[Job]:
        """Jobs that are not over, those that get nodes first in front."""
        return sorted((job for job in self.jobs.values() if not job.state.ended), key=lambda job: job.order)

    def holder(self, node: str) -> Job | None:
        """The active job that this node belongs to; of several that share it, the first."""
        return next(iter(self.holders.get(node, ())), None)

    def holders_of(self, node: str) -> tuple[Job, ...]:
        return self.holders.get(node, ())

    def hold(self, job: Job) -> None:
        """The job holds the nodes of its newest generation, and no others."""
        self.let_go(job)
        for name in job.nodes:
            beside = (one for one in self.holders.get(name, ()) if one.spec.share_bytes and job.spec.share_bytes)
            self.holders[name] = tuple(sorted((*beside, job), key=lambda one: one.order))

    def let_go(self, job: Job) -> None:
        for name in [name for name, held in self.holders.items() if any(one is job for one in held)]:
            if left := tuple(one for one in self.holders[name] if one is not job):
                self.holders[name] = left
            else:
                del self.holders[name]

    def others_on(self, node: str, job: str) -> list[str]:
        """Ids of other jobs that hold this node."""
        return [one.spec.id for one in self.holders.get(node, ()) if one.spec.id != job]

    def beside(self, job: Job) -> list[Job]:
        """Jobs that hold nodes which this one holds too, in their order."""
        found = {one.spec.id: one for name in job.nodes for one in self.holders_of(name) if one is not job}
        return sorted(found.values(), key=lambda one: one.order)

    def find(self, node: str, job: str, generation: int, rank: int) -> Job | None:
        """The job of which this node holds, or held, this rank in that generation; None is counted. `job`: empty from
        agents that do not say, which mean the one that holds them."""
        known = self.jobs.get(job) if job else self.holder(node) or self.newest
        if known is None or generation > known.generation:
            self.drop("stale")
            return None
        held = known.held_by(node, generation)
        if rank not in (range(known.world) if held is None else held):
            self.drop("foreign")
            return None
        return known

    def drop(self, reason: str, many: int = 1) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + many

    # --- nodes -------------------------------------------------------------------------------------------------

    @property
    def heartbeat_interval(self) -> float:
        """Seconds between frames that each agent is asked for."""
        return frame_interval(self.connected, self.options)

    def set_healthy(self, node: Node) -> None:
        node.frozen = False
        if node.history.cordoned or node.leaving:
            node.state = t.NodeState.CORDONED
            return
        holder = self.holder(node.name)
        if node.history.evicted and holder is None:
            node.state, node.reason = t.NodeState.FAULTY, node.history.evicted
            return
        spare = holder is None and bool(self.holders)
        node.state, node.reason = (t.NodeState.SPARE if spare else t.NodeState.HEALTHY), ""

    def history(self, node: str) -> History:
        """Of any node, known by now or not; always the same object."""
        return self.histories.setdefault(node, History())

    def evictions(self, now: Instant) -> int:
        """Nodes that were evicted within the last hour."""
        return sum(history.evicted_at > now.wall - 3600.0 for history in self.histories.values())

    def present(self, name: str) -> bool:
        node = self.nodes.get(name)
        return node is not None and node.connected and node.state is not t.NodeState.SUSPECT

    def away_for(self, name: str, now: Instant) -> float:
        """Seconds since this node's last frame; for one that has not reconnected yet, since the controller's start."""
        node = self.nodes.get(name)
        if node is None:
            return now.mono - (self.reconcile_until - self.options.agent_grace)
        return now.mono - (node.frame_at if node.connected else node.left_at)

    def reconciled(self, nodes: Collection[str], now: Instant) -> bool:
        """After a controller restart in the middle of a change: all of these are back, or had the time to be."""
        return now.mono >= self.reconcile_until or all(self.present(name) for name in nodes)
