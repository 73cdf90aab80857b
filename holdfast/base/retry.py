"""When to try again: one policy for every client, with jitter and an overall deadline.

The policy is pure (a random source comes in, delays come out); `retrying` is the thin loop around it.
"""

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

_random = random.Random().random  # never the module's own: in a worker that one is the script's


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits between attempts: `initial`, times `factor` each, at most `cap`."""

    initial: float = 0.1
    factor: float = 2.0
    cap: float = 5.0
    jitter: float = 0.5
    """Share of each delay that is random, so that a thousand agents do not come back in one instant."""
    deadline: float = math.inf
    """Seconds from the first attempt after which no further one is begun."""

    def delays(self, source: Callable[[], float] = _random) -> Iterator[float]:
        """Endless delays; `source` gives numbers in [0, 1)."""
        delay = self.initial
        while True:
            yield delay * (1.0 - self.jitter * source())
            delay = min(delay * self.factor, self.cap)

    def plan(self, source: Callable[[], float] = _random) -> Iterator[float]:
        """The delays that fit in the deadline if every attempt took no time; the last is cut to end on it."""
        left = self.deadline
        for delay in self.delays(source):
            if left <= 0:
                return
            yield min(delay, left)
            left -= delay


async def retrying(
    attempt: Callable[[], Awaitable[T]],
    policy: Backoff,
    retry_on: tuple[type[Exception], ...],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    source: Callable[[], float] = _random,
    on_retry: Callable[[Exception, float], None] | None = None,
) -> T:
    """The first result; the last error when the deadline is over. Other errors pass through at once."""
    end = clock() + policy.deadline
    delays = policy.delays(source)
    while True:
        try:
            return await attempt()
        except retry_on as error:
            left = end - clock()
            if left <= 0:
                raise
            delay = min(next(delays), left)
            if on_retry is not None:
                on_retry(error, delay)
            await sleep(delay)
