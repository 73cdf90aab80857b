"""A loss or a gradient norm that leaps above its own recent values and stays there for some steps."""

import math
from collections import deque
from statistics import median

from holdfast.controller.detectors.base.table import Tuning, finding
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant
from holdfast.wire import types as t

_KEPT = 128  # values
_FEWEST = 20  # values that say what is usual
_SIGMA = 1.4826  # of a normal distribution, in median distances from the median


class SpikeDetector:
    """Of one job. Every rank may report the same step's value: the first counts."""

    def __init__(self, tuning: Tuning, kind: t.FindingKind, name: str) -> None:
        self._limits, self._kind, self._name = tuning.limits(kind), kind, name
        self._usual: deque[tuple[int, float]] = deque(maxlen=_KEPT)  # step, value
        self._high: list[float] = []  # the newest, each above the limit
        self._step = -1
        self._middle = self._limit = math.nan
        self._since = 0

    def observe(self, step: int, value: float, now: Instant) -> list[Finding]:
        """`value` NaN: none was reported. What is not finite is another detector's."""
        if not math.isfinite(value) or step == self._step:
            return []
        if step < self._step:
            self._go_back(step)
        self._step = step
        if len(self._usual) >= _FEWEST and value > self._bound():
            self._high.append(value)
            if len(self._high) < self._limits["steps"]:
                return []
            found = self._finding(step, now)
            self._usual.clear()  # reported once: if it stays there, that is its level now
            self._high.clear()
            self._since = 0
            return [found]
        # What leapt for a step or two was an outlier of the data, and says nothing of what is usual.
        self._high.clear()
        self._usual.append((step, value))
        self._since += 1
        return []

    def _go_back(self, step: int) -> None:
        """These steps are done again: what was usual in them, or later, says nothing of what is usual before. After a
        return to the start nothing is left: at step 0 a gradient is many times what it is at step 1000."""
        self._high.clear()
        while self._usual and self._usual[-1][0] >= step:
            self._usual.pop()
        self._limit = math.nan

    def _bound(self) -> float:
        if self._since or math.isnan(self._limit):
            self._since = 0
            values = [value for _, value in self._usual]
            self._middle = median(values)
            distance = median(abs(v - self._middle) for v in values)
            over = max(self._limits["sigmas"] * _SIGMA * distance, self._limits["share"] * abs(self._middle))
            self._limit = self._middle + over
        return self._limit

    def _finding(self, step: int, now: Instant) -> Finding:
        value = median(self._high)
        text = f"the {self._name} is {value:.4g} for {len(self._high)} steps up to {step}; it was {self._middle:.4g}"
        said = {"step": step, "value": value, "usual": self._middle, "limit": self._limit}
        return finding(self._kind, "job", text, now, signature=f"{self._kind}@{step}", evidence=said)
