"""Two small memories that many detectors share: how long something has been so, and how much a counter grew."""

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TypeVar

_MARKS = 32  # points kept of a counter's window

MOST = 1 << 20
"""Keys that one memory holds: twice what 12,288 GPUs with all their ports have."""
_K = TypeVar("_K")
_V = TypeVar("_V")


class BoundedDict(dict[_K, _V]):
    """A dict in which the oldest key makes room: names come from nodes, and may be made up."""

    def __setitem__(self, key: _K, value: _V) -> None:
        super().__setitem__(key, value)
        if len(self) > MOST:
            del self[next(iter(self))]

    def setdefault(self, key: _K, default: _V) -> _V:
        if key not in self:
            self[key] = default
        return self[key]


@dataclass(slots=True)
class _State:
    since: float  # of the present answer
    bad: bool
    reported: bool = False


class Latch:
    """Fires once when a condition has held for a while, and again only after it was absent for as long."""

    def __init__(self) -> None:
        self._states: BoundedDict[Hashable, _State] = BoundedDict()

    def see(self, key: Hashable, bad: bool, now: float, hold: float, clear: float = 0.0) -> bool:
        """Is it time to report it: has it held for `hold` seconds, unreported? `now`: monotonic seconds.

        `clear`: how long it must be absent before it is reported again; if it comes back sooner, the count goes on.
        """
        state = self._states.get(key)
        if state is None:
            if not bad:
                return False
            state = self._states[key] = _State(now, True)
        if bad != state.bad:
            if state.reported and not bad:
                state.since, state.bad = now, False
            elif state.reported and now - state.since < clear:
                state.bad = True  # it was never really away
            else:
                state.since, state.bad, state.reported = now, bad, False
        if not bad:
            if not state.reported or now - state.since >= clear:
                del self._states[key]
            return False
        if state.reported or now - state.since < hold:
            return False
        state.reported = True
        return True


@dataclass(slots=True)
class _Counter:
    last: float
    grown: float = 0.0
    marks: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=2 * _MARKS))


class GrowthWindow:
    """How much counters grew within a sliding window. One that went down was reset: it grew by nothing."""

    def __init__(self, window: float) -> None:
        """`window`: seconds."""
        self.window = window
        self._counters: BoundedDict[Hashable, _Counter] = BoundedDict()

    def see(self, key: Hashable, value: float, now: float) -> float:
        """The growth in the window that ends now. What a counter already said when first seen is history."""
        counter = self._counters.get(key)
        if counter is None:
            counter = self._counters[key] = _Counter(value)
            counter.marks.append((now, 0.0))
            return 0.0
        counter.grown += max(0.0, value - counter.last)
        counter.last = value
        marks = counter.marks
        while len(marks) > 1 and marks[1][0] <= now - self.window:
            marks.popleft()
        if now - marks[-1][0] >= self.window / _MARKS:
            marks.append((now, counter.grown))
        return counter.grown - marks[0][1]


@dataclass(slots=True)
class _Speed:
    at: float
    last: float
    rate: float = 0.0
    usual: float = -1.0


class RateWindow:
    """How fast counters grow now, and how fast they usually do: running means of short and of long memory."""

    def __init__(self, seconds: float, longer: float = 60.0) -> None:
        """`seconds`: the memory of now; the usual remembers `longer` times as long."""
        self._short, self._long = max(seconds, 1e-9), max(seconds, 1e-9) * longer
        self._speeds: BoundedDict[Hashable, _Speed] = BoundedDict()

    def skip(self, key: Hashable, value: float, now: float) -> None:
        """Growth up to now counts for nothing; what was learned before it stays."""
        if (speed := self._speeds.get(key)) is not None:
            speed.at, speed.last = now, value

    def see(self, key: Hashable, value: float, now: float) -> tuple[float, float]:
        """Growth per second, now and usually."""
        speed = self._speeds.get(key)
        if speed is None:
            self._speeds[key] = _Speed(now, value)
            return 0.0, 0.0
        width = now - speed.at
        if width <= 0:
            return speed.rate, max(speed.usual, 0.0)
        fresh = max(0.0, value - speed.last) / width
        speed.at, speed.last = now, value
        if speed.usual < 0:
            speed.rate = speed.usual = fresh
        speed.rate += min(1.0, width / self._short) * (fresh - speed.rate)
        speed.usual += min(1.0, width / self._long) * (fresh - speed.usual)
        return speed.rate, speed.usual
