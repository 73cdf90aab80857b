"""A job, its health and its plan, over HTTP."""

from typing import Literal

from pydantic import Field

from holdfast.controller.http.models.base import Answer, Instant, Number, Sizes


class Program(Answer):
    target: str
    args: list[str]
    module: bool


class Placement(Answer):
    node: str
    ranks: list[int]


class LevelBytes(Answer):
    level: Literal["node", "switch", "pod", "core", "nics"] = Field(
        description="The smallest domain that holds both ends; nics: nodes with unlike types of NIC."
    )
    pp: float
    dp: float
    tp: float
    total: float
    naive: float = Field(description="The total, were the same nodes in the order of their names.")


class Order(Answer):
    """How far a step's traffic goes with the order of the job's nodes."""

    parallel: dict[str, int] = Field(description="The declared sizes: pp, dp, tp.")
    in_bytes: bool = Field(description="Bytes of a step over all ranks; else shares of usual proportions.")
    levels: list[LevelBytes] = Field(description="The nearest first.")
    slow: float = Field(description="Over links that a diagnosis found slow.")
    naive_slow: float = Field(description="The same in the order of names.")


class AtRisk(Answer):
    worker: Number = Field(description="Seconds of work lost if a worker failed now.")
    node: Number = Field(description="The same if a node and its memory failed now.")
    job: Number = Field(description="The same if the whole job failed now.")


class Spent(Answer):
    wall: float = Field(description="Seconds since the job was submitted: the sum of the others.")
    productive: float = Field(description="Steps that can no longer be lost.")
    unsaved: float = Field(description="Steps that a fault could still lose, and the running step.")
    queued: float = Field(description="Waiting for nodes: neither productive nor lost, and no part of the goodput.")
    lost: dict[str, Number] = Field(
        description="By reason. Null: unknown, as the repeated work of a program that does not number its steps."
    )
    last_hour: Number = Field(description="Share of the last hour in useful steps, saved or not.")
    last_day: Number = Field(description="The same of the last 24 hours, or since the controller started.")


class JobPause(Answer):
    life: Literal["busy", "idle", "held", "unknown"] = Field(description="Activity of the ranks that hold up the job.")
    text: str = Field(description="The ranks, their activity, and the number of waiting ranks.")
    place: str = Field(description="Place in the script, if known.")
    ranks: list[int]
    waiting: int = Field(description="How many ranks wait for them.")
    since: float = Field(description="When the last rank stopped moving, Unix time.")
    seconds: float
    limit_seconds: Number = Field(description="Duration until the restart; of idleness, if it is idle.")
    usual_seconds: float = Field(description="The longest pause at the same place that ended by itself; 0: none.")


class Condition(Answer):
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


class Planned(Answer):
    """A step beside what `holdfast plan` wrote with the job's settings."""

    step_seconds: float = Field(description="What a step was planned to take.")
    ratio: Number = Field(description="Median of the last steps over that: 1.1 is 10% slower than planned.")
    slower_since: Instant = Field(description="Since when the finding `slower-than-planned` lasts; null: it does not.")
    where: str = Field(description="Then the kind of action that exceeds its plan most; empty: not known, or none.")


class OffPlan(Answer):
    """A finding `traffic-unplanned` that lasts."""

    node: str = Field(description="Empty: most nodes of the job.")
    text: str
    since: float


class TrafficBesidePlan(Answer):
    """What nodes send beside what the job's layout says."""

    planned_bytes: float = Field(description="Bytes of a step that leave their node, over all nodes.")
    off_plan: list[OffPlan] = Field(description="Nodes that send far less or far more than that.")


class _AnyJob(Answer):
    id: str
    name: str = Field(description="Unique among active jobs.")
    state: Literal["pending", "starting", "running", "recovering", "finished", "failed", "stopped"]
    reason: str | None = Field(description="Reason of this state.")
    priority: int = Field(default=0, description="Higher values get nodes first.")
    preempt: bool = Field(default=False, description="Whether it takes nodes from jobs with a lower priority.")
    share_bytes: int = Field(
        default=0, description="It may share nodes: the most memory that a worker uses; 0: it has its nodes for itself."
    )
    shares_with: list[str] = Field(default=[], description="Ids of the jobs that have nodes which it has too.")
    generation: int = Field(description="Goes up by one with every (re)start.")
    nnodes: int
    nproc_per_node: int
    step: int = Field(description="Last finished step; -1: none. See `steps_counted`.")
    step_of_life: int | None = Field(
        default=None,
        description="Newest step since the last restart (-1: none), shown instead of `step` where it is not known "
        "which step of the job that is; null: `step` is known.",
    )
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
    step_planned_seconds: Number = Field(default=None, description="What a step was planned to take.")
    planned: Planned | None = Field(default=None, description="Null: nothing was planned for what runs.")
    traffic: TrafficBesidePlan | None = Field(default=None, description="Null: the bytes of its layout are not known.")
    mfu: Number = Field(description="Model FLOP/s over the peak of the devices, 0 to 1, in the last step.")
    goodput: Number = Field(description="Productive time over wall time without `time.queued`, 0 to 1.")
    time: Spent = Field(description="Use of the job time, in seconds.")
    health: Health = Field(description="Its condition, decided once for every view.")
    pause: JobPause | None = Field(default=None, description="Set if no rank finishes a step and none is dead.")
    at_risk: AtRisk | None = Field(description="Cost of a fault now; null when the job has ended.")
    sizes: Sizes | None = Field(description="Sizes of the mesh: pp, dp, tp.")
    assignment: list[Placement]
    placement: Order | None = Field(default=None, description="Null: the job declares no parallel sizes.")
    steps_counted: bool = Field(
        default=False, description="A hook counts the steps of all attempts: the program numbers none."
    )
    progress: str | None = Field(default=None, description="Latest progress in its checkpoints, else in its log.")
    queued: bool = Field(default=False, description="The job waits only for nodes of other jobs.")
    faults_left: list[str] = Field(default=[], description="Armed faults that were not injected.")


class Layers(Answer):
    first: int = Field(description="First layer of the stage.")
    stop: int = Field(description="The layer after its last one.")
    rank: int = Field(description="Pipeline rank that holds it.")


class LayoutPlace(Answer):
    """A node of the job; of a job with many, a switch or more."""

    name: str
    inside: str = Field(description="The switch or the pod that it lies in; empty: not known.")
    nodes: int
    ranks: list[list[int]] = Field(description="First and last of each run of ranks.")
    stages: list[tuple[int, float]] = Field(description="Pipeline ranks, with their shares of the ranks here.")
    sent: float = Field(description="Bytes of a step that leave it, by the plan.")
    received: float
    sent_measured: Number = Field(description="What its NICs count, in the median of the newest steps.")
    received_measured: Number


class Layout(Answer):
    """Who sits where, and what leaves each place in a step."""

    job: str
    generation: int
    kind: Literal["node", "switch", "pod", "nodes"] = Field(description="What a box is: of all, 128 at most.")
    pp: int = Field(description="Number of pipeline ranks.")
    boxes: list[LayoutPlace] = Field(description="By what they lie in, then in the order of ranks.")


class Plan(Answer):
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
