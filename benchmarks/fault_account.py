"""The schedule of `benchmarks/faults.py`, when a job steps again, and what its time was worth. Pure."""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median_low

from holdfast.controller.simulation.formula import expected

FAULTS = ("crash", "stop", "gil", "segfault", "node-spare", "node-shrink")
SPREAD_S = 0.5
"""Faults come within this time after the last of the undisturbed steps."""


@dataclass(frozen=True)
class Strike:
    fault: str
    rank: int
    after_s: float
    """Since the last of the undisturbed steps."""


def schedule(seed: int, faults: Sequence[str], rounds: int, ranks: int) -> list[Strike]:
    """Each fault `rounds` times, the same for every system.

    The moments are spread evenly and dealt out at random: a checkpoint comes every half second, and a handful of
    independent draws would leave their mean age to luck.
    """
    draw, count = random.Random(seed), len(faults) * rounds
    moments = [SPREAD_S * (n + 0.5) / count for n in range(count)]
    draw.shuffle(moments)
    named = [fault for fault in faults for _ in range(rounds)]
    return [Strike(fault, draw.randrange(ranks), at) for fault, at in zip(named, moments, strict=True)]


@dataclass(frozen=True)
class Line:
    """A step that a process finished, at a Unix time."""

    step: int
    pid: int
    at: float


def steps_again(lines: Iterable[Line], before: set[int], victims: set[int], struck: float) -> Line | None:
    """The first step that shows the job to be past its fault: by a process that was not there `before`, or by one that
    goes on without the `victims`.

    A step takes all workers, and what a victim gave to one it may have given before it fell. So those that stayed show
    it by the second step after the last of a victim.
    """
    lines = list(lines)
    last = max((line.step for line in lines if line.pid in victims), default=-1)
    proofs = [
        line
        for line in lines
        if line.at > struck and line.pid not in victims and (line.pid not in before or line.step >= last + 2)
    ]
    return min(proofs, key=lambda line: line.at, default=None)


@dataclass
class Outcome:
    """One fault. What was not found, or not repaired, within the deadline counts as the deadline."""

    detect_s: float
    recover_s: float
    recovered: bool
    at_s: float
    """Unix time of the fault."""
    done: int
    """The last step before the fault."""
    step: int
    """The first after it; without recovery, the one that the newest checkpoint leads to."""
    whole_s: float = math.nan
    """Until all ranks stepped again, where the job went on with fewer."""

    @property
    def lost(self) -> int:
        """Steps to be done again."""
        return max(0, self.done + 1 - self.step)


@dataclass
class Account:
    """What one system's run was worth."""

    every: int
    """Steps between two states that outlive a fault."""
    outcomes: dict[str, list[Outcome]] = field(default_factory=dict)
    gaps_s: list[float] = field(default_factory=list)
    """Between undisturbed steps."""
    kept: int = 0
    """Steps done and not done again."""
    wall_s: float = 0.0
    trained_s: float = 0.0
    """Of that, until the faults."""
    notes: dict[str, str] = field(default_factory=dict)
    """Why a fault was not tried."""

    def add(self, fault: str, outcome: Outcome, began_s: float, first: int) -> None:
        """A fault in training that was watched since `began_s`, Unix time, when step `first` was done."""
        self.outcomes.setdefault(fault, []).append(outcome)
        self.wall_s += outcome.at_s + outcome.recover_s - began_s
        self.trained_s += outcome.at_s - began_s
        self.kept += max(0, min(outcome.step - 1, outcome.done) - first)

    @property
    def step_s(self) -> float:
        return median_low(self.gaps_s) if self.gaps_s else math.nan

    @property
    def ettr(self) -> float:
        """Steps that were kept, at their median time, over wall time."""
        return self.kept * self.step_s / self.wall_s if self.wall_s else math.nan

    @property
    def ettr_by_formula(self) -> float:
        """From how often faults came, how long recovery took, and how far apart checkpoints are."""
        each = [one for outcomes in self.outcomes.values() for one in outcomes]
        if not each:
            return math.nan
        return expected(len(each) / self.trained_s, fmean(one.recover_s for one in each), self.every * self.step_s)
