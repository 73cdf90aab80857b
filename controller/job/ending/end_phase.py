"""A job that is ending: a rank has left with exit code 0 and no step was made since, or all ranks have torn down.

Ending is not hanging. What remains is waited for: idle ranks for `--exit-limit`, busy ones until the pause limit. Then
it is stopped and the job is finished, never restarted. Pure: instants are passed in.
"""

import math
from dataclasses import dataclass

import numpy as np

from holdfast.controller.state.model import Instant, Job, Options
from holdfast.controller.state.ranks import RankState, RankTable
from holdfast.wire import types as t
from holdfast.wire.rank_sets import compact

_DONE = t.PHASES.index(t.Phase.DONE)
_STEPS = 1  # that the others may do beyond those known when a rank leaves: the one that they were in
_FRESH = 1.0  # seconds, beyond two heartbeats, within which a sample says what a rank does now


@dataclass(slots=True)
class EndPhase:
    """The end phase of the running generation."""

    _generation: int = -1
    _left_at: float = 0.0  # mono at which the newest rank left
    _reached: int = -1  # newest step of any rank at that time

    def left(self, job: Job, ranks: RankTable, now: Instant) -> None:
        """A rank has ended with 0; `ranks` says so already."""
        self._generation, self._left_at = job.generation, now.mono
        self._reached = int(ranks.counted.max(initial=-1))

    def since(self, job: Job, ranks: RankTable, progress_at: float, now: Instant) -> float | None:
        """Mono since which the job only ends; None while it trains. `progress_at`: mono of the newest step.

        A rank that left by design, while others went on to make steps, ends nothing.
        """
        running = ranks.is_in(RankState.RUNNING)
        if len(running) != job.world or not running.any() or not (ranks.generation == job.generation).all():
            return None
        done, reached = int(ranks.is_in(RankState.DONE).sum()), int(ranks.counted.max(initial=-1))
        if done and (reached >= 0 or 2 * done >= ranks.world):  # few that leave before the first step were not needed
            if self._generation != job.generation:
                self.left(job, ranks, now)  # the controller has restarted since
            has_gone_on = reached > self._reached + _STEPS
            return None if has_gone_on else max(self._left_at, progress_at)
        if reached < 0 or not (ranks.phase[running] == _DONE).all():
            return None
        since = float(np.fmax.reduce(ranks.progress_at[running], initial=-math.inf))
        return since if math.isfinite(since) else None


def limit_of(job: Job, options: Options, is_idle: bool) -> tuple[float, str]:
    """Seconds for which the ranks that remain are waited for, and the option that says so."""
    limit = float(job.spec.limits.get("exit_limit", options.exit_limit))
    longest = float(job.spec.limits.get("pause_limit", options.pause_limit))
    return (limit, "--exit-limit") if is_idle or limit >= longest else (longest, "--pause-limit")


def overdue(job: Job, ranks: RankTable, since: float, options: Options, now: Instant) -> str | None:
    """Why the job is finished although ranks still run; None while they are waited for."""
    waited = now.mono - since
    is_idle = min(waited, _idle_for(ranks, now)) > limit_of(job, options, True)[0]
    limit, option = limit_of(job, options, is_idle)
    if waited <= limit:
        return None
    left = [int(rank) for rank in np.flatnonzero(ranks.is_in(RankState.RUNNING))]
    done = int(ranks.is_in(RankState.DONE).sum())
    who = f"rank {left[0]} was" if len(left) == 1 else f"ranks {compact(left)} were"
    words = next((a.waits_for for rank in left if (a := ranks.activity[rank]) is not None and a.waits_for), "")
    waits = f"; rank {left[0]} waited for {words}" if words and len(left) == 1 else ""
    ended = f"{done} of {ranks.world} ranks ended with exit code 0" if done else "all ranks had finished their training"
    return f"{ended}; {who} still running {waited:.0f} s later and stopped ({option}, {limit:g} s){waits}"


def _idle_for(ranks: RankTable, now: Instant) -> float:
    """Seconds without movement of any rank that runs; 0 where one is not seen, or waits until a known time."""
    return min((_idle(ranks, int(rank), now) for rank in np.flatnonzero(ranks.is_in(RankState.RUNNING))), default=0.0)


def _idle(ranks: RankTable, rank: int, now: Instant) -> float:
    activity, seen_at, quiet = ranks.activity[rank], float(ranks.seen_at[rank]), float(ranks.quiet[rank])
    is_seen = now.mono - seen_at < _FRESH + 2 * float(ranks.period[rank])
    if not is_seen or activity is None or math.isnan(quiet) or not math.isnan(activity.ends_in) or activity.is_prompt:
        return 0.0
    moved = [seen_at - quiet, float(ranks.progress_at[rank]), float(ranks.still_at[rank])]
    # From a known wait to the next one it moved, although nothing need have been measured.
    moved.append(min(float(ranks.known_until[rank]), now.mono))
    return now.mono - max(at for at in moved if not math.isnan(at))
