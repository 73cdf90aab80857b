"""Pauses of a job: how long one may last, what earlier ones taught, when an alert is sent. Pure as all of the brain.

A pause is a standstill that may end by itself (`detectors.workers.pause`). It is reported at once, an alert is sent
when it lasts, and it is ended only at its limit. A pause that ended by itself is learned for its place, over
generations; where a restart brings the same picture at the same place, the limit doubles.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.controller.detectors.workers.pause import Pause
from holdfast.controller.job.ending import end_phase
from holdfast.controller.state.events import Action, Record, Say
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Job, Options
from holdfast.diagnostics.hang.stack_tree import Stack
from holdfast.diagnostics.hang.stillness import Liveness
from holdfast.wire import types as t

REPORTED = 2.0
"""Seconds of standstill from which on a pause is reported."""
_MOST_DOUBLINGS = 6
_MOST_PLACES = 200
_AGAIN, _AGAIN_S = 0.25, 5.0
"""Stacks of an idle rank are looked at again after this share of its limit, and so many seconds at least."""


@dataclass(slots=True)
class PauseOutcome:
    """What a look at a pause comes to."""

    end: Finding | None = None
    alert: Finding | None = None
    actions: list[Action] = field(default_factory=list)


class PauseWatch:
    def __init__(self) -> None:
        self.current: Pause | None = None
        self.place = ""
        self.since = 0.0  # wall
        self.limit = math.inf
        self._is_ending = False
        self._of = ("", 0)  # job and generation
        self._is_reported = self._is_alerted = self._has_ended = False
        self._calls: tuple[str, ...] = ()
        self._asked_at, self._moved_at = -math.inf, -math.inf  # mono
        self._known_until = -math.inf  # mono: when the last wait ends, or ended, that said so itself

    def of(self, job: Job) -> Pause | None:
        """The pause of this generation of the job, if it has one: that of another may be the last one seen."""
        return self.current if self._of == (job.spec.id, job.generation) else None

    def wants_stacks(self, now: Instant) -> bool:
        """Whether to look at the stacks again: those of an idle rank that change are a movement, too."""
        pause = self.current
        if pause is None or pause.life is not Liveness.IDLE or pause.still < REPORTED:
            return False
        if now.mono - self._asked_at < max(_AGAIN_S, _AGAIN * self.limit):
            return False
        is_first, self._asked_at = math.isinf(self._asked_at), now.mono
        return not is_first  # once a standstill they are asked for anyhow

    def saw_stacks(self, stacks: Sequence[Stack], now: Instant) -> None:
        """The newest stacks of all ranks. Where the first suspect's main thread is elsewhere now, it moves."""
        rank = self.current.ranks[0] if self.current is not None else -1
        calls = next((s.frames for s in stacks if s.thread == "main" and rank in s.ranks), ())
        if self._calls and calls and calls != self._calls:
            self._moved_at = now.mono
        self._calls = calls or self._calls

    def look(
        self,
        pause: Pause | None,
        place: str,
        job: Job,
        options: Options,
        has_stepped: bool,
        now: Instant,
        is_ending: bool = False,
    ) -> PauseOutcome:
        """At every tick of a job that is up. `has_stepped`: in this attempt of the job. `is_ending`: a rank has left
        with exit code 0, so the job is finished at its limit, by `job.ending`, and not restarted."""
        if (job.spec.id, job.generation) != self._of:
            self._of = (job.spec.id, job.generation)
            self._begin()
        if pause is None:
            return PauseOutcome(actions=self._over(job, now))
        if self.current is None:
            self.since = now.wall - pause.still
        self.current, self.place = pause, place or self.place
        if is_ending:
            limit, option = end_phase.limit_of(job, options, pause.life is Liveness.IDLE)
        else:
            limit, option = limit_of(pause, self.place, job, options, has_stepped)
        self.limit, self._is_ending = limit, is_ending
        outcome = PauseOutcome()
        if pause.still < REPORTED:
            return outcome
        if not self._is_reported:
            self._is_reported = True
            outcome.actions.append(Say("job.paused", {"life": pause.life.value, "text": pause.text}))
        usual = job.pauses.get(self.place, [0.0, 0.0])[1]
        if not self._is_alerted and pause.still > max(options.pause_alert, 1.5 * usual):
            self._is_alerted = True
            outcome.alert = self._finding(t.FindingKind.WORKER_PAUSED, t.Severity.WARNING, limit, option, job, now)
        if not is_ending and not self._has_ended and self._is_over_limit(pause, limit, options, now):
            self._has_ended = True
            outcome.end = self._finding(t.FindingKind.WORKER_HANG, t.Severity.CRITICAL, limit, option, job, now)
        return outcome

    def ended(self, job: Job) -> Record:
        """The job is restarted for the pause: remember it for its place."""
        known = job.pauses.setdefault(self.place, [0.0, 0.0])
        known[0] += 1
        job.uncounted_restarts += 1
        _forget_some(job)
        return Record("job", job.spec.id, job.to_doc())

    def _begin(self) -> None:
        self.current, self.place, self.limit = None, "", math.inf
        self._is_reported = self._is_alerted = self._has_ended = False
        self._calls, self._asked_at, self._moved_at = (), -math.inf, -math.inf
        self._known_until = -math.inf

    def _over(self, job: Job, now: Instant) -> list[Action]:
        """It goes on: learn how long it took there."""
        pause, place, is_reported = self.current, self.place, self._is_reported
        self._begin()
        if pause is None or not is_reported:
            return []
        seconds = now.wall - self.since
        actions: list[Action] = [Say("job.moves", {"seconds": round(seconds, 1), "life": pause.life.value})]
        known = job.pauses.setdefault(place, [0.0, 0.0])
        if seconds > 1.2 * known[1]:
            known[1] = seconds
            _forget_some(job)
            actions.append(Record("job", job.spec.id, job.to_doc()))
        return actions

    def _is_over_limit(self, pause: Pause, limit: float, options: Options, now: Instant) -> bool:
        if pause.still > max(limit, options.pause_limit):
            return True
        if pause.life is not Liveness.IDLE:
            return pause.still > limit
        # What says itself when it ends (a backoff, a child's sleep) has until then, if a busy pause would have as long.
        # What comes after it is another wait: of the moment between them nothing may have been measured.
        if REPORTED < pause.ends_in <= options.pause_limit - pause.still:
            self._known_until = max(self._known_until, now.mono + pause.ends_in)
        return self._idle(pause, now) > limit

    def _idle(self, pause: Pause, now: Instant) -> float:
        """Seconds without any movement, in waits whose end is not known."""
        return max(0.0, min(pause.still, pause.quiet, now.mono - max(self._moved_at, self._known_until)))

    def _finding(
        self, kind: t.FindingKind, severity: t.Severity, limit: float, option: str, job: Job, now: Instant
    ) -> Finding:
        pause = self.current
        assert pause is not None
        one = pause.ranks[0] if len(pause.ranks) == 1 else -1
        times = int(job.pauses.get(self.place, [0.0, 0.0])[0])
        again = f"; restarted {times} times at this place before, the limit doubled each time" if times else ""
        is_operation = self.place.startswith(("in ", "before ", "outside "))
        where = f"{' ' if is_operation else ' at '}{self.place}" if self.place else ""
        seconds = pause.still if pause.life is not Liveness.IDLE else self._idle(pause, now)
        verb = "is restarted at the limit of" if kind is t.FindingKind.WORKER_HANG else "is left alone until"
        verb = "is finished at the limit of" if self._is_ending else verb
        text = (
            f"no step for {pause.still:.0f} s, {pause.life.value} for {seconds:.0f} s: {pause.text}{where}; "
            f"the job {verb} {limit:.0f} s ({option}){again}"
        )
        return Finding(
            kind=kind,
            severity=severity,
            subject="job" if one < 0 else f"rank{one}",
            text=text,
            since=self.since,
            at=now.wall,
            rank=one,
            node=job.node_of(one) if one >= 0 else "",
            signature=f"pause:{pause.life.value}",
            evidence={
                "life": pause.life.value, "still_s": pause.still, "idle_s": seconds, "limit_s": limit,
                "option": option, "place": self.place, "restarts_here": times, "ranks": list(pause.ranks),
                "reason": pause.verdict.reason.value if pause.verdict is not None else "outside",
                "waits": [str(wait) for wait in pause.verdict.waits] if pause.verdict is not None else [],
                **({"behind": {str(rank): said for rank, said in pause.behind}} if pause.behind else {}),
            },
        )  # fmt: skip


def limit_of(pause: Pause, place: str, job: Job, options: Options, has_stepped: bool) -> tuple[float, str]:
    """Seconds that a pause may last, and the option that says so. Of an idle one: seconds of idleness."""
    if pause.life is Liveness.IDLE and pause.is_in_flight:
        option = "stuck_limit"
    elif pause.life is Liveness.IDLE:
        option = "idle_limit" if has_stepped and pause.is_training else "idle_limit_start"
    else:
        option = "pause_limit"
    base = float(getattr(options, option))
    times, longest = job.pauses.get(place, [0.0, 0.0])
    limit = max(base * 2 ** min(times, _MOST_DOUBLINGS), 2 * longest)
    if pause.life is Liveness.IDLE:
        limit = min(limit, max(base, options.pause_limit))
    return limit, f"--{option.replace('_', '-')}"


def _forget_some(job: Job) -> None:
    while len(job.pauses) > _MOST_PLACES:
        del job.pauses[min(job.pauses, key=lambda place: job.pauses[place][1])]
