"""The stages of a job's generation and the events that move between them. The table is the whole state machine.

`Lifecycle` decides when an event happens; nothing else changes a stage.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

HISTORY = 16
"""Transitions that a machine remembers: enough to see how a job came to where an illegal event found it."""


class Stage(StrEnum):
    IDLE = "idle"
    """Nothing is under way: before the first generation, after the last, or not yet known after a restart of the
    controller."""
    DRAINING = "draining"
    """Workers of the old generation end while the nodes and the rendezvous endpoint of the next are chosen."""
    LAUNCHING = "launching"
    """The nodes of the generation start their workers."""
    UP = "up"
    """Every node has started its workers."""
    ENDING = "ending"
    """The job is finished, stopped or failed; its workers end."""


class StageEvent(StrEnum):
    BEGIN = "begin"
    """The next generation is wanted: the job is submitted, restarted, or preempted."""
    LAUNCH = "launch"
    """The old workers are gone, the suspect is tested, nodes are chosen, and the rendezvous endpoint is up."""
    STARTED = "started"
    """Every node has answered that its workers are started."""
    END = "end"
    """The job is to end for good: finished, stopped by an operator, or failed."""
    GONE = "gone"
    """The last worker has ended."""
    RESUME = "resume"
    """The controller is back, and the generation was up before."""
    ADOPT = "adopt"
    """The controller is back, and the generation was being launched before."""


TRANSITIONS: Mapping[tuple[Stage, StageEvent], Stage] = MappingProxyType({
    (Stage.IDLE, StageEvent.BEGIN): Stage.DRAINING,
    (Stage.IDLE, StageEvent.END): Stage.ENDING,  # stopped by an operator just before the controller restarted
    (Stage.IDLE, StageEvent.RESUME): Stage.UP,
    (Stage.IDLE, StageEvent.ADOPT): Stage.LAUNCHING,
    (Stage.DRAINING, StageEvent.BEGIN): Stage.DRAINING,  # no rendezvous endpoint, or preempted
    (Stage.DRAINING, StageEvent.LAUNCH): Stage.LAUNCHING,
    (Stage.DRAINING, StageEvent.END): Stage.ENDING,
    (Stage.LAUNCHING, StageEvent.STARTED): Stage.UP,
    (Stage.LAUNCHING, StageEvent.BEGIN): Stage.DRAINING,
    (Stage.LAUNCHING, StageEvent.END): Stage.ENDING,
    (Stage.UP, StageEvent.BEGIN): Stage.DRAINING,
    (Stage.UP, StageEvent.END): Stage.ENDING,
    (Stage.ENDING, StageEvent.END): Stage.ENDING,  # stopped by hand again, perhaps with less grace
    (Stage.ENDING, StageEvent.GONE): Stage.IDLE,
})  # fmt: skip
"""A pair that is missing is illegal: in particular, a job that ends never begins again."""


@dataclass(frozen=True, slots=True)
class Transition:
    before: Stage
    event: StageEvent
    after: Stage

    def __str__(self) -> str:
        return f"{self.before} -{self.event}-> {self.after}"


class IllegalTransitionError(RuntimeError):
    """A bug of the controller: an event in a stage that has no row for it. Names the transitions that led there."""

    def __init__(self, stage: Stage, event: StageEvent, history: tuple[Transition, ...]) -> None:
        past = ", ".join(map(str, history)) or "none"
        super().__init__(f"event {event} is illegal in stage {stage}; transitions so far, the newest last: {past}")
        self.stage, self.event, self.history = stage, event, history


class StageMachine:
    """The stage of one job. Only `apply` changes it."""

    def __init__(self, stage: Stage = Stage.IDLE) -> None:
        self._stage = stage
        self._history: deque[Transition] = deque(maxlen=HISTORY)

    @property
    def stage(self) -> Stage:
        return self._stage

    @property
    def history(self) -> tuple[Transition, ...]:
        """The newest transitions, oldest first, at most `HISTORY`."""
        return tuple(self._history)

    def apply(self, event: StageEvent) -> None:
        """Move to the stage that the table names. IllegalTransitionError leaves the stage as it is."""
        after = TRANSITIONS.get((self._stage, event))
        if after is None:
            raise IllegalTransitionError(self._stage, event, self.history)
        self._history.append(Transition(self._stage, event, after))
        self._stage = after
