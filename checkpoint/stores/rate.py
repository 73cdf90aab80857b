"""Bytes of one worker on their way out, to the store and to its peer together, no faster than so many a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from holdfast.checkpoint.stores.throttle import Budget

_PIECE = 1 << 20
_LEAST = 4 << 10


class Pace:
    """Shared by threads. At 0 bytes a second there is no limit."""

    def __init__(
        self,
        bytes_per_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._budget = Budget(bytes_per_s) if bytes_per_s > 0 else None
        self._clock, self._sleep, self._lock = clock, sleep, threading.Lock()
        self.piece = min(max(int(bytes_per_s / 10), _LEAST), _PIECE) if bytes_per_s > 0 else _PIECE
        """Bytes to take at once: no more than pass in a tenth of a second, so that the other end sees us alive."""

    def take(self, num_bytes: int) -> None:
        """Return when so many bytes may go."""
        if self._budget is None:
            return
        with self._lock:
            pause = self._budget.wait(num_bytes, self._clock())
        if pause:
            self._sleep(pause)
