"""What goes into the brain and what comes out: frozen data; the shell turns I/O into the one, the other into I/O."""

from dataclasses import dataclass
from typing import Any

from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import JobSpec
from holdfast.wire import messages as msg
from holdfast.wire import types as t

# `job` in a request of people: the id or the name of an active job; empty for the only one.

# --- in --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentJoined:
    hello: msg.Hello


@dataclass(frozen=True, slots=True)
class AgentLeft:
    """The stream of this incarnation ended, for whatever reason."""

    node: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class FrameSeen:
    node: str
    frame: t.Frame


@dataclass(frozen=True, slots=True)
class EventSeen:
    node: str
    event: t.Event


@dataclass(frozen=True, slots=True)
class ResultSeen:
    node: str
    result: msg.CommandResult


@dataclass(frozen=True, slots=True)
class Found:
    """Findings made outside the brain, because they take long to compute. `job`: the id of its job."""

    finding: Finding
    job: str = ""


@dataclass(frozen=True, slots=True)
class StragglersSeen:
    """Blame looked at so many seconds of a job's steps. `costs`: seconds by subject and signature of each rank that it
    named."""

    job: str
    seconds: float
    costs: dict[str, float]


@dataclass(frozen=True, slots=True)
class PlanCompared:
    """Steps of a generation beside what its plan says of each kind of action."""

    job: str
    generation: int
    text: str
    """The kind that exceeds its plan by the most seconds that nothing hides, in words; empty: none does."""
    explained_s: float
    """Seconds of a step that slow ranks and links cost, which blame names."""


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class StopRequested:
    grace: float
    job: str = ""


@dataclass(frozen=True, slots=True)
class RestartRequested:
    """Start the running job again from its newest whole state, by hand."""

    job: str = ""


@dataclass(frozen=True, slots=True)
class FaultRequested:
    """Inject now or, with a step, when that is reached; `fault` is formatted as in holdfast.facts.faults."""

    fault: str
    job: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointRequested:
    """All ranks of the running job shall make a checkpoint of the next step that they can agree on."""

    job: str = ""


@dataclass(frozen=True, slots=True)
class DiagnoseRequested:
    """Run checks on these nodes (none: all idle ones). `id` is the asker's, to find the diagnosis by. `tests`: only
    these; `busy`: also on nodes that train; `passes`: tests of pairs that a node has to pass, 0: as the suite."""

    id: str
    nodes: tuple[str, ...] = ()
    suite: str = "quick"
    tests: tuple[str, ...] = ()
    busy: bool = False
    passes: int = 0


@dataclass(frozen=True, slots=True)
class StacksRequested:
    """All agents shall send the stacks of the running job's workers."""

    job: str = ""


@dataclass(frozen=True, slots=True)
class CordonRequested:
    node: str
    on: bool


@dataclass(frozen=True, slots=True)
class EvictRequested:
    """Evict a node now, with what it runs, until an operator lets it in again."""

    node: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time went by. `lag`: seconds that the controller's own loop was late, so that no node is blamed for it."""

    lag: float = 0.0
    worked: float = 0.0
    """Processor time since the last one, seconds: the part of the lag that was work and no standstill."""


BrainEvent = (
    AgentJoined
    | AgentLeft
    | FrameSeen
    | EventSeen
    | ResultSeen
    | Found
    | StragglersSeen
    | PlanCompared
    | JobSubmitted
    | StopRequested
    | RestartRequested
    | FaultRequested
    | CheckpointRequested
    | DiagnoseRequested
    | StacksRequested
    | CordonRequested
    | EvictRequested
    | Tick
)

# --- out -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    node: str
    command: msg.Command


@dataclass(frozen=True, slots=True)
class Record:
    """Write down before anything else of the same batch is done. `doc` replaces the entity's former one."""

    kind: str
    id: str
    doc: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Say:
    """One line for the log: a decision and its reason."""

    name: str
    fields: dict[str, Any]


Action = Send | Record | Say
