"""The job's pace: steps that take longer from one moment on, or a little longer all the time.

Medians, and the scatter around them, so that neither pauses nor heavy jitter look like a change: a change must be
large against the pace itself, against the medians' own error, and against how far medians wander by themselves. A
host shared with others wanders for minutes, by more than the jitter of its single steps would let one think.
"""

import math
from collections import deque

import numpy as np

from holdfast.controller.detectors.base.table import Tuning, finding
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant
from holdfast.wire import types as t

_K = t.FindingKind
_BLOCK = 20  # steps; of each block the median
_PAST = 10  # blocks that say what was usual before a jump
_WANDER = 40  # blocks that say how far their medians wander
_ERROR = 1.2533 * 1.4826  # of a median, in median distances from it over the root of their number
_DECILES = 2.563  # from the first decile to the last, in standard deviations of a normal distribution


class PaceDetector:
    """Of one job; the baseline begins anew with each generation."""

    def __init__(self, tuning: Tuning) -> None:
        self._jump, self._drift = tuning.limits(_K.STEP_TIME_JUMP), tuning.limits(_K.STEP_TIME_DRIFT)
        self._begin(-1)

    def _begin(self, generation: int) -> None:
        self._generation = generation
        self._block: list[float] = []
        self._blocks: deque[tuple[float, float]] = deque(maxlen=_WANDER + 2)  # median, its error
        self._longs: list[tuple[float, float]] = []  # the same of long stretches
        self._stretch: list[float] = []
        self._strides: deque[float] = deque(maxlen=_WANDER)  # from one long stretch to the next
        self._drifting = 0
        self._drift_reported = False

    def observe(self, record: t.StepRecord, now: Instant) -> list[Finding]:
        """The first record of a step."""
        if record.generation != self._generation:
            self._begin(record.generation)
        self._block.append(record.seconds)
        if len(self._block) < _BLOCK:
            return []
        block, self._block = _middle(self._block), []
        self._blocks.append(block)
        found = self._jumped(record, now)
        if found:
            # From here on this is the pace: neither jump nor drift again for the same.
            self._blocks.clear()
            self._longs.clear()
            self._strides.clear()
            self._stretch.clear()
            return found
        self._stretch.append(block[0])
        if len(self._stretch) < max(1, round(self._drift["steps"] / _BLOCK)):
            return []
        self._longs.append(_middle(self._stretch))
        self._stretch = []
        if len(self._longs) > 1:
            self._strides.append(abs(self._longs[-1][0] - self._longs[-2][0]))
        return self._drifted(record, now)

    def _jumped(self, record: t.StepRecord, now: Instant) -> list[Finding]:
        """Two blocks in a row above what was usual."""
        if len(self._blocks) < _PAST + 2:
            return []
        past, newest = list(self._blocks)[:-2], list(self._blocks)[-2:]
        middles = [middle for middle, _ in past]
        usual = float(np.median(middles[-_PAST:]))
        low, high = np.quantile(middles, (0.1, 0.9))
        error = max(float(np.median([e for _, e in past[-_PAST:]])), float(high - low) / _DECILES)
        slowest = min(middle for middle, _ in newest)
        if slowest < usual * self._jump["times"] or slowest < usual + self._jump["errors"] * error:
            return []
        text = f"steps take {slowest:.3f} s since about step {record.step - 2 * _BLOCK}, {slowest / usual:.2f} times"
        return [_says(_K.STEP_TIME_JUMP, f"{text} as long as before", record, slowest, usual, error, now)]

    def _drifted(self, record: t.StepRecord, now: Instant) -> list[Finding]:
        """Several long stretches in a row, all slower than the first ones of this generation."""
        if self._drift_reported or len(self._longs) < 4:
            return []
        usual = float(np.median([middle for middle, _ in self._longs[1:4]]))  # the first has the warm-up in it
        # What grows little by little takes many strides for that; what only wanders has gone as far in a few.
        error = max(float(np.median([e for _, e in self._longs])), float(np.median(self._strides)), 1e-9)
        middle = self._longs[-1][0]
        slower = middle > usual * self._drift["times"] and middle > usual + self._drift["errors"] * error
        self._drifting = self._drifting + 1 if slower else 0
        del self._longs[8:-1]
        if self._drifting < self._drift["stretches"]:
            return []
        self._drift_reported = True
        text = f"the step time has slowly grown to {middle:.3f} s, {middle / usual:.2f} times as long as at the start"
        return [_says(_K.STEP_TIME_DRIFT, text, record, middle, usual, error, now)]


def _middle(values: list[float]) -> tuple[float, float]:
    """The median, and how far it may well be off."""
    table = np.asarray(values)
    middle = float(np.median(table))
    distance = float(np.median(np.abs(table - middle)))
    return middle, _ERROR * distance / math.sqrt(len(values))


def _says(
    kind: t.FindingKind, text: str, record: t.StepRecord, value: float, usual: float, error: float, now: Instant
) -> Finding:
    said = {"step": record.step, "seconds": value, "usual_seconds": usual, "error_seconds": error}
    return finding(kind, "job", text, now, signature=f"{kind}@{record.step}", evidence=said)
