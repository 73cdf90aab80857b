"""The types of messages: plain frozen data, no I/O, no protobuf. Named tuples are what comes by the thousand a
second: they are made three times as fast.

Times: `wall_ns` is Unix time in ns (for people and across hosts), `mono` a local monotonic clock in seconds
(for decisions). Ranks and nodes count from 0. Unknown numbers are NaN, never a magic value.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from holdfast.wire.finding_kinds import FindingKind as FindingKind
from holdfast.wire.standing import FROZEN as FROZEN
from holdfast.wire.standing import Activity as Activity
from holdfast.wire.standing import GpuUse as GpuUse
from holdfast.wire.standing import StallFacts

NAN = math.nan


class NodeState(StrEnum):
    JOINING = "joining"
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    FAULTY = "faulty"
    CORDONED = "cordoned"
    SPARE = "spare"
    LOST = "lost"


class Phase(StrEnum):
    """What a worker reports that it is doing; only `TRAIN` is expected to make steps."""

    START = "start"
    SETUP = "setup"
    COMPILE = "compile"
    RESTORE = "restore"
    TRAIN = "train"
    CHECKPOINT = "checkpoint"
    EVAL = "eval"
    DONE = "done"


PHASES: tuple[Phase, ...] = tuple(Phase)


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


# --- identity ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    uuid: str
    model: str
    pci: str
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Nic:
    """A network or RDMA device. `speed_bps` 0 and `numa_node` -1 mean unknown."""

    name: str
    kind: str  # "rdma" | "ethernet" | "loopback"
    speed_bps: int = 0
    numa_node: int = -1
    state: str = ""
    link_layer: str = ""
    """Of an RDMA port, as the kernel writes it: InfiniBand or Ethernet. Empty: not known."""


@dataclass(frozen=True, slots=True)
class Pod:
    name: str = ""
    namespace: str = ""
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Identity:
    """Sent once per stream. `incarnation` changes with every start of the agent, `boot_id` with every boot."""

    node: str
    hostname: str
    incarnation: str
    ips: tuple[str, ...] = ()
    pod: Pod = Pod()
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    switch: str = ""
    slots: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    boot_id: str = ""
    cpus: int = 0
    memory_bytes: int = 0
    address: str = ""
    """Its own address on the way to the controller; loopback where both are on one machine."""
    ping_port: int = 0
    """Where its agent answers its peers' probes; 0 if it does not."""
    predecessors: tuple[str, ...] = ()
    """Incarnations of earlier agents with the same state folder, whose lock it has: none of them runs."""


# --- heartbeat -----------------------------------------------------------------------------------------------


STEP_PARTS = ("compute", "communication", "bubble", "data", "optimizer")
"""Where a step's time goes: communication that nothing hides, waiting for an adjacent stage, waiting for data."""


@dataclass(frozen=True, slots=True)
class Meters:
    """What a worker's last step was worth. NaN where not known."""

    mfu: float = NAN  # of the whole job, 0 to 1
    tokens_per_s: float = NAN  # of the whole job
    parts: tuple[float, ...] = (NAN,) * len(STEP_PARTS)  # seconds, as STEP_PARTS
    memory_bytes: int = 0  # the most this worker has held: of its GPU, else of the host
    grad_norm: float = NAN  # of all parameters, before clipping


@dataclass(frozen=True, slots=True)
class GroupCount:
    """Ranks that do operations together, as one of them reports: label and `ident` are the same at all of them.

    Two ranks' messages in one direction are a group too, whose label names sender and receiver.
    """

    label: str
    ident: int
    members: str  # as rank_sets.compact writes them; empty when they are too many to name
    begun: int  # operations that this rank has begun in it
    sizes: int = 0  # stands for their known sizes in order: the same on all ranks; 0 where that is not known
    is_exact: bool = False  # `begun` counts all of them, whoever began them: torch's own number, or messages


@dataclass(frozen=True, slots=True)
class PendingCollective:
    """The operation that a worker has been in for a while."""

    kind: str = ""  # of its operation: all_reduce, recv, ...; empty when not known
    group: int = -1  # of its operation: index into `groups`, -1 when not known
    number: int = -1  # which of that group's operations it is, from 0
    is_handed: bool = False  # handed over and waited for; else the worker is on its way there
    groups: tuple[GroupCount, ...] = ()
    size: int = 0  # of its operation, as operation_size packs it: the same on all ranks; 0 where that is not known


