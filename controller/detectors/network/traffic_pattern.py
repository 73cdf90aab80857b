"""The traffic pattern of a node: volume and burst rate of each step, against its own recent steps.

MegaScale (section 4.2) detects a fault by traffic that declines or fluctuates against its usual period. Steps that
workers report are the period, to the millisecond; where none are, it is found in the samples by autocorrelation.
The bytes of a synchronous step hardly vary, however long it takes: so volumes are compared step by step, and
pauses, evaluation and checkpoints between steps count for nothing.
"""

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from holdfast.wire import types as t

Floats = npt.NDArray[np.float64]

BIN = 0.005  # seconds
_LEAST, _MOST = 2_000, 120_000  # bins that are kept: ten seconds, or as long as steps need, up to ten minutes
_GAP = 200  # bins without a sample, after which what was before is not known to the end
_LOOK = 30.0  # seconds in which a period is looked for
_STRONG = 0.4  # autocorrelation of a period
_PERIODS = 8  # in one window, where no steps are reported
_STRETCH = 8  # bins at least, in which a rate is taken
_STRETCHES = 32  # of a step at most
_FEW_STRETCHES = 4  # of a step at least: fewer do not show a quiet one
_FEWEST = 4  # bins of the shortest period that can be found


@dataclass(frozen=True, slots=True)
class Volume:
    """What one step moved. `peak`: bytes per second in its busiest bins."""

    tx: float
    rx: float
    peak: float
    steady_tx: float = math.inf
    """Of `tx`, what traffic of the rate of its quietest stretch would be: it may be another program's. Infinite: the
    step is too short to have one."""
    steady_rx: float = math.inf


