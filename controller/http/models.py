"""What goes over HTTP: the only description of its shapes, for checking requests and for `/openapi.json`.

Answers are sent as the facade gives them, without a pass through these classes (12,288 ranks); a test holds the answers
of a real controller to them. Times named `*_at`, `at`, `start`, `end`, `opened`, `closed` are Unix seconds; ages and
durations are seconds. An unknown number is null.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Number = float | None
Instant = float | None
Sizes = Annotated[list[int], Field(min_length=3, max_length=3)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Answer(BaseModel):
    model_config = ConfigDict(extra="allow")


# --- requests ------------------------------------------------------------------------------------------------


class ProgramSpec(_Request):
    target: str = Field(min_length=1, description="Path of a script or, with `module`, name of a module.")
    args: list[str] = Field(default=[], description="Its arguments.")
    module: bool = Field(default=False, description="Start `target` as `python -m` does.")
    cwd: str = Field(default="", description="Working directory on the nodes; empty: the agent's own.")
    env: dict[str, str] = Field(default={}, description="Environment variables to add.")
    hooks: bool = Field(default=True, description="Watch optimizer steps and collectives of unmodified scripts.")
    warm: bool = Field(default=True, description="Fork from the fork server; else start a fresh interpreter.")
    executable: bool = Field(default=False, description="Execute `target` itself, not as a Python script.")
    virtual_local_rank: bool = Field(default=False, description="Each worker sees its GPU only, as local rank 0.")
    log_dir: str = Field(default="", description="Absolute folder on the nodes for files of redirected streams.")
    redirects: str = Field(
        default="0",
        pattern=r"^([0-3]|\d+:[0-3](,\d+:[0-3])*)$",
        description="Streams that go to files there, in torchrun's form: 0 to 3, or by local rank `0:3,1:1`.",
    )
    stdin: str = Field(
        default="",
        description="Standard input of the job's worker, if it has one: this path with `.GENERATION`, a named pipe.",
    )


class JobLimits(_Request):
    hang_steps: float | None = Field(
        default=None, gt=0, le=1e6, description="Median steps until a worker that cannot continue counts as dead."
    )
    hang_floor: float | None = Field(default=None, ge=0, le=1e6, description="Seconds added to that.")
    hang_limit_start: float | None = Field(
        default=None, gt=0, le=1e8, description="Seconds, instead of both, before the first step and without steps."
    )
    stuck_limit: float | None = Field(
        default=None, gt=0, le=1e8, description="Seconds without a byte in an operation that all ranks have entered."
    )
    pause_limit: float | None = Field(default=None, gt=0, le=1e8, description="Seconds that a busy pause may last.")
    idle_limit: float | None = Field(default=None, gt=0, le=1e8, description="Seconds that an idle pause may last.")
    idle_limit_start: float | None = Field(
        default=None, gt=0, le=1e8, description="The same before the first step, and where no steps are expected."
    )
    pause_alert: float | None = Field(default=None, gt=0, le=1e8, description="Seconds until an alert.")


class RestartSpec(_Request):
    dump: bool = Field(default=False, description="Record the stacks of all workers in the incident first.")


class JobSpec(_Request):
    name: str = Field(
        default="job",
        min_length=1,
        max_length=200,
        description="Name on the page and in metrics. If an active job has the same name, a number is appended.",
    )
    program: ProgramSpec
    nnodes: int = Field(default=1, ge=1, description="How many nodes to train on.")
    nproc_per_node: int = Field(default=1, ge=1, description="How many workers on each.")
    max_restarts: int | None = Field(
        default=None, ge=-1, description="Restarts before the job is marked failed; -1: while it advances."
    )
    node_counts: list[int] = Field(default=[], description="Smaller numbers of nodes that the job may run on.")
    max_steps: int | None = Field(default=None, ge=1, description="Last step of the job, if known: for its progress.")
    faults: list[str] = Field(default=[], description='Faults to inject, such as `"kill@20:rank3"`.')
    limits: JobLimits | None = Field(default=None, description="Limits of this job, in place of the controller's.")
    priority: int = Field(default=0, ge=-1000, le=1000, description="Higher values get nodes first.")
    preempt: bool = Field(default=False, description="Take nodes from running jobs with a lower priority.")


class StopSpec(_Request):
    grace: float = Field(default=10.0, ge=0, le=3600, description="Seconds from SIGTERM to SIGKILL.")


class FaultSpec(_Request):
    fault: str = Field(
        min_length=1,
        description="`KIND[@STEP]:TARGET`; without a step at once.",
        examples=["kill@20:rank3", "stop:node1"],
    )


# --- answers -------------------------------------------------------------------------------------------------


class Problem(BaseModel):
    error: str = Field(description="One line: what is wrong, where, and how to correct it.")


class Submitted(BaseModel):
    id: str = Field(description="The job's id.")


class Done(BaseModel):
    ok: Literal[True] = True


class Injected(_Answer):
    id: str
    armed: bool = Field(description="True: the fault waits for its step. False: done.")


class Program(_Answer):
    target: str
    args: list[str]
    module: bool


class Placement(_Answer):
    node: str
    ranks: list[int]


class AtRisk(_Answer):
    worker: Number = Field(description="Seconds of work lost if a worker failed now.")
    node: Number = Field(description="The same if a node and its memory failed now.")
    job: Number = Field(description="The same if the whole job failed now.")


class Spent(_Answer):
    wall: float = Field(description="Seconds since the job was submitted: the sum of the others.")
    productive: float = Field(description="Steps that can no longer be lost.")
    unsaved: float = Field(description="Steps that a fault could still lose, and the running step.")
    queued: float = Field(description="Waiting for nodes: neither productive nor lost, and no part of the goodput.")
    lost: dict[str, Number] = Field(
        description="By reason. Null: unknown, as the repeated work of a program that does not number its steps."
    )
    last_hour: Number = Field(description="Share of the last hour in useful steps, saved or not.")
    last_day: Number = Field(description="The same of the last 24 hours, or since the controller started.")


class JobPause(_Answer):
    life: Literal["busy", "idle", "unknown"] = Field(description="Activity of the ranks that hold up the job.")
    text: str = Field(description="The ranks, their activity, and the number of waiting ranks.")
    place: str = Field(description="Place in the script, if known.")
    ranks: list[int]
    waiting: int = Field(description="How many ranks wait for them.")
    since: float = Field(description="When the last rank stopped moving, Unix time.")
    seconds: float
    limit_seconds: Number = Field(description="Duration until the restart; of idleness, if it is idle.")
    usual_seconds: float = Field(description="The longest pause at the same place that ended by itself; 0: none.")


class Condition(_Answer):
    condition: Literal[
        "failed", "stopped", "no progress", "recovering", "slow", "paused", "at risk", "waiting for nodes", "starting",
        "well", "finished"
    ]  # fmt: skip
    sentence: str = Field(description="What it is, since when, and what it costs.")
    since: float
    action: str = Field(description="The one next action of a person.")
    needs_person: bool = Field(description="It does not end by itself.")
    doing: str = Field(description="What Holdfast does about it; empty: nothing.")
    usual_s: Number = Field(description="How long that usually takes.")
    basis: list[str] = Field(description="Incidents and texts of blame that it rests on.")
    remedy: Literal["", "incident", "stacks", "diagnose", "blame", "nodes", "checkpoint"] = Field(
        description="What a view offers for the action; empty: nothing."
    )
    target: str = Field(description="The incident or the node of the remedy.")
    rank: int | None = Field(description="The culprit, if it is one rank.")


class Health(Condition):
    """The leading condition of a job: the worst of those that hold."""

    others: list[Condition] = Field(description="The others, the worst first.")


class _AnyJob(_Answer):
    id: str
    name: str = Field(description="Unique among active jobs.")
    state: Literal["pending", "starting", "running", "recovering", "finished", "failed", "stopped"]
    reason: str | None = Field(description="Reason of this state.")
    priority: int = Field(default=0, description="Higher values get nodes first.")
    preempt: bool = Field(default=False, description="Whether it takes nodes from jobs with a lower priority.")
    generation: int = Field(description="Goes up by one with every (re)start.")
    nnodes: int
    nproc_per_node: int
    step: int = Field(description="Last finished step; -1: none. See `steps_counted`.")
    max_steps: int | None
    restarts: int
    submitted_at: Instant
    started_at: Instant
    ended_at: Instant
    exit_code: int | None


class JobBrief(_AnyJob):
    nodes: list[str] = Field(default=[], description="Nodes of the job, by group rank; left out in events.")


class Job(_AnyJob):
    world_size: int
    node_counts: list[int] = Field(description="All permitted numbers of nodes; nnodes is the present one.")
    program: Program
    loss: Number
    tokens_per_s: Number
    step_seconds: Number = Field(description="Median of the last steps.")
    mfu: Number = Field(description="Model FLOP/s over the peak of the devices, 0 to 1, in the last step.")
    goodput: Number = Field(description="Productive time over wall time without `time.queued`, 0 to 1.")
    time: Spent = Field(description="Use of the job time, in seconds.")
    health: Health = Field(description="Its condition, decided once for every view.")
    pause: JobPause | None = Field(default=None, description="Set if no rank finishes a step and none is dead.")
    at_risk: AtRisk | None = Field(description="Cost of a fault now; null when the job has ended.")
    sizes: Sizes | None = Field(description="Sizes of the mesh: pp, dp, tp.")
    assignment: list[Placement]
    steps_counted: bool = Field(
        default=False, description="A hook counts the steps of all attempts: the program numbers none."
    )
    progress: str | None = Field(default=None, description="Latest progress in its checkpoints, else in its log.")
    queued: bool = Field(default=False, description="The job waits only for nodes of other jobs.")


class Layers(_Answer):
    first: int = Field(description="First layer of the stage.")
    stop: int = Field(description="The layer after its last one.")
    rank: int = Field(description="Pipeline rank that holds it.")


class Plan(_Answer):
    job: str
    generation: int
    schedule: str
    micro_batches: int = Field(description="Micro-batches per step and replica.")
    axes: list[tuple[str, int]] = Field(description="The mesh, slowest axis first.")
    stages: list[Layers] = Field(description="By stage number.")
    orders: list[list[str]] = Field(description="By pipeline rank, the ids of its actions: stage, op, micro-batch.")
    replicas: list[list[int]] = Field(
        default=[], description="Of each pipe after the first, the pipeline rank of every stage; most have none."
    )


class Phase(_Answer):
    name: str
    start: float
    end: Instant = Field(description="Null while it lasts.")


class Finding(_Answer):
    kind: str
    severity: Literal["info", "warning", "critical"]
    subject: str
    text: str
    at: float
    evidence: dict[str, Any]


class StackRow(_Answer):
    depth: int = Field(
        description="Increases where ranks diverge; rows of the same ranks are calls, each from the row before it."
    )
    ranks: str = Field(description="Ranks in this frame, e.g. `0-7`, `0-28/4`, `1,5,9-11`.")
    frame: str = Field(description="`file:line function`.")


class Stacks(_Answer):
    at: float
    job: str
    generation: int
    missing: dict[str, str] = Field(description="Nodes without an answer, and the reason.")
    states: dict[str, str] = Field(description="By rank: state of the process, and its wait in the kernel.")
    rows: list[StackRow]


class Incident(_Answer):
    id: str | int
    job: str | None = Field(description="Id of the affected job; null: a node without a job.")
    kind: str
    culprit: str = Field(description="`rank3`, `node1` or `job`.")
    severity: Literal["info", "warning", "critical"]
    state: Literal["open", "recovering", "closed", "failed"]
    summary: str
    opened: float
    closed: Instant
    action: str | None = Field(description="The action of Holdfast.")
    reason: str | None = Field(description="Reason of the action.")
    detect_s: Number = Field(description="From the fault to its detection.")
    recover_s: Number = Field(description="From detection to the first new step.")
    source: str | None = Field(description="Where the state came from: memory, peer or store.")
    restore_s: Number = Field(description="Part of recover_s that the restore took.")
    restored_bytes: int | None = Field(description="Bytes that all ranks read for the restore.")
    generation_from: int | None
    generation_to: int | None
    step_at_fault: int | None
    step_resumed: int | None
    phases: list[Phase]
    findings: list[Finding]
    stacks: Stacks | None = Field(description="Stacks of the workers while no rank made progress.")


class Status(_Answer):
    version: int = Field(description="Goes up with every visible change.")
    now: float
    started_at: float
    job: Job | None = Field(description="The newest job; in an event, the job that the stream follows.")
    jobs: list[JobBrief] = Field(description="As GET /jobs.")
    nodes: dict[str, str] = Field(description="State by node.")
    counts: dict[str, int] = Field(description="Nodes by state.")
    incidents: list[Incident] = Field(description="The last 20, newest first, without `stacks`.")
    open_incidents: int


class Pod(_Answer):
    name: str
    namespace: str
    uid: str


class Gpu(_Answer):
    index: int
    uuid: str
    model: str
    pci: str
    memory_bytes: int
    values: dict[str, Number]


class Nic(_Answer):
    name: str
    kind: str
    speed_bps: int
    numa_node: int
    state: str


class NodeBrief(_Answer):
    name: str
    state: Literal["joining", "healthy", "suspect", "faulty", "cordoned", "spare", "lost"]
    reason: str | None
    connected: bool
    switch: str
    slots: int
    job: str | None = Field(description="Id of the job on the node.")
    ranks: list[int]
    frame_age: Number = Field(description="Seconds since its last heartbeat.")
    tx_bytes_per_s: Number
    rx_bytes_per_s: Number


class Node(NodeBrief):
    hostname: str
    ips: list[str]
    pod: Pod
    cpus: int
    memory_bytes: int
    versions: dict[str, str]
    heartbeat_interval: Number = Field(description="Seconds between its heartbeats.")
    gpus: list[Gpu]
    nics: list[Nic]
    host: dict[str, Number]


class NodeFailure(_Answer):
    at: float
    kind: str = Field(description="Kind of the finding.")


class NodeHistory(_Answer):
    cordoned: bool
    evicted: str = Field(description="Reason of the eviction; empty if the node is not evicted.")
    evicted_at: float
    quarantined: bool = Field(description="Quarantined: not used even if no other node is available.")
    failed_job: str = Field(description="Other jobs get it only once it has passed a diagnosis; empty: it did.")
    outs: list[tuple[float, str]] = Field(description="When it was evicted for a fault, and the job that it failed.")
    node_failures: list[NodeFailure] = Field(description="Node failures: faults of this node, oldest first.")
    verdicts: list[dict[str, Any]] = Field(description="The newest of each figure, with `at` and `diagnosis`.")


class Ranks(_Answer):
    """Columns: entry i of each belongs to rank[i]."""

    rank: list[int]
    node: list[int] = Field(description="Index into `nodes`.")
    pp: list[int | None]
    dp: list[int | None]
    tp: list[int | None]
    step: list[int | None]
    phase: list[int] = Field(description="Index into `phases`.")
    state: list[int] = Field(description="Index into `states`.")
    step_seconds: list[Number]
    progress_age: list[Number] = Field(description="Seconds since its last step or change of phase.")
    mfu: list[Number]
    part_seconds: dict[str, list[Number]] = Field(description="Time of its last step, by part.")
    memory_bytes: list[Number] = Field(description="Peak memory of the rank: of its GPU, else of the host.")
    operation: list[int] = Field(description="Index into `operations`.")
    nodes: list[str]
    phases: list[str]
    states: list[str]
    operations: list[str]
    sizes: Sizes | None


class Steps(_Answer):
    """Columns, oldest first."""

    step: list[int]
    loss: list[Number]
    seconds: list[Number]
    tokens: list[Number]
    at: list[Number]
    generation: list[int]
    mfu: list[Number]
    grad_norm: list[Number] = Field(description="Of all parameters, before clipping.")


class NicTraffic(_Answer):
    name: str
    t0: float = Field(description="Unix milliseconds.")
    t: list[float] = Field(description="Milliseconds since `t0`, one per sample.")
    tx: list[float] = Field(description="Bytes sent since the previous sample.")
    rx: list[float] = Field(description="Bytes received since the previous sample.")


class Traffic(_Answer):
    node: str
    nics: list[NicTraffic]


BRIEF_NODE = tuple(NodeBrief.model_fields)
