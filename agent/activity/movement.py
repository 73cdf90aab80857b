"""When growth of a counter is movement, and how fast it grows. Pure: samples and their instants go in."""

import math
from collections import deque

WINDOW_S = 0.5
"""Window over which rates are computed."""
LONGEST_S = 3.0
"""Between two movements that belong to one: a program that writes a piece every two seconds moves all the time."""
_SLACK = 1.5


CPU_LEAK, CPU_AMOUNT = 0.04, 0.06
"""Cores that are noise, and seconds on a processor beyond them that are movement."""
BYTES_LEAK, BYTES_AMOUNT = 128.0, 3500.0
"""Bytes a second that are noise (a monitor's line, a keepalive), and bytes beyond them that are movement."""
FAULTS_LEAK, FAULTS_AMOUNT = 50.0, 500.0
"""The same of page faults."""


class Growth:
    """A bucket with a leak: it is movement when more has come than leaks away.

    A process that stands still wakes now and then (a timer, a monitor's line), and a tick of the processor's clock is
    10 ms: single samples are noise. What goes on for long is movement however slow it is, above `leak`.
    """

    __slots__ = ("_at", "_last", "amount", "leak", "level")

    def __init__(self, leak: float, amount: float) -> None:
        """`leak` a second; `amount` in the bucket that counts."""
        self.leak, self.amount = leak, amount
        self.level = 0.0
        self._at, self._last = math.nan, 0.0

    def add(self, at: float, total: float, counts: bool = True) -> bool:
        """Whether the counter, which is at `total` now, moves. Without `counts` this only begins anew."""
        grown = max(total - self._last, 0.0) if not math.isnan(self._at) and counts else 0.0
        leaked = self.leak * (at - self._at) if not math.isnan(self._at) else 0.0
        self._at, self._last = at, total
        # Full is full: however much came, it has leaked away soon after nothing comes any more.
        self.level = min(max(self.level + grown - max(leaked, 0.0), 0.0), self.amount)
        return self.level >= self.amount


class Moves:
    """When something moved last, and whether it is time for the next."""

    __slots__ = ("_gap", "last")

    def __init__(self) -> None:
        self.last = math.nan
        self._gap = 0.0

    def note(self, at: float) -> None:
        if at == self.last:
            return
        self._gap = at - self.last if at - self.last <= LONGEST_S else 0.0
        self.last = at

    def since(self, now: float) -> float:
        """The end of the newest window in which something moved; a window is as long as its last gap. NaN: never."""
        return now if now - self.last <= _SLACK * self._gap else self.last


class Rate:
    """Growth a second over the newest window of at least `WINDOW_S`, or of all there is."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque(maxlen=64)

    def add(self, at: float, total: float) -> float:
        samples = self._samples
        if samples and at <= samples[-1][0]:
            return self.value
        samples.append((at, total))
        while len(samples) > 2 and at - samples[1][0] >= WINDOW_S:
            samples.popleft()
        return self.value

    @property
    def value(self) -> float:
        if len(self._samples) < 2:
            return 0.0
        (first, before), (last, now) = self._samples[0], self._samples[-1]
        return max(now - before, 0.0) / (last - first)
