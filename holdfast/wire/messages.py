"""What agent and controller send each other besides heartbeats and events: spans, commands, the handshake."""

from dataclasses import dataclass, field

from holdfast.wire.types import Event, Frame, Identity

# --- spans (agent -> controller, as they come; not sent again) -------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerSpans:
    """What one worker timed: `count` rows, packed as `span_rows` says; `names` are what their numbers mean.

    `lost` were overwritten before they were read since the message before. Steps of the rows: `first` to `last`.
    """

    rank: int
    generation: int
    count: int
    lost: int
    first: int
    last: int
    names: tuple[str, ...]
    data: bytes
    job: str = ""  # empty from older agents


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of a node. Its clock: `offset_ns` is the controller's Unix time less the node's monotonic time, right
    within `error_ns`. `dropped`: how many spans this agent had to drop so far."""

    workers: tuple[WorkerSpans, ...]
    offset_ns: int
    error_ns: int
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class ClockRequest:
    """What is your time? Ours, monotonic, was `sent_ns`."""

    sent_ns: int


@dataclass(frozen=True, slots=True)
class ClockReply:
    """The controller's Unix time, and the question that it answers."""

    sent_ns: int
    wall_ns: int


# --- commands (controller -> agent) ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rank:
    """Where one worker sits."""

    rank: int
    local_rank: int
    group_rank: int  # index of the node


@dataclass(frozen=True, slots=True)
class Program:
    """What the workers run. `target` is a script path or, with `module`, a module name."""

    target: str
    args: tuple[str, ...] = ()
    module: bool = False
    cwd: str = ""
    env: dict[str, str] = field(default_factory=dict)
    hooks: bool = True  # observe optimizer steps and collectives of unmodified scripts
    warm: bool = True  # fork from the fork server; else a fresh interpreter
    executable: bool = False  # `target` is a program to execute, not a script
    virtual_local_rank: bool = False  # each worker sees its GPU only, as local rank 0
    log_dir: str = ""  # folder on the nodes for files of the streams in `redirects`
    redirects: str = "0"  # streams that go to files there (`std_streams`)
    stdin: str = ""  # a named pipe on the node, with ".GENERATION" behind it: standard input of a single worker
    preload: tuple[str, ...] = ()  # modules that the fork server of this job imports before it forks workers


@dataclass(frozen=True, slots=True)
class StartStore:
    """Make sure that a rendezvous store runs on this node, outside all workers; answer host and port."""

    host: str


@dataclass(frozen=True, slots=True)
class StartWorkers:
    program: Program
    ranks: tuple[Rank, ...]
    world_size: int
    nnodes: int
    master_addr: str
    master_port: int
    max_restarts: int = 0
    stream_logs: bool = True


@dataclass(frozen=True, slots=True)
class StopWorkers:
    """End all workers of the job up to and including the command's generation. `grace` 0: SIGKILL at once."""

    grace: float = 0.0


@dataclass(frozen=True, slots=True)
class Inject:
    """Inject a fault. `rank` -1: the node itself."""

    kind: str
    rank: int = -1


@dataclass(frozen=True, slots=True)
class RequestCheckpoint:
    """Ask a worker here for a checkpoint of its job: all ranks then agree on a step."""


@dataclass(frozen=True, slots=True)
class RunCheck:
    """Run diagnostic checks in one process of their own; it is killed when `deadline` seconds are over.

    `options`: JSON for the checks. The answer's data hold `results`, the process's lines.
    """

    checks: tuple[str, ...]
    options: str = "{}"
    deadline: float = 20.0


@dataclass(frozen=True, slots=True)
class DumpStacks:
    """What the workers of the command's generation are doing: their Python stacks, their states in the kernel."""


@dataclass(frozen=True, slots=True)
class ProbePeer:
    """Probe whether a peer's agent answers. The answer's data hold `behind`: what was found there."""

    host: str
    port: int


Order = StartStore | StartWorkers | StopWorkers | Inject | RequestCheckpoint | RunCheck | DumpStacks | ProbePeer


@dataclass(frozen=True, slots=True)
class Command:
    """`id` is never reused; an agent that has done it answers again what it answered before."""

    id: str
    job: str
    generation: int
    order: Order


@dataclass(frozen=True, slots=True)
class CommandResult:
    id: str
    ok: bool
    error: str = ""
    data: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Lines a worker printed. `dropped` counts lines left out to keep within the rate. `unfinished`: the text is what
    its last line shows by now, a progress bar or a question. The line itself comes when it ends."""

    job: str
    generation: int
    rank: int
    stream: str  # "out" | "err"
    text: str
    dropped: int = 0
    unfinished: bool = False


@dataclass(frozen=True, slots=True)
class KeptWorker:
    """A worker as the agent knows it: sent with the hello so that a new stream starts from what is."""

    job: str
    generation: int
    rank: int
    local_rank: int
    pid: int
    running: bool


@dataclass(frozen=True, slots=True)
class Hello:
    identity: Identity
    workers: tuple[KeptWorker, ...] = ()
    protocol_min: int = 1
    protocol_max: int = 1
    wall_ns: int = 0


@dataclass(frozen=True, slots=True)
class Welcome:
    """`frames_acked`, `events_acked`: highest numbers that the controller holds durably of this incarnation."""

    protocol: int
    heartbeat_interval: float
    frames_acked: int = 0
    events_acked: int = 0


@dataclass(frozen=True, slots=True)
class Ack:
    frames: int
    events: int
    heartbeat_interval: float


@dataclass(frozen=True, slots=True)
class Refused:
    reason: str
    retry_after: float = 0.0
    """Seconds before it makes sense to ask again."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """An event with its number in the agent's incarnation."""

    seq: int
    event: Event


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a message that is too long for one: see `holdfast.wire.pieces`."""

    data: bytes
    more: bool = False
    """Does another part follow?"""


AgentMessage = Hello | Frame | Numbered | CommandResult | LogChunk | Spans | ClockRequest | Piece
ControllerMessage = Welcome | Ack | Refused | Command | ClockReply
