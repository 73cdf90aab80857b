"""Whether a job's steps take longer than its plan says. Pure.

By the median of the newest steps, so that what some of them have besides (a checkpoint, an evaluation, a program that
compiles anew) makes no difference, and outside of that median's own error, so that heavy jitter makes none either.
"""

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from holdfast.controller.detectors.base.table import Tuning
from holdfast.wire import types as t

_ERROR = 1.2533 * 1.4826  # of a median, in median distances from it over the root of their number


@dataclass(frozen=True, slots=True)
class PlannedPace:
    """Seconds of the newest steps."""

    median: float
    error: float
    """Standard error of that median."""


class PlannedPaceDetector:
    """Of one job; begins anew with each generation."""

    def __init__(self, tuning: Tuning) -> None:
        self._limits = tuning.limits(t.FindingKind.SLOWER_THAN_PLANNED)
        self._generation = -1
        self._seen = 0
        self._newest: deque[float] = deque(maxlen=max(1, int(self._limits["steps"])))

    @property
    def steps(self) -> int:
        """That are looked at together."""
        return self._newest.maxlen or 1

    def observe(self, generation: int, seconds: float) -> PlannedPace | None:
        """The first record of a step. None until there are enough of this generation behind its warm-up."""
        if generation != self._generation:
            self._generation, self._seen = generation, 0
            self._newest.clear()
        self._seen += 1
        if self._seen <= self._limits["warm_up"]:
            return None
        self._newest.append(seconds)
        if len(self._newest) < self.steps:
            return None
        table = np.asarray(self._newest)
        median = float(np.median(table))
        distance = float(np.median(np.abs(table - median)))
        return PlannedPace(median, _ERROR * distance / math.sqrt(len(table)))

    def is_slower(self, pace: PlannedPace, planned: float, explained: float = 0.0) -> bool:
        """`explained`: seconds of a step that something else accounts for already."""
        rest = pace.median - explained
        return rest > self._limits["times"] * planned and rest > planned + self._limits["errors"] * pace.error

    def is_over(self, pace: PlannedPace, planned: float) -> bool:
        """Are steps about as quick as planned? Between this and `is_slower` nothing changes."""
        return pace.median < min(self._limits["ends"], self._limits["times"]) * planned
