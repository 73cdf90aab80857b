"""When a thread tries something again and again, with waits in between that end by themselves. Pure."""

import math
from dataclasses import dataclass

ATTEMPT_S, ATTEMPT_CPU_S, ATTEMPT_WAKES = 0.4, 120e-6, 5.0
"""A wait between attempts is longer than the first; an attempt takes more processor time than the second, and than so
many wakes from a sleep. Those take 25 us on a busy machine and up to 180 on an idle one, whose caches and clocks are
cold; looking for a file takes twice as much, `Event.wait` three times, a connection that is refused eight to nine."""
LONG_S, GROWS = 3.0, 1.5
"""A wait longer than the first, and one longer than it by the second factor after it: a backoff, whatever lies between
them. Both are seen up to a second late, which makes waits of equal length differ by less."""


@dataclass(slots=True)
class _Wait:
    slices: int
    ran_ns: int
    since: float  # when the thread was first seen in it
    seen: float  # and last
    length: float  # from then to its own end; NaN: not known


class Attempts:
    """The attempts of one thread."""

    def __init__(self) -> None:
        self._wait: _Wait | None = None

    def look(
        self, now: float, is_timed: bool, ran_ns: int, slices: int, until: float = math.nan, wake_s: float = 0.0
    ) -> bool:
        """Whether it made an attempt since the look before: it ran, and waits again. `is_timed`: its wait ends by
        itself, at `until` if that is known. `ran_ns`, `slices`: how long and how often it has run.
        `wake_s`: processor time that a wake from a sleep takes on this host."""
        before = self._wait
        if before is not None and slices == before.slices:
            before.seen = now
            return False
        wait = self._wait = _Wait(slices, ran_ns, now, now, until - now)
        if before is None or not is_timed:
            return False
        if before.length > LONG_S and wait.length > GROWS * before.length:
            return True
        turns, ran_s = slices - before.slices, (ran_ns - before.ran_ns) / 1e9
        least_s = max(ATTEMPT_CPU_S, ATTEMPT_WAKES * wake_s)
        # One that waits and runs at an even pace; or one long wait, and an attempt of many turns (a connection).
        is_even = (now - before.since) / turns >= ATTEMPT_S and ran_s / turns >= least_s
        return is_even or (before.seen - before.since >= ATTEMPT_S and ran_s >= least_s)