def find_period(values: Floats, width: float) -> float:
    """Seconds between repetitions of a binned signal, or NaN if it has none; at least four of them must be in it."""
    n = len(values)
    if n < 8 * _FEWEST:
        return math.nan
    centred = values - values.mean()
    power = float(np.dot(centred, centred))
    if power <= 0:
        return math.nan
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    lags = np.fft.irfft(spectrum * np.conj(spectrum), size)[: n // 4 + 1]
    lags = lags / power * (n / (n - np.arange(len(lags))))  # fewer pairs at longer lags
    inner = lags[1:-1]
    peaks = np.flatnonzero((inner >= lags[:-2]) & (inner > lags[2:])) + 1
    peaks = peaks[peaks >= _FEWEST]
    if not len(peaks) or (best := float(lags[peaks].max())) < _STRONG:
        return math.nan
    first = int(peaks[lags[peaks] >= 0.75 * best][0])  # not one of its multiples
    return first * width


class Bins:
    """Bytes of all NICs of a node in bins of 5 ms, by its own wall clock."""

    def __init__(self) -> None:
        self.keep = _LEAST
        self._start = 0  # number of the first bin, since the epoch
        self._count = 0
        self._bytes: Floats = np.zeros((2, 0))  # sent and received by bin, with room behind

    @property
    def _tx(self) -> Floats:
        return self._bytes[0, : self._count]

    @property
    def _rx(self) -> Floats:
        return self._bytes[1, : self._count]

    def add(self, frame: t.Frame) -> None:
        offsets = np.frombuffer(frame.offsets, "<u4")
        if not len(offsets) or not frame.nics:
            return
        width, wall_us = round(BIN * 1e6), frame.wall_ns // 1000
        first = (wall_us + int(offsets[0])) // width
        numbers = (offsets.astype(np.int64) + (wall_us - first * width)) // width  # from the first on
        last = first + int(numbers.max())
        end = self._start + self._count
        # The first, or the clock was set, or there were no samples for a while: an agent that was restarted, say.
        if not self._count or first < self._start or first > end + _GAP:
            self._start, self._count, end = first, 0, first
        if last >= end:
            self._grow(last + 1 - end)
        at = first - self._start
        if at < 0:
            return  # one frame of more than is kept: nothing usual
        columns = b"".join([nic.tx for nic in frame.nics] + [nic.rx for nic in frame.nics])
        moved = np.frombuffer(columns, "<u4").reshape(2, len(frame.nics), -1).sum(axis=1)
        for row in range(2):
            fresh = np.bincount(numbers, moved[row])
            self._bytes[row, at : at + len(fresh)] += fresh

    def _grow(self, more: int) -> None:
        """Bins behind the last one, empty. What is older than `keep` goes when twice as many are there."""
        if self._count + more > self._bytes.shape[1] or self._count > 2 * self.keep:
            kept = min(self._count, self.keep)
            room = np.zeros((2, 2 * self.keep + more))
            room[:, :kept] = self._bytes[:, self._count - kept : self._count]
            self._start += self._count - kept
            self._bytes, self._count = room, kept
        self._bytes[:, self._count : self._count + more] = 0.0
        self._count += more

    @property
    def end(self) -> float:
        """Wall seconds up to which all is known."""
        return (self._start + self._count) * BIN

    def total(self, seconds: float) -> Floats:
        """Both directions in the last `seconds`, by bin."""
        count = round(seconds / BIN)
        both: Floats = self._tx[-count:] + self._rx[-count:]
        return both

    def between(self, start: float, end: float) -> Volume | None:
        """What was moved from `start` to `end` (wall seconds); None where that is not all known."""
        a, b = round(start / BIN) - self._start, round(end / BIN) - self._start
        if a < 0 or b > self._count or b <= a:
            return None
        tx, rx = self._tx[a:b], self._rx[a:b]
        both = tx + rx
        busiest = max(1, min(len(both), round(0.1 * int((both > 0).sum()))))
        peak = float(np.partition(both, -busiest)[-busiest:].mean()) / BIN
        return Volume(float(tx.sum()), float(rx.sum()), peak, _steady(tx), _steady(rx))


def _steady(moved: Floats) -> float:
    """Bytes of all bins, had all been as quiet as the quietest stretch of them."""
    count = min(_STRETCHES, len(moved) // _STRETCH)
    if count < _FEW_STRETCHES:
        return math.inf
    width = len(moved) // count
    sums = moved[: count * width].reshape(count, width).sum(axis=1)
    return float(sums.min()) / width * len(moved)


@dataclass(slots=True)
class StepTraffic:
    """Makes volumes of a node's steps, as soon as the samples of the whole step are here."""

    bins: Bins = field(default_factory=Bins)
    generation: int = -1
    ended: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=256))  # (step, wall) not yet used
    before: tuple[int, float] | None = None
    period: float = math.nan
    counted_to: float = 0.0

    def add(self, frame: t.Frame, rank: int, generation: int) -> list[Volume]:
        """`rank`: the worker of this node whose steps count. New volumes, oldest first."""
        if generation != self.generation:
            self.generation, self.before, self.period, self.counted_to = generation, None, math.nan, 0.0
            self.ended.clear()
            self.bins.keep = round(2 * _LOOK / BIN)
        self.bins.add(frame)
        for record in frame.steps:
            if record.rank == rank and record.generation == generation:
                self.ended.append((record.step, record.end_wall_ns / 1e9))
        found = []
        while self.ended and self.ended[0][1] + BIN <= self.bins.end:
            step, end = self.ended.popleft()
            if self.before is not None and step == self.before[0] + 1:
                self.bins.keep = min(_MOST, max(_LEAST, round(3 * (end - self.before[1]) / BIN)))
                volume = self.bins.between(self.before[1], end)
                found += [volume] if volume is not None else []
            self.before = step, end
        return found

    def windows(self) -> list[Volume]:
        """The same where no steps are reported: eight periods are one window."""
        if self.before is not None or self.bins.end - self.counted_to < 1.0:
            return []
        if math.isnan(self.period):
            self.counted_to = self.bins.end
            self.period = find_period(self.bins.total(_LOOK), BIN)
            return []
        width, found = _PERIODS * self.period, []
        while self.counted_to + width <= self.bins.end:
            volume = self.bins.between(self.counted_to, self.counted_to + width)
            found += [volume] if volume is not None else []
            self.counted_to += width
        return found
