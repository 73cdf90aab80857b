"""What the health of a job is judged by: plain values at one instant, from the brain, from blame and from the nodes."""

from dataclasses import dataclass

from holdfast.controller.state.model import JobStatus


@dataclass(frozen=True, slots=True)
class Fault:
    """An incident of the job. Times are wall seconds."""

    id: str
    kind: str
    subject: str
    """"rank3", "node1" or "job"."""
    text: str
    opened: float
    node: str = ""
    action: str = ""
    phase: str = ""
    phase_since: float = 0.0
    is_recovering: bool = False
    """The job was restarted for it, and has done no new step yet."""


@dataclass(frozen=True, slots=True)
class Pause:
    life: str
    """"busy", "idle", "dead" or "unknown"."""
    text: str
    since: float
    limit: float | None
    """Seconds until the job is restarted; None where it is not."""
    usual: float | None
    """The longest that ended by itself at this place."""


@dataclass(frozen=True, slots=True)
class Slow:
    """What slows every step: a rank, or a link between two ranks."""

    rank: int
    peer: int
    node: str
    cost: float
    """Share of the step that it costs the whole job."""
    text: str
    """As blame says it, with its uncertainty."""
    since: float | None = None
    """Wall seconds, where it is known."""


@dataclass(frozen=True, slots=True)
class Facts:
    now: float
    state: JobStatus
    reason: str = ""
    since: float = 0.0
    """Since when the job has been in this state."""
    restarts: int = 0
    step: int = -1
    step_of_life: int | None = None
    """Newest step since the last restart, where it is not known which step of the job that is."""
    max_steps: int | None = None
    stepped_at: float | None = None
    """When the newest step ended."""
    step_seconds: float | None = None
    world: int = 0
    nodes: int = 0
    is_queued: bool = False
    """It waits only for nodes that other jobs hold."""
    live: Fault | None = None
    ended: Fault | None = None
    """The incident after which the job was marked failed."""
    safe: int | None = None
    """The newest step whose state is stored whole; -1: none is; None: the program reports nothing of checkpoints."""
    repeated: int = 0
    """Steps that were done before the restart and are done again from step 0."""
    at_risk: float | None = None
    """Seconds of work that the death of all nodes would cost; None: unknown."""
    usual_recovery: float | None = None
    """Median seconds from detection to the first new step, of this job's incidents."""
    pause: Pause | None = None
    store: Fault | None = None
    """The open incident of a checkpoint store that cannot be written."""
    slow: tuple[Slow, ...] = ()
    doubtful: tuple[tuple[str, str], ...] = ()
    """Nodes of the job that are not healthy: name and state."""
    spares: int = 0
    certificates_end: float | None = None
    """Wall seconds at which the first certificate ends, of the controller, the authority and the job's nodes."""
