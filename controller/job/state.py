"""The controller's state of one job, and the queries about the cluster that its decisions need."""

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.controller.cluster.incidents import JobIncidents
from holdfast.controller.cluster.state import ClusterState
from holdfast.controller.detectors.base.table import Tuning
from holdfast.controller.detectors.network.traffic import TrafficDetector
from holdfast.controller.job.ending.end_phase import EndPhase
from holdfast.controller.job.lifecycle import Lifecycle
from holdfast.controller.job.stages import Stage
from holdfast.controller.state.commands import CommandBook
from holdfast.controller.state.goodput import Goodput
from holdfast.controller.state.history import History
from holdfast.controller.state.ledger import Ledger
from holdfast.controller.state.model import Instant, Job, Node, Options
from holdfast.controller.state.ranks import RankTable
from holdfast.wire import types as t


@dataclass(slots=True)
class JobState:
    cluster: ClusterState
    job: Job
    life: Lifecycle
    free_nodes: Callable[[], list[Node]]
    """Nodes that the job may be placed on now: its own, and those that its place in the queue gives it."""
    is_queued: Callable[[], bool]
    """Does it wait only because other jobs hold the nodes that it needs?"""
    plan: t.PlanPublished | None = None  # what its rank 0 said that it does in every step
    ranks: RankTable = field(default_factory=lambda: RankTable(0))
    ledger: Ledger = field(default_factory=Ledger)
    time: Goodput = field(default_factory=Goodput)
    book: JobIncidents = field(init=False)
    traffic: TrafficDetector = field(init=False)
    progress_at: float = 0.0  # mono of the newest new step
    end_phase: EndPhase = field(default_factory=EndPhase)

    def __post_init__(self) -> None:
        self.book = JobIncidents(self.cluster.book, self.job)
        self.traffic = TrafficDetector(self.cluster.tuning)

    @property
    def active(self) -> Job | None:
        """The job, unless it is over."""
        return None if self.job.state.ended else self.job

    @property
    def may_begin(self) -> bool:
        """May another generation start? Not of a job that is over, is ending, or is to be stopped: the controller may
        have restarted between the request and the end."""
        return not self.job.state.ended and not self.job.stop_asked and self.life.stage is not Stage.ENDING

    def ending_since(self, now: Instant) -> float | None:
        """Mono since which the running generation only ends; None while it trains, or is not up."""
        if self.life.stage is not Stage.UP:
            return None
        return self.end_phase.since(self.job, self.ranks, self.progress_at, now)

    def holds(self, node: str) -> bool:
        """Does this node hold ranks of the running job?"""
        return not self.job.state.ended and bool(self.job.ranks_on(node))

    def stale(self) -> bool:
        """Does the table still show an older generation?"""
        return self.ranks.world != self.job.world or bool((self.ranks.generation != self.job.generation).any())

    # --- of the cluster ----------------------------------------------------------------------------------------

    @property
    def options(self) -> Options:
        return self.cluster.options

    @property
    def commands(self) -> CommandBook:
        return self.cluster.commands

    @property
    def nodes(self) -> dict[str, Node]:
        return self.cluster.nodes

    @property
    def tuning(self) -> Tuning:
        return self.cluster.tuning

    @property
    def reconcile_until(self) -> float:
        return self.cluster.reconcile_until

    def is_of(self, node: str, job: str, generation: int, rank: int) -> bool:
        """Does this node hold, or did it hold, this rank in that generation of the job? Counts it if not."""
        return self.cluster.find(node, job or self.job.spec.id, generation, rank) is self.job

    def others_on(self, node: str) -> list[str]:
        """Ids of the jobs that this one shares the node with."""
        return self.cluster.others_on(node, self.job.spec.id)

    @property
    def shares_nodes(self) -> bool:
        """Are other jobs on its nodes? Then the time of its steps is theirs, too, and says nothing of a fault."""
        return bool(self.job.spec.share_bytes) and bool(self.cluster.beside(self.job))

    def drop(self, reason: str) -> None:
        self.cluster.drop(reason)

    def set_healthy(self, node: Node) -> None:
        self.cluster.set_healthy(node)

    def history(self, node: str) -> History:
        return self.cluster.history(node)

    def evictions(self, now: Instant) -> int:
        return self.cluster.evictions(now)

    def present(self, name: str) -> bool:
        return self.cluster.present(name)

    def away_for(self, name: str, now: Instant) -> float:
        return self.cluster.away_for(name, now)

    def reconciled(self, now: Instant) -> bool:
        return self.cluster.reconciled(self.job.nodes, now)
