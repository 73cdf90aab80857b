"""The counters of a cluster's NICs as time goes by: bytes in bins, as agents sample them, and what else ports count."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.controller.simulation.fabric.layout import BURSTS
from holdfast.controller.simulation.fabric.solved import COUNTERS, Solved
from holdfast.planner.network.flows import Floats, Ints

BIN_S = 0.005
"""Between two samples. Agents take them more often; nothing looks closer than this."""
_IDLE = 0.5e6
"""Bytes/s of a NIC besides the job."""
_OF_BINS, _OF_STEPS = 0.1, 0.003
"""Standard deviation of what is in a bin and in a step, as a share: packets, headers, other messages. Our estimate."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The steps of a job, for as long as they go at this pace: `first` is when the first of them began, on the world's
    clock. `step_s` seconds each."""

    first: float
    step_s: float
    number: int = 0
    """Of the first."""


def moved(solved: Solved, nics: Ints, step_s: float, since: Floats) -> Floats:
    """Bytes that NICs have moved of a step, `since` seconds after its beginning: shape (2, NICs, times).

    Messages come in bursts beside computation, rings behind it; what others send goes on all the time.
    """
    rings_at = step_s - solved.longest_sums_s
    starts = rings_at * (np.arange(BURSTS) + 0.5) / BURSTS
    found = np.empty((2, len(nics), len(since)))
    calm, busy = solved.others_calm[:, nics], solved.others_busy[:, nics]
    for way in (0, 1):
        kinds, which = solved.kinds[way]
        for kind in set(which[nics].tolist()):
            found[way, which[nics] == kind] = _curve(kinds[kind], rings_at, starts, since)
    if calm.any() or busy.any():
        beside = np.minimum(since, rings_at)
        found += calm[:, :, None] * beside + busy[:, :, None] * (since - beside)
    return found


def _curve(kind: Floats, rings_at: float, starts: Floats, since: Floats) -> Floats:
    """Of one NIC and way. What cannot end moves nothing."""
    sums_s, sums, messages_s, messages = kind.tolist()
    found = np.zeros(len(since))
    if sums and np.isfinite(sums_s) and sums_s > 0:
        found += sums * np.clip((since - rings_at) / sums_s, 0.0, 1.0)
    if messages and np.isfinite(messages_s) and messages_s > 0:
        # A burst that is longer than its place goes on into the next: then they follow each other.
        length = min(messages_s, rings_at) / BURSTS
        done = np.clip((since[:, None] - starts + length / 2) / length, 0.0, 1.0)
        found += messages / BURSTS * done.sum(axis=1)
    return found


class Meter:
    """Counts for all NICs of a cluster, samples for some of them."""

    def __init__(self, nics: int, now: float, epoch: float, seed: int) -> None:
        """`epoch`: wall time at which the world's clock is 0; bins are those of the wall clock."""
        self._rng = np.random.default_rng(seed)
        self._epoch, self.at = epoch, now
        self._next = int(np.ceil((epoch + now) / BIN_S))
        self.totals = np.full((2, nics), 1e12)
        self.counts = {name: np.zeros(nics) for name in COUNTERS}
        self._pending: list[tuple[Ints, Floats]] = []

    def advance(self, now: float, solved: Solved | None, clock: Clock | None, nics: Ints) -> None:
        """Up to `now`. None: nothing moves but what a NIC always does. `nics`: which are sampled, always the same until
        samples were taken."""
        last = int(np.ceil((self._epoch + now) / BIN_S))
        numbers = np.arange(self._next, last)
        if len(numbers):
            self._pending.append((numbers, self._bins(numbers, solved, clock, nics)))
            self._next = last
        passed, self.at = now - self.at, max(self.at, now)
        if solved is not None and clock is not None:
            for name, grown in solved.counted.items():
                self.counts[name] += grown * (passed / clock.step_s)

    def _bins(self, numbers: Ints, solved: Solved | None, clock: Clock | None, nics: Ints) -> Floats:
        idle = np.full((2, len(nics), len(numbers)), _IDLE * BIN_S)
        if solved is not None and clock is not None:
            edges = np.arange(numbers[0], numbers[-1] + 2) * BIN_S - self._epoch - clock.first
            step = np.maximum(0.0, np.floor(edges / clock.step_s + 1e-9))
            since = np.clip(edges - step * clock.step_s, 0.0, clock.step_s)  # nothing before the first
            at = moved(solved, nics, clock.step_s, since)
            whole = moved(solved, nics, clock.step_s, np.array([clock.step_s]))
            fresh = np.diff(at + (step - step[0]) * whole, axis=2)
            own = 1.0 + _OF_STEPS * self._of_steps(clock, step[:-1], len(nics))
            idle += fresh * own * np.maximum(0.0, 1.0 + _OF_BINS * self._rng.standard_normal(fresh.shape))
        return idle

    def _of_steps(self, clock: Clock, step: Floats, nics: int) -> Floats:
        """The same for all bins of a step."""
        names, which = np.unique(step, return_inverse=True)
        drawn = [
            np.random.default_rng([clock.number + int(name) & 0xFFFFFFFF, nics]).standard_normal(nics)
            for name in names.tolist()
        ]
        found: Floats = np.stack(drawn, axis=1)[None, :, which.ravel()]
        return found

    def skip(self, now: float, solved: Solved | None, clock: Clock | None) -> None:
        """Up to `now` nobody looks: without samples."""
        self._pending.clear()
        self._next = int(np.ceil((self._epoch + now) / BIN_S))
        self.advance(now, solved, clock, np.empty(0, dtype=np.int64))

    def take(self) -> tuple[float, Ints, Floats]:
        """Wall seconds of the first sample, microseconds since then of each, and bytes, shape (2, NICs, samples)."""
        pending, self._pending = self._pending, []
        if not pending:
            return self._next * BIN_S, np.empty(0, dtype=np.int64), np.empty((2, 0, 0))
        numbers = np.concatenate([one for one, _ in pending])
        middles = (numbers - numbers[0]) * round(BIN_S * 1e6) + round(BIN_S * 5e5)
        return numbers[0] * BIN_S, middles, np.concatenate([bytes_ for _, bytes_ in pending], axis=2)

    def reset(self, nics: Ints) -> None:
        """Counters of these begin at 0 again, as after a reload of the driver."""
        self.totals[:, nics] = 0.0
        for count in self.counts.values():
            count[nics] = 0.0
