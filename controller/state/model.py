"""What the controller knows: plain state, no I/O, no clock of its own.

Every moment comes in as an `Instant`: `mono` decides, `wall` is for display and for the journal.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

from holdfast.controller.state import doc_types
from holdfast.controller.state.former_names import current
from holdfast.controller.state.history import History
from holdfast.controller.state.progress import Progress
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from holdfast.wire.rollback import Rollback


@dataclass(frozen=True, slots=True)
class Instant:
    mono: float
    wall: float


@dataclass(frozen=True, slots=True)
class Options:
    """The tunables of every decision, in one place."""

    heartbeat_interval: float = 0.25
    """Seconds between frames in a small cluster."""
    frames_per_second: float = 1536.0
    """The load limit of one controller: beyond it every agent is asked for a longer heartbeat interval."""
    silence_floor: float = 0.8
    """No node is called silent before this many seconds, however regular it was."""
    silence_beats: float = 3.0
    """Missed beats before silence counts."""
    hang_steps: float = 2.0
    """A worker that cannot go on is dead after this many median steps ..."""
    hang_floor: float = 0.75
    """... plus this many seconds, half of them when the kernel says that its process is stopped."""
    hang_limit_start: float = 10.0
    """Seconds after which it is instead, before the first step of an attempt and outside of training."""
    stuck_limit: float = 180.0
    """Seconds after which a job is restarted whose ranks are all in the same operation while nothing of any of them
    moves: the network's time, not theirs. TCP repeats what a link lost for a minute up to 102 s after the loss."""
    pause_limit: float = 1800.0
    """Seconds after which a job is restarted that stands still while what holds it up is busy."""
    idle_limit: float = 60.0
    """The same where what holds it up is idle: it neither computes nor reads, writes or moves anything."""
    idle_limit_start: float = 300.0
    """The same before the first step of an attempt, and in a phase in which the script expects no steps."""
    exit_limit: float = 600.0
    """Seconds that idle ranks are waited for once another has ended with 0 and no step is made any more."""
    pause_alert: float = 300.0
    """Seconds after which an alert about a pause is sent, unless it was as long at the same place before."""
    agent_grace: float = 10.0
    """Seconds that an agent may be gone before its node counts as lost, if training stalls without it."""
    spare_grace: float = 3.0
    """The same where a spare waits to take the node's place."""
    grow_after: float = 30.0
    """Seconds that there must be room before a job that had shrunk grows again."""
    settle: float = 0.3
    """Seconds to wait for a better explanation when the first exit looks like a victim's."""
    restart_attempts: int = 3
    """Starts without any progress, ended by the same traceback, before the job is marked failed."""
    restart_attempts_fault: int = 5
    """The same for faults that are not the script's own."""
    restart_backoff: float = 0.0
    """Longest wait between attempts that the program ends without progress; 0, as in recordings from before there was
    one: none."""
    node_failures: int = 3
    """Faults that began on the same node within `failure_window` before it goes, if there is another to take."""
    failure_window: float = 86400.0
    max_evictions: int = 6
    """Nodes evicted within an hour beyond which none is evicted any more: the nodes cannot be the cause."""
    stop_timeout: float = 20.0
    start_timeout: float = 120.0
    detectors: tuple[str, ...] = ()
    """Settings of single detectors, "NAME.KEY=VALUE": see detectors/table.py."""


LIMITS = ("hang_steps", "hang_floor", "hang_limit_start", "stuck_limit", "pause_limit", "idle_limit",
          "idle_limit_start", "exit_limit", "pause_alert")  # fmt: skip
"""Those of the options that a job may set for itself."""


PAST = 8
"""Generations before the running one of which the placement is kept: late records of theirs may still come."""


class JobStatus(StrEnum):
    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    RECOVERING = "recovering"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def ended(self) -> bool:
        return self in ENDED


ENDED = (JobStatus.FINISHED, JobStatus.FAILED, JobStatus.STOPPED)


@dataclass(slots=True)
class Node:
    name: str
    identity: t.Identity
    state: t.NodeState = t.NodeState.JOINING
    reason: str = ""
    history: History = field(default_factory=History)
    leaving: bool = False  # its agent was asked to end: nothing is to be started there any more
    connected: bool = False
    frozen: bool = False
    """Is it silent although peers reach its host? Then its agent is stopped or frozen, and its workers may be too."""
    left_at: float = 0.0
    host_at: float = 0.0  # mono of the newest gauges of the host
    refused_at: float = -math.inf  # mono at which its agent last said that a disk has no room
    draining: set[str] = field(default_factory=set)
    """Ids of the commands that end workers of jobs that do not hold the node any more; no job starts there before."""
    frame_at: float = 0.0  # mono of the newest frame's arrival
    heartbeat_interval: float = 0.25
    lag: float = 0.0  # how late its frames came, seconds; an excess fades over some frames
    gap_mean: float = 0.0  # of arrivals, seconds, exponentially weighted
    gap_dev: float = 0.0
    host: dict[str, float] = field(default_factory=dict)
    gpus: dict[int, dict[str, float]] = field(default_factory=dict)
    tx_rate: float = 0.0
    rx_rate: float = 0.0
    tx_total: int = 0
    rx_total: int = 0
    counted_ns: int = 0

    @property
    def usable(self) -> bool:
        """May a generation start here, if nothing better is there?"""
        if not self.connected or self.leaving or self.history.cordoned or self.history.quarantined or self.draining:
            return False
        return self.state in _USABLE or (self.state is t.NodeState.FAULTY and bool(self.history.evicted))


