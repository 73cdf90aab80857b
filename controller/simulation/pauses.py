"""Honest pauses of a simulated job: which kinds there are, how each looks from outside, which ends of one are wrong.

Pure. A pause ends by itself. One that lasts longer than its limit may be ended, at the limit and not before.
"""

import math
import random
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from holdfast.controller.state.incidents import Incident
from holdfast.controller.state.model import Options
from holdfast.wire import types as t
from holdfast.wire.standing import StallFacts, ThreadSight, ThreadState


class PauseKind(StrEnum):
    BUSY = "busy"
    """One rank computes; in half of the cases in one call that holds its interpreter."""
    IO = "io"
    """One rank writes, as in a save."""
    IDLE = "idle"
    """One rank waits for something outside, shorter than the limit for idle ranks."""
    EVALUATION = "evaluation"
    """All ranks do something else than steps, and no rank waits for another."""
    START = "start"
    """Before the first step of an attempt: imports, compilation, downloads. Of one rank, or of all."""
    LONG = "long"
    """Longer than its limit, so that it is ended."""


class Work(StrEnum):
    """What those do that hold up the job."""

    COMPUTES = "computes"
    WRITES = "writes"
    WAITS = "waits"


SHARES: dict[PauseKind, float] = {
    PauseKind.BUSY: 0.3, PauseKind.IO: 0.2, PauseKind.IDLE: 0.2, PauseKind.EVALUATION: 0.15,
    PauseKind.START: 0.1, PauseKind.LONG: 0.05,
}  # fmt: skip
_OPERATIONS = ("dp:all_reduce", "ddp:backward", "barrier")
"""Where the others wait."""
_LONGEST_BUSY_S, _LONGEST_START_S = 60.0, 120.0
_AFTER_S = 0.5
"""A verdict so soon after a pause is still about it."""
_BELOW = 0.9
"""Of its limit an idle pause lasts at most: an honest pause of the simulation is clearly honest."""


class SimulatedPause(NamedTuple):
    """One pause. Seconds of the world's clock. The first three fields are those of a hang, too."""

    host: str
    rank: int
    """The rank that holds up the others; of a pause of all ranks the first that is looked at."""
    since: float
    until: float
    """When it ends by itself."""
    honest_until: float
    """Before this it must not be ended: just after `until`, or when its limit is reached, whichever is sooner."""
    kind: PauseKind
    work: Work
    generation: int
    nodes: int
    """Of the job when the pause began."""
    is_everybody: bool = False
    is_start: bool = False
    """Before the first step of this attempt."""
    holds: bool = False
    """In a call that holds the interpreter."""
    waits_in: str = _OPERATIONS[0]
    """Operation in which the others wait."""


def draw_kind(rng: random.Random) -> PauseKind:
    return rng.choices(list(SHARES), list(SHARES.values()))[0]


def draw(
    kind: PauseKind, host: str, rank: int, now: float, generation: int, nodes: int, options: Options, rng: random.Random
) -> SimulatedPause:
    """A pause of this kind that begins now."""
    is_start, is_everybody = kind is PauseKind.START, kind is PauseKind.EVALUATION
    match kind:
        case PauseKind.BUSY:
            work = Work.COMPUTES
        case PauseKind.IO:
            work = Work.WRITES
        case PauseKind.IDLE:
            work = Work.WAITS
        case PauseKind.EVALUATION:
            work = rng.choice((Work.COMPUTES, Work.WRITES))
        case PauseKind.START:
            work, is_everybody = rng.choice(tuple(Work)), rng.random() < 0.5
        case PauseKind.LONG:
            work = rng.choices((Work.WAITS, Work.COMPUTES), (0.8, 0.2))[0]
    limit = _limit(work, is_start, options)
    if kind is PauseKind.LONG:
        seconds = limit + rng.uniform(30.0, 120.0)
    else:
        longest = _LONGEST_START_S if is_start else _LONGEST_BUSY_S
        seconds = rng.uniform(2.0, min(longest, _BELOW * limit))
    return SimulatedPause(
        host, rank, now, now + seconds, now + min(seconds + _AFTER_S, limit), kind, work, generation, nodes,
        is_everybody, is_start,
        holds=work is Work.COMPUTES and not is_everybody and rng.random() < 0.5, waits_in=rng.choice(_OPERATIONS),
    )  # fmt: skip


def _limit(work: Work, is_start: bool, options: Options) -> float:
    """Seconds after which the controller may end it."""
    if work is not Work.WAITS:
        return options.pause_limit
    return options.idle_limit_start if is_start else options.idle_limit


def sample(pause: SimulatedPause, sample: t.WorkerSample, now: float, is_seen: bool = True) -> t.WorkerSample:
    """How a rank looks in the pause, given its sample with what does not depend on that. `is_seen`: its agent sees what
    those do that hold up the others; else they look like a worker of which a thread sleeps with the interpreter lock.
    """
    idle = now - pause.since
    holds_up = pause.is_everybody or sample.rank == pause.rank
    is_silent = holds_up and (pause.holds or not is_seen)
    sample = sample._replace(
        operation="" if holds_up else pause.waits_in,
        operation_age=math.nan if holds_up else idle,
        progress_age=idle,
        still_age=idle,
        tick_age=idle if is_silent else 0.05,
        activity=_activity(pause.work if holds_up and is_seen else None, idle),
        standing=in_a_lock(sample.pid, idle) if holds_up and not is_seen else None,
    )
    if pause.is_start:
        return sample._replace(step=-1, median_step=math.nan, phase=t.Phase.SETUP)
    return sample


def in_a_lock(pid: int, idle: float) -> StallFacts:
    """All threads wait for a lock of their own process, one of them with the interpreter's."""
    main = ThreadSight(pid, ThreadState.OWN, idle, words="a lock")
    return StallFacts((main, ThreadSight(0, ThreadState.OWN, idle, words="a lock", count=8)))


def _activity(work: Work | None, idle: float) -> t.Activity:
    match work:
        case Work.COMPUTES:
            return t.Activity(idle, 0.0, "R", cpu=1.0)
        case Work.WRITES:
            return t.Activity(idle, 0.1, "S", cpu=0.05, written=200e6, waits_for="a lock", thread="saver")
        case Work.WAITS:
            return t.Activity(idle, idle, "S", waits_for="a reply from 10.0.9.9:443")
    return t.Activity(idle, idle, "S", waits_for="a lock")


def wrong_ends(
    pause: SimulatedPause, incidents: Iterable[Incident], generation: int, nodes: int, epoch: float, struck: float
) -> list[str]:
    """What was wrongly done about a pause that was not to be ended before `honest_until`: any verdict that a worker
    hangs, of whichever rank, and any restart of the job.

    `generation`, `nodes`: of the job at that moment; one that has grown was restarted for that. `epoch`: wall time at
    which the world's clock is 0. `struck`: when a real fault stopped training in the pause, or infinity; what comes
    after it is about that.
    """
    until = min(pause.honest_until, struck)
    verdicts = [
        f"{pause.kind} pause: {finding.text}"
        for incident in incidents
        for finding in incident.findings
        if finding.kind is t.FindingKind.WORKER_HANG and pause.since < finding.at - epoch < until
    ]
    if verdicts:
        return verdicts
    if generation != pause.generation and struck > pause.honest_until and nodes <= pause.nodes:
        return [f"{pause.kind} pause: generation {pause.generation} was restarted as {generation}"]
    return []
