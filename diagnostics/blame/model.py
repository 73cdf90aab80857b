"""What blame looks for, the limits from which it names a rank, and its suspects until then."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from statistics import median


class Slowness(StrEnum):
    """Kind of slowness."""

    COMPUTE = "compute"
    LINK = "link"
    DATA = "data loading"
    GARBAGE = "garbage collection"
    HOST = "host interference"
    """Ready to run and kept from it: its work took more time, but no more of the processor's."""
    WAIT = "waiting"
    """Its work took more time and no more of the processor's, and no process kept it: asleep, at a lock, in a read."""
    IMBALANCE = "imbalance"
    """One stage has more to do than another, on all its ranks: due to the plan, no rank's fault."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits from which a rank is named."""

    ratio: float = 1.03
    """Of work, over its peers."""
    chance: float = 0.001
    """That any rank at all is named in a job where ranks differ by noise only."""
    z: float = 3.4
    """Fewest standard errors, however few candidates there are."""
    host: float = 0.05
    """Share of the step that a rank is kept from running beyond its peers."""
    moments: float = 0.05
    """Seconds in the whole window that a rank is off its processor, or outside of its work, beyond its peers: less is a
    few slices of the host's scheduler, however many short steps it is spread over. With few peers the same for all its
    work: which ranks share a cache or a clock rate changes as often."""
    garbage: float = 0.01
    """Share of the step in garbage collection beyond its peers."""
    link: float = 1.15
    """Of a transfer, whose time varies more, over its peers."""
    stage_link: float = 1.5
    """Of a transfer by the byte, over the same transfer of other stages: the only peers where a stage has one group."""
    imbalance: float = 1.1
    """Work of the busiest stage over the mean."""
    least: float = 0.002
    """Share of the step that work or a link takes beyond its peers: what takes next to nothing costs nothing."""
    moved: float = 0.02
    """The same for a link that is not `doubtless` slow: by less, sound links differ for minutes on a busy host."""
    doubtless: float = 10.0
    """Standard errors."""
    between: float = 0.03
    """The same for what lies between spans. Only the clock is known of it, and so also what kept it from running."""
    burst: float = 0.1
    """Share of the step that a rank takes longer in single steps, at least, to be looked at as bursts."""
    bursts: float = 0.02
    """Share of all steps that they take together."""
    candidates: int = 8
    """Most suspects that are tried."""
    replays: int = 16
    """Most steps that are replayed, evenly spread."""


@dataclass(slots=True)
class BlameSuspect:
    """A rank by its place in the graph. `works`: role to the share of its time that is too much."""

    kind: Slowness
    column: int
    lane: int
    ratio: float
    z: float
    self_s: float
    works: dict[str, float] = field(default_factory=dict)
    whole: float = 0.0
    """Share of all its own time, where the work is unknown."""
    moves: list[SlowTransfer] = field(default_factory=list)
    what: str = ""
    """Of moves: the operations that took too long."""
    peers: int = 0
    """Of moves: how many ranks or groups it was compared with."""
    where: str = ""
    """The two spans between which it is, if it is outside of all of them."""
    bursts: Bursts | None = None
    """The steps in which it takes longer, if these are some only."""


@dataclass(frozen=True, slots=True)
class Bursts:
    """Steps in which a rank takes longer: in which role, step to seconds, and of how many steps."""

    role: str
    seconds: dict[int, float]
    steps: int

    @property
    def every(self) -> float:
        """In one of so many steps."""
        return self.steps / max(len(self.seconds), 1)

    @property
    def usual(self) -> float:
        """Seconds of one."""
        return median(self.seconds.values())


@dataclass(frozen=True, slots=True)
class SlowTransfer:
    """A transfer that takes too long: its name, at which places of a column and by what share of its time at each, and
    between which ranks."""

    column: int
    lanes: tuple[int, ...]
    name: str
    shares: tuple[float, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Culprit:
    """Which rank was slow, at what, and what it cost. Seconds are per step."""

    kind: Slowness
    rank: int
    """-1 for an imbalance."""
    peer: int
    """The other end of a link; -1 for none, or where it is all links of the rank."""
    what: str
    """The work, e.g. "forward of stage 1"."""
    ratio: float
    """Over its peers; NaN where there is no ratio."""
    z: float
    peers: int
    self_s: float
    """Its own time beyond that of its peers."""
    cost_s: float
    """Seconds of the step's account that are its: by so much the step would be shorter if it were as fast as its
    peers. What several cost together they share."""
    induced_s: float
    """Seconds that the other ranks together would wait less."""
    victims: int
    """How many ranks would wait less."""
    cost: str = ""
    """`cost_s` as the account shows it."""
    text: str = ""
    works: dict[str, float] = field(default_factory=dict)
    """For each of its works that is too slow, the ratio over its peers."""
    where: str = ""
    """The two spans between which it is, if it is outside of all of them."""
    every: float = 0.0
    """It takes longer in one of so many steps; 0: in all."""
    burst_s: float = 0.0
    """By so much in one of these."""