class WorkerSample(NamedTuple):
    """One worker's training state at the frame's instant. Ages in seconds; NaN where never."""

    rank: int
    generation: int
    pid: int
    step: int = -1
    phase: Phase = Phase.START
    operation: str = ""
    operation_age: float = NAN
    progress_age: float = NAN  # since the last step or change of phase
    tick_age: float = NAN  # since the interpreter last ran its liveness thread: stopped or GIL held if large
    stopped: bool = False  # process state T
    loss: float = NAN
    tokens: int = 0
    median_step: float = NAN
    coordinate: tuple[int, int, int] | None = None  # (pp, dp, tp)
    sizes: tuple[int, int, int] | None = None
    meters: Meters | None = None  # only in the first sample after the step that they are of
    still_age: float = NAN  # since it last entered or left an operation
    pending: PendingCollective | None = None  # only when that was a while ago
    activity: Activity | None = None  # likewise
    job: str = ""  # empty from older agents
    standing: StallFacts | None = None  # only while it makes no move
    left: bool = False  # the process has replaced its image (exec): its probe is gone, its steps are not seen


SPOILT = -math.inf
"""In place of a step's loss: none was reported, but the parameters are not finite any more."""


class StepRecord(NamedTuple):
    """One finished step as one worker saw it. `seconds` since that worker's previous step or phase start.

    `loss` NaN: none reported. Infinite: reported, and not finite; or SPOILT.
    """

    rank: int
    generation: int
    step: int
    end_wall_ns: int
    seconds: float
    loss: float = NAN
    tokens: int = 0
    is_counted: bool = False  # by a hook, from 0 in every attempt: the program numbers no steps
    job: str = ""  # empty from older agents


class NicSamples(NamedTuple):
    """Byte counters of one NIC over a frame. `tx`, `rx`: little-endian uint32 deltas, one per sample."""

    name: str
    tx_total: int
    rx_total: int
    tx: bytes = b""
    rx: bytes = b""


@dataclass(frozen=True, slots=True)
class GpuGauges:
    index: int
    values: dict[str, float]


@dataclass(frozen=True, slots=True)
class Frame:
    """One heartbeat. `offsets`: uint32 little-endian microseconds since `wall_ns` of each sample."""

    seq: int
    wall_ns: int
    mono_ns: int
    offsets: bytes = b""
    nics: tuple[NicSamples, ...] = ()
    host: dict[str, float] = field(default_factory=dict)
    gpus: tuple[GpuGauges, ...] = ()
    workers: tuple[WorkerSample, ...] = ()
    steps: tuple[StepRecord, ...] = ()
    heartbeat_interval: float = 0.1


# --- events (agent -> controller, numbered, resent until acknowledged) -----------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerExited:
    """`code` is the exit status, or -1 when `signal` ended it. `error` is the last traceback, if any. `ordered`: its
    agent was asked to kill it."""

    job: str
    generation: int
    rank: int
    pid: int
    wall_ns: int
    code: int
    signal: int = 0
    core_dumped: bool = False
    oom_killed: bool = False
    error: str = ""
    tail: str = ""
    ordered: bool = False


@dataclass(frozen=True, slots=True)
class LogMatched:
    job: str
    generation: int
    rank: int  # -1: the host's own log
    wall_ns: int
    rule: str
    kind: str
    severity: Severity
    line: str
    device: str = ""  # of a GPU's report: its PCI address or UUID


@dataclass(frozen=True, slots=True)
class AgentNotice:
    """Something that the agent itself reports: a collector failed, the disk is full, the fork server died."""

    wall_ns: int
    kind: str
    severity: Severity
    text: str
    job: str = ""  # the job with the trouble; empty: the node's own


@dataclass(frozen=True, slots=True)
class PlanPublished:
    """What rank 0 said that the whole job does in every step: `data` is a `wire_plan` message."""

    job: str
    generation: int
    data: bytes


@dataclass(frozen=True, slots=True)
class StateRestored:
    """What rank 0 said of the state that its generation goes on with."""

    job: str
    generation: int
    step: int
    """Steps completed."""
    source: str
    """`memory`, `peer` or `store`."""
    seconds: float
    num_bytes: int
    """Of all ranks together, read from there."""
    sent_bytes: int = 0
    """Of all ranks together, sent from host to host."""


@dataclass(frozen=True, slots=True)
class ImportsTimed:
    """How long rank 0's own imports took before its first step: what a restart repeats, and `--preload` saves."""

    job: str
    generation: int
    seconds: float
    frameworks: str
    """Names of known frameworks among them, separated by commas."""


GRADIENTS = "gradients"


@dataclass(frozen=True, slots=True)
class ProgressSeen:
    """What a worker's checkpoints or its log say of how far it is, of a program that numbers no steps."""

    job: str
    generation: int
    rank: int
    wall_ns: int
    source: str
    """`checkpoint`: files that it finished; `log`: numbers of steps that it printed; GRADIENTS: the optimizer's step
    since which its own gradients, before any reduction, are not finite; -1: they are, or it is not known."""
    number: int = -1
    """Of a step, as the newest file's path or line says; -1 when it names none."""
    count: int = 0
    """Files finished in this attempt; or how often it printed a greater number than before."""
    text: str = ""


Event = WorkerExited | LogMatched | AgentNotice | PlanPublished | StateRestored | ProgressSeen | ImportsTimed
