"""What the durations of recent steps say of how long the next one may take."""

import math
from functools import cached_property

import numpy as np

_FEW = 3  # steps, below which nothing is known
_NEWEST = 50


class StepTimes:
    """Seconds. Each figure is computed once, where it is asked for: a controller asks at every tick of every job."""

    def __init__(self, steps: list[float]) -> None:
        """`steps`: oldest first."""
        self.steps = steps

    @cached_property
    def median(self) -> float:
        """NaN where too few steps are known: then none of the figures is to be used."""
        return float(np.median(self.steps)) if len(self.steps) >= _FEW else math.nan

    @cached_property
    def longest(self) -> float:
        """Of the newest."""
        return max(self.steps[-_NEWEST:])

    @cached_property
    def slow(self) -> float:
        """The 90th percentile."""
        return float(np.quantile(self.steps, 0.9))
