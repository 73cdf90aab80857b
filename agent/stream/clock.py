"""How far this host's monotonic clock is from the controller's clock, from round trips on the stream. Pure.

Of a round trip only this is known: the controller read its clock somewhere between our two readings. The shortest of
the recent ones says it best. The error that is stated is half of it, plus what clocks may have drifted since.
"""

from collections import deque
from dataclasses import dataclass

_KEPT = 64
_DRIFT = 50e-6
"""Of a quartz, at most; so a good round trip of ten minutes ago is as good as one of 60 ms now."""


@dataclass(frozen=True, slots=True)
class Offset:
    """Controller's Unix time less our monotonic time, ns, right within `error_ns` either way."""

    offset_ns: int
    error_ns: int


class ClockOffset:
    def __init__(self) -> None:
        self._trips: deque[tuple[int, int, int]] = deque(maxlen=_KEPT)  # when, offset, half of the round trip

    def answered(self, sent_ns: int, theirs_ns: int, now_ns: int) -> None:
        """We asked at `sent_ns`, their clock said `theirs_ns`, the answer came at `now_ns`."""
        half = (now_ns - sent_ns) // 2
        if half >= 0:
            self._trips.append((now_ns, theirs_ns - sent_ns - half, half))

    def forget(self) -> None:
        """Another controller has another clock."""
        self._trips.clear()

    def best(self, now_ns: int) -> Offset | None:
        """None before the first answer."""
        if not self._trips:
            return None
        error, offset = min((half + int((now_ns - at) * _DRIFT), offset) for at, offset, half in self._trips)
        return Offset(offset, error)