_USABLE = (t.NodeState.HEALTHY, t.NodeState.SPARE, t.NodeState.JOINING, t.NodeState.SUSPECT)


@dataclass(frozen=True, slots=True)
class SizedLayout:
    """How a job is laid out on fewer nodes than its own, as the planner found it when the job was submitted."""

    nodes: int
    throughput: float
    """Predicted, as a share of that at full size."""
    args: tuple[str, ...] = ()
    """What its program is started with there, after its own arguments."""
    text: str = ""
    """For people: pp=1 dp=6 tp=1."""
    parallel: dict[str, int] = field(default_factory=dict)
    """Its sizes of pp, dp and tp, which order its nodes; empty: not declared."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    id: str
    name: str
    program: msg.Program
    nnodes: int
    nproc: int
    max_restarts: int = -1
    max_steps: int | None = None
    faults: tuple[str, ...] = ()
    node_counts: tuple[int, ...] = ()
    """Smaller numbers of nodes on which it may go on as well."""
    limits: dict[str, float] = field(default_factory=dict)
    """Its own `LIMITS`, in place of the controller's."""
    priority: int = 0
    """Higher values get nodes first."""
    preempt: bool = False
    """May it take nodes from jobs with a lower priority, which go back to the queue?"""
    parallel: dict[str, int] = field(default_factory=dict)
    """Its declared sizes of pp, dp and tp, which count for the order of its nodes; empty: not declared."""
    step_bytes: dict[str, float] = field(default_factory=dict)
    """What all its ranks send in a step, by axis; empty: not known."""
    layouts: tuple[SizedLayout, ...] = ()
    """Of each of `node_counts`, for a job that is re-planned. Empty: its program finds its own."""
    share_bytes: int = 0
    """Most memory that a worker uses on its device, of a job that shares its nodes with others which do. 0: it has its
    nodes for itself."""

    def layout_on(self, nodes: int) -> SizedLayout | None:
        """The planned layout on so many nodes; None at full size, and for a job that is not re-planned."""
        return next((one for one in self.layouts if one.nodes == nodes), None)

    def throughput_on(self, nodes: int) -> float:
        """Predicted, as a share of that at full size."""
        layout = self.layout_on(nodes)
        return 1.0 if layout is None else layout.throughput

    @property
    def world(self) -> int:
        """Workers at its full size."""
        return self.nnodes * self.nproc

    @property
    def counts(self) -> tuple[int, ...]:
        """Every number of nodes that it may run on."""
        return (*self.node_counts, self.nnodes)

    @property
    def needs(self) -> int:
        return min(self.counts)


def sized_layouts(docs: Iterable[Any]) -> tuple[SizedLayout, ...]:
    """From their documents. Whatever Exception for one that is none."""
    return tuple(
        SizedLayout(**{**doc, "args": tuple(doc.get("args", ())), "parallel": axis_sizes(doc.get("parallel"))})
        for doc in docs
    )


def axis_sizes(doc: Mapping[str, Any] | None) -> dict[str, int]:
    """Parallel sizes as they were submitted, without those that were left out."""
    return {axis: int(size) for axis, size in (doc or {}).items() if size is not None}


