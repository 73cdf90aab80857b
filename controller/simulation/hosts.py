"""What a simulated cluster is made of: its shape, its hosts, and an attempt of its job. Plain state."""

from dataclasses import dataclass, field

from holdfast.wire import types as t

WALL = 1_700_000_000.0
"""Wall time at which the world's clock is 0."""


@dataclass(frozen=True, slots=True)
class ClusterShape:
    """The cluster and its job; seconds. Starting and restoring as measured with eight workers: 1.2 s from a
    kill to the first new step (benchmarks/RESULTS.md). Larger jobs take longer: say so."""

    nodes: int
    spares: int = 0
    gpus: int = 8
    per_switch: int = 16
    step: float = 10.0
    start: float = 0.6
    """From the order to start to workers that can train: processes, communicators."""
    restore: float = 0.6
    checkpoint: float = 600.0
    """Between two checkpoints in the store."""
    shrinks: bool = False
    lost: float = 0.001
    """Share of the frames that never arrive, and of those that come late."""


@dataclass(slots=True)
class SimulatedHost:
    name: str
    switch: str
    alive: bool = True
    linked: bool = True
    agent: bool = True
    incarnation: int = 1
    generation: int = 0
    """Whose workers run here; 0: none."""
    ended: set[int] = field(default_factory=set)  # ranks of that generation that are over
    unheard: list[t.Event] = field(default_factory=list)
    broken: str = ""
    """What is wrong with it for good; empty: nothing."""
    faulty: bool = False
    """Did anything ever go wrong here that was its own?"""
    slow: float = 1.0

    @property
    def reachable(self) -> bool:
        return self.alive and self.linked and self.agent


def hosts_of(shape: ClusterShape) -> dict[str, SimulatedHost]:
    """By name, each under its switch."""
    number = shape.nodes + shape.spares
    names = [f"n{i:0{len(str(number))}d}" for i in range(number)]
    return {name: SimulatedHost(name, f"s{i // shape.per_switch}") for i, name in enumerate(names)}


@dataclass(slots=True)
class SimulatedGeneration:
    """A generation that trains: its steps come at `first + n * step`."""

    generation: int
    number: int
    """Of its first step."""
    first: float
    step: float

    def newest(self, now: float) -> int:
        """The step that was finished last; -1 before the first."""
        return -1 if now < self.first else self.number + int((now - self.first) / self.step + 1e-9)

    def at_pace(self, now: float, step: float) -> "SimulatedGeneration":
        """From now on with steps of so many seconds, the one that runs included."""
        number = max(self.number, self.newest(now) + 1)
        begun = max(self.first - self.step, self.first + (number - 1 - self.number) * self.step)
        return SimulatedGeneration(self.generation, number, max(now, begun + step), step)

    def held_up(self, now: float, seconds: float) -> "SimulatedGeneration":
        """The step that runs stands still for so long, and goes on from where it is."""
        number = max(self.number, self.newest(now) + 1)
        end = self.first + (number - self.number) * self.step
        return SimulatedGeneration(self.generation, number, end + seconds, self.step)
