"""What is so in a simulated cluster, and what of it the brain may not know."""

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from holdfast.controller.brain.cluster_brain import ClusterBrain
from holdfast.controller.brain.job_brain import JobBrain
from holdfast.controller.simulation.hosts import WALL, ClusterShape, SimulatedGeneration, SimulatedHost, hosts_of
from holdfast.controller.simulation.pauses import SimulatedPause
from holdfast.controller.state.incidents import Incident
from holdfast.controller.state.model import Instant, Job, Options
from holdfast.wire import types as t


class SimulatedNetwork(Protocol):
    """What a world asks of the network between its hosts: see `fabric.links`."""

    @property
    def more_s(self) -> float:
        """Seconds that a step takes longer than it should."""
        ...

    def advance(self) -> None:
        """Count up to now: something is about to change."""
        ...

    def interval(self, asked: float) -> float:
        """Seconds between two beats."""
        ...

    def frames(self) -> Mapping[str, t.Frame]:
        """By host, those that show traffic."""
        ...


class SimulationState:
    brain: ClusterBrain

    def __init__(
        self, shape: ClusterShape, seed: int, options: Options | None = None, now: float = 1000.0, epoch: float = WALL
    ) -> None:
        """`now`: the world's clock at the beginning, seconds; `epoch`: wall time at which that clock is 0."""
        self.shape, self.rng = shape, random.Random(seed)
        self.options = options or Options()
        self.now, self.epoch = now, epoch
        self.began = self.now
        self.hosts = hosts_of(shape)
        self.heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.counter = 0
        self.saved: dict[tuple[str, str], dict[str, Any]] = {}
        self.boots = 0
        self.crash_armed = False
        self.away = False
        """Is the controller dead?"""
        self.alert_until = self.now
        self.next_tick = self.next_beat = self.now
        self.life: SimulatedGeneration | None = None
        self.delivered = -1
        """Newest step that was reported to the controller, or that can no longer be reported."""
        self.stored = -1
        """Newest step in the store."""
        self.stored_at = self.now
        self.done = -1
        """Newest step that was really finished and kept."""
        self.hung: tuple[str, int, float] | None = None  # host, rank, since
        self.paused: SimulatedPause | None = None
        """It ends by itself."""
        self.pauses: Counter[str] = Counter()
        """By kind, how many there were."""
        self.works = True  # what those do that pause is seen
        self.wronged: list[str] = []  # verdicts and restarts for a pause that was not to be ended
        self.memory_lost: set[str] = set()
        self.held: set[str] = set()
        """The hosts that trained last."""
        self.stopped_at = math.nan
        """When training last stopped; NaN while it runs."""
        self.stops: list[tuple[float, float, float, str]] = []  # (fault, seen, training again, kind)
        self.evicted: list[tuple[str, bool]] = []  # (node, was it faulty?)
        self.again: Callable[[SimulatedHost], None] = lambda host: None
        """What a node that is broken does some time after it took part again."""
        self.mend: Callable[[SimulatedHost], None] = lambda host: None
        self.began_life: Callable[[], None] = lambda: None
        """What happens when an attempt of the job has begun, and its first step is still to come."""
        self.links: SimulatedNetwork | None = None
        """The network between the hosts, once something is different in it."""
        self.events = 0
        self.loads = 0
        """The newest generation of which all workers were started."""
        self.checked: set[int] = set()
        self.up: set[str] = set()
        """Nodes on which the newest generation has started."""
        self.heartbeat_interval = self.options.heartbeat_interval

    @property
    def job_brain(self) -> JobBrain | None:
        """Of the job that is simulated."""
        return self.brain.jobs.newest

    @property
    def job(self) -> Job | None:
        return self.job_brain.c.job if self.job_brain is not None else None

    def live(self) -> Incident | None:
        """The job's incident that is not over yet."""
        return self.job_brain.c.book.live() if self.job_brain is not None else None

    @property
    def instant(self) -> Instant:
        return Instant(self.now, self.epoch + self.now)
