"""All that the controller holds in its head, and the small questions that several decisions ask of it."""

from dataclasses import dataclass, field

from holdfast.controller.detectors.agents.silence import frame_interval
from holdfast.controller.detectors.base.table import Tuning
from holdfast.controller.detectors.network.traffic import TrafficDetector
from holdfast.controller.job.incidents import IncidentBook
from holdfast.controller.job.lifecycle import Lifecycle
from holdfast.controller.state.commands import CommandBook
from holdfast.controller.state.goodput import Goodput
from holdfast.controller.state.history import History
from holdfast.controller.state.ledger import Ledger
from holdfast.controller.state.model import Instant, Job, Node, Options, RankTable
from holdfast.wire import types as t


@dataclass(slots=True)
class Cluster:
    options: Options
    life: Lifecycle
    commands: CommandBook
    nodes: dict[str, Node] = field(default_factory=dict)
    connected: int = 0  # nodes that have a stream: a name that was said once makes nobody speak less often
    histories: dict[str, History] = field(default_factory=dict)  # by node, of absent ones too
    job: Job | None = None
    plan: t.PlanPublished | None = None  # what the job's rank 0 said that it does in every step
    ranks: RankTable = field(default_factory=lambda: RankTable(0))
    ledger: Ledger = field(default_factory=Ledger)
    time: Goodput = field(default_factory=Goodput)
    book: IncidentBook = field(default_factory=IncidentBook)
    tuning: Tuning = field(init=False)
    traffic: TrafficDetector = field(init=False)
    progress_at: float = 0.0  # mono of the newest new step
    reconcile_until: float = 0.0  # mono until which nodes may still report after our own restart
    dropped: dict[str, int] = field(default_factory=dict)  # what nodes said of what they do not hold, by reason

    def __post_init__(self) -> None:
        self.tuning = Tuning(self.options.detectors)
        self.traffic = TrafficDetector(self.tuning)

    @property
    def cadence(self) -> float:
        """Seconds between frames that each agent is asked for."""
        return frame_interval(self.connected, self.options)

    @property
    def active(self) -> Job | None:
        """The job, unless it is over."""
        return None if self.job is None or self.job.state.ended else self.job

    def set_healthy(self, node: Node) -> None:
        if node.history.cordoned or node.leaving:
            node.state = t.NodeState.CORDONED
            return
        if node.history.evicted and not self.holds(node.name):
            node.state, node.reason = t.NodeState.FAULTY, node.history.evicted
            return
        job = self.active
        spare = job is not None and bool(job.nodes) and not job.ranks_on(node.name)
        node.state, node.reason = (t.NodeState.SPARE if spare else t.NodeState.HEALTHY), ""

    def holds(self, node: str) -> bool:
        """Does this node hold ranks of the running job?"""
        return self.active is not None and bool(self.active.ranks_on(node))

    def is_of(self, node: str, job: str, generation: int, rank: int) -> bool:
        """Does this node hold, or did it hold, this rank in that generation of the job? Counts it if not. `job`: empty
        from agents that do not say."""
        if self.job is None or job not in ("", self.job.spec.id) or generation > self.job.generation:
            self.drop("stale")
            return False
        held = self.job.held_by(node, generation)
        if rank not in (range(self.ranks.world) if held is None else held):
            self.drop("foreign")
            return False
        return True

    def drop(self, reason: str, many: int = 1) -> None:
        self.dropped[reason] = self.dropped.get(reason, 0) + many

    def history(self, node: str) -> History:
        """Of any node, known by now or not; the same object for ever."""
        return self.histories.setdefault(node, History())

    def evictions(self, now: Instant) -> int:
        """Nodes that we took out within the last hour."""
        return sum(history.evicted_at > now.wall - 3600.0 for history in self.histories.values())

    def present(self, name: str) -> bool:
        node = self.nodes.get(name)
        return node is not None and node.connected and node.state is not t.NodeState.SUSPECT

    def away_for(self, name: str, now: Instant) -> float:
        """Seconds since this node last spoke; for one that has not yet come back to us, since our own start."""
        node = self.nodes.get(name)
        if node is None:
            return now.mono - (self.reconcile_until - self.options.agent_grace)
        return now.mono - (node.frame_at if node.connected else node.left_at)

    def reconciled(self, job: Job, now: Instant) -> bool:
        """After our own restart in the middle of a change: everybody is back, or had the time to be."""
        return now.mono >= self.reconcile_until or all(self.present(n) for n in job.nodes)

    def stale(self, job: Job) -> bool:
        """Does the table still show an older generation?"""
        return self.ranks.world != job.world or bool((self.ranks.generation != job.generation).any())
