"""When a thread tries something again and again, with waits in between that end by themselves. Pure."""

from dataclasses import dataclass

ATTEMPT_S, ATTEMPT_CPU_S = 0.4, 120e-6
"""A wait between attempts is longer than the first; an attempt takes more processor time than the second. Waking from
a sleep takes 25 us, looking for a file 60, a connection that is refused 190 (measured on a busy machine)."""


@dataclass(slots=True)
class _Wait:
    slices: int
    ran_ns: int
    since: float  # when the thread was first seen in it
    seen: float  # and last


class Attempts:
    """Of one thread."""

    def __init__(self) -> None:
        self._wait: _Wait | None = None

    def look(self, now: float, is_timed: bool, ran_ns: int, slices: int) -> bool:
        """Whether it made an attempt since the look before: it ran, and waits again. `is_timed`: its wait ends by
        itself. `ran_ns`, `slices`: how long and how often it has run."""
        before = self._wait
        if before is not None and slices == before.slices:
            before.seen = now
            return False
        self._wait = _Wait(slices, ran_ns, now, now)
        if before is None or not is_timed:
            return False
        turns, ran_s = slices - before.slices, (ran_ns - before.ran_ns) / 1e9
        # One that waits and runs at an even pace; or one long wait, and an attempt of many turns (a connection).
        is_even = (now - before.since) / turns >= ATTEMPT_S and ran_s / turns >= ATTEMPT_CPU_S
        return is_even or (before.seen - before.since >= ATTEMPT_S and ran_s >= ATTEMPT_CPU_S)