@dataclass(slots=True)
class Job:
    spec: JobSpec
    state: JobStatus = JobStatus.PENDING
    reason: str = ""
    generation: int = 0
    nodes: list[str] = field(default_factory=list)  # by group rank
    past: list[tuple[int, list[str]]] = field(default_factory=list)  # the newest generations before, and their nodes
    store: str = ""  # host:port
    submitted_at: float = 0.0
    started_at: float = 0.0
    ended_at: float = 0.0
    exit_code: int | None = None
    restarts: int = 0
    fruitless: int = 0  # starts in a row that made no progress
    best_step: int = -1
    fruitless_step: int = -1  # best_step when `fruitless` was last counted
    signature: str = ""
    fruitless_node: str = ""  # the node at which all of them ended; empty when they differ
    life_first: int = -1  # first and newest step of the running generation, as its program numbers them
    life_last: int = -1
    fired: dict[str, float] = field(default_factory=dict)  # fault -> wall time of injection
    unanswered: dict[str, str] = field(default_factory=dict)  # fault -> id of the running generation's order
    launching: bool = False  # were the running generation's starts sent, and not all of them answered yet?
    pauses: dict[str, list[float]] = field(default_factory=dict)
    """By place: how often a pause there was ended, and the longest that ended by itself, seconds."""
    uncounted_restarts: int = 0  # for pauses, and by hand: they do not count towards max_restarts
    network_waits: int = 0  # restarts in a row, without a step between, for waits that ended at their limit
    stop_asked: bool = False
    rollbacks: list[Rollback] = field(default_factory=list)  # what later generations must not go on from
    rolled_at: int = -1  # the step of the fault that the last of them was for
    progress: Progress = field(default_factory=Progress)
    refused: dict[str, float] = field(default_factory=dict)
    """Numbers of nodes whose planned layout its program refused, and what throughput was predicted there."""
    _groups: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    _grouped: list[str] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def life_steps(self) -> int:
        """Steps that the running generation did, as far as its numbers show."""
        return self.life_last - self.life_first + 1 if self.life_first >= 0 else 0

    @property
    def numbers_steps(self) -> bool:
        """Does the program say which step it is at, as far as is known?"""
        return self.best_step >= 0 and not self.progress.counted

    @property
    def step_of_life(self) -> int | None:
        """Newest step since the running attempt began (-1: none) where it is not known which step of the job that is:
        the steps were only counted, and the program may have resumed anywhere. None: the job's steps are known."""
        if self.is_repeat_known:
            return None
        return self.life_last - self.progress.base(self.generation) if self.life_last >= 0 else -1

    @property
    def is_repeat_known(self) -> bool:
        """Is it known which of its steps were done again?"""
        return self.generation < 2 or not self.progress.counted

    @property
    def world(self) -> int:
        """Workers of the running generation; before the first, of a full one."""
        return len(self.nodes) * self.spec.nproc if self.nodes else self.spec.world

    def ranks_on(self, node: str) -> range:
        """The ranks that this node holds; empty when it holds none. Asked for every frame: no search."""
        if self._grouped is not self.nodes:
            self._grouped, self._groups = self.nodes, {name: i for i, name in enumerate(self.nodes)}
        group = self._groups.get(node)
        if group is None:
            return range(0)
        return range(group * self.spec.nproc, (group + 1) * self.spec.nproc)

    def held_by(self, node: str, generation: int) -> range | None:
        """The ranks that this node held in a generation; None where a journal of an earlier version does not say."""
        if generation == self.generation and self.nodes:
            return self.ranks_on(node)
        nodes = next((nodes for known, nodes in reversed(self.past) if known == generation), None)
        if nodes is None:
            return None if not self.past and 1 <= generation < self.generation else range(0)
        group = nodes.index(node) if node in nodes else -1
        return range(group * self.spec.nproc, (group + 1) * self.spec.nproc) if group >= 0 else range(0)

    def release(self) -> None:
        """Hold no node any more, and remember which the newest generation had."""
        if self.nodes:
            self.past = [*self.past, (self.generation, list(self.nodes))][-PAST:]
            self.nodes = []

    def throughput_on(self, nodes: int) -> float:
        """Predicted, as a share of that at full size; also of a layout that was refused."""
        return self.refused.get(str(nodes)) or self.spec.throughput_on(nodes)

    @property
    def order(self) -> tuple[int, float, str]:
        """Jobs with a smaller one get nodes first: by priority, then by submission."""
        return -self.spec.priority, self.submitted_at, self.spec.id

    def node_of(self, rank: int) -> str:
        return self.nodes[rank // self.spec.nproc] if self.nodes else ""

    def to_doc(self) -> dict[str, Any]:
        """Some keys are left out of most: recordings from before them have checksums of documents without them."""
        doc = {
            key: value
            for key, value in asdict(self).items()
            if not key.startswith("_") and (value or key not in ("refused", "network_waits"))
        }
        if not self.spec.share_bytes:
            del doc["spec"]["share_bytes"]
        return doc

    @classmethod
    def from_doc(cls, doc: dict[str, Any]) -> "Job":
        """Whatever Exception for a document that is none of a job."""
        doc = current(doc, {"tries": "fruitless"})
        names = {one.name for one in fields(cls)}
        doc = {key: value for key, value in doc.items() if key in names}  # of another version, maybe
        spec = dict(doc["spec"])
        program = dict(spec["program"])
        program["args"] = tuple(program["args"])
        program["preload"] = tuple(program.get("preload", ()))
        spec["program"] = msg.Program(**program)
        spec["faults"] = tuple(spec["faults"])
        spec["node_counts"] = tuple(spec.get("node_counts", ()))
        spec["layouts"] = sized_layouts(spec.get("layouts", ()))
        backs = [Rollback(**one) for one in doc.get("rollbacks", ())]
        progress = Progress.from_doc(doc.get("progress", {}))
        past = [(int(generation), list(nodes)) for generation, nodes in doc.get("past", ())]
        known: dict[str, Any] = {"spec": JobSpec(**spec), "state": JobStatus(doc["state"]), "past": past}
        job = cls(**{**doc, **known, "rollbacks": backs, "progress": progress})
        doc_types.check(job, "")
        return job
