"""No step progress: which worker is dead, and which only pauses. No verdict without evidence, no hand-set timeout.

In synchronous training all ranks stop when one does. Three things are looked at, from the surest down. A process that
is stopped, or whose interpreter does not run although nothing of the process moves, is dead. Where all interpreters
run, the wait-for graph (`diagnostics.hang.graph`) names the ranks that hold up the others, and what is seen
of them from outside (`diagnostics.hang.stillness`) says whether they can go on. What is left is a pause: it is
reported, and ended at a limit only (`controller.hang.pauses`).
"""

import dataclasses
import math
from collections.abc import Sequence
from itertools import islice

import numpy as np

from holdfast.controller.detectors.workers.pause import Pause, named
from holdfast.controller.detectors.workers.standstill import Standstill, behind
from holdfast.controller.detectors.workers.step_times import StepTimes
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Options
from holdfast.controller.state.ranks import RankState, RankTable
from holdfast.diagnostics.hang.graph import HangVerdict, Reason
from holdfast.diagnostics.hang.stack_tree import Stack, odd_ranks
from holdfast.diagnostics.hang.stillness import STILL, Liveness, Sight, look
from holdfast.wire import types as t
from holdfast.wire.rank_sets import compact, expand

_TRAIN = t.PHASES.index(t.Phase.TRAIN)
_DONE = t.PHASES.index(t.Phase.DONE)
_TEARDOWN = "destroy_process_group"
_TICK = 0.1  # the probe's liveness period
_STOPPED = 0.5  # of the floor, for a process of which the kernel says that it is stopped
_FIRST_STEP = 0.4  # seconds that a step counts for while too few are known
_STACKS_START = 10.0  # seconds until stacks are looked at, while too few steps are known
_PAUSE_START = 2.0  # seconds until a standstill is a pause, while too few steps are known
_LOOK_S = 1e-4  # seconds between two looks at all ranks, for each of them
_DESCRIBED = 4  # suspects that a sentence describes one by one


class HangDetector:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.pause: Pause | None = None
        """What the last `observe` saw of a job that stands still."""
        self._standstill = Standstill()
        self._times = StepTimes([])
        self._last: Pause | None = None
        self._last_at = -math.inf

    def observe(
        self, ranks: RankTable, generation: int, steps: list[float], now: Instant, stacks: Sequence[Stack] = ()
    ) -> list[Finding]:
        """Findings of dead workers; sets `pause`.

        `steps`: durations of the job's recent steps, seconds, from this and earlier generations. `stacks`: the
        workers' while no rank moves, as far as they are known.
        """
        self.pause = None
        if now.mono - self._last_at > 5.0:
            self._last = None
        alive = ranks.is_in(RankState.RUNNING) & (ranks.generation == generation)
        if not alive.any():
            return []
        # Judge by what was reported when it was: silence since then is the node's, and another detector's.
        fresh = alive & (now.mono - ranks.seen_at < 1.0 + 2 * ranks.period)
        times = self._of(steps)
        found = self._lifeless(ranks, fresh, times, now)
        if found or not fresh[alive].all():
            return found
        return self._frozen(ranks, alive, times, now, stacks)

    def pending_since(self, ranks: RankTable, generation: int, steps: list[float], now: Instant) -> float | None:
        """Since when no rank moves (monotonic), once that is longer than usual: time to look at their stacks."""
        running = ranks.is_in(RankState.RUNNING) & (ranks.generation == generation)
        fresh = now.mono - ranks.seen_at < 1.0 + 2 * ranks.period
        if not running.any() or not fresh[running].all():
            return None
        still = _stillness(ranks)[running]
        times = self._of(steps)
        if math.isnan(times.median):
            limit = min(_STACKS_START, self.options.hang_limit_start, self.options.stuck_limit)
        else:
            limit = max(0.8 * times.median + 0.3, 1.2 * times.longest)
        if not float(still.min()) > limit:  # nor for one that never reported
            return None
        return float((ranks.seen_at[running] - still).max())

    def _of(self, steps: list[float]) -> StepTimes:
        """At most ticks no step has ended since the one before."""
        if steps != self._times.steps:
            self._times = StepTimes([*steps])
        return self._times

    # --- workers that are dead by themselves -------------------------------------------------------------------

    def _lifeless(self, ranks: RankTable, fresh: np.ndarray, times: StepTimes, now: Instant) -> list[Finding]:
        o, median = self.options, times.median
        idle = ranks.seen_at - ranks.progress_at
        least = o.hang_limit_start
        if not math.isnan(median):
            least = min(least, o.hang_steps * median + _STOPPED * o.hang_floor)
        if not (fresh & (idle > least)).any():
            return []  # as at almost every tick: no rank is beyond the least of the limits below
        training = fresh & (ranks.phase == _TRAIN)
        silent_for = ranks.seen_at - ranks.tick_at
        # Imports and compilers hold the lock for long.
        limit, limit_stopped = np.full(ranks.world, o.hang_limit_start), np.full(ranks.world, o.hang_limit_start)
        if not math.isnan(median):
            limit[training] = o.hang_steps * median + o.hang_floor
            limit_stopped[training] = o.hang_steps * median + _STOPPED * o.hang_floor
        # What the node's own agent could not do in time, its workers could not either: a starved host, no fault.
        limit += ranks.lag
        limit_stopped += ranks.lag
        slack = np.zeros(ranks.world)
        if not math.isnan(median):
            # As long as recent steps were as long, a call that holds the GIL is not suspicious.
            usual = (1 + o.hang_steps / 10) * times.slow
            slack[training] = max(0.0, usual - o.hang_steps * median)
        stopped = fresh & ranks.stopped & (idle > limit_stopped)
        limit = np.where(stopped, limit_stopped, limit)
        silent = fresh & ~stopped & (idle > limit + slack)
        silent &= silent_for > np.where(training, max(o.hang_floor, 4 * _TICK), o.hang_limit_start) + ranks.lag
        silent &= ranks.phase != _DONE  # what is torn down holds the lock while it waits for its peers
        silent &= ranks.quiet >= STILL  # also False where nothing was measured: silence alone is no evidence
        if silent.sum() > 1:
            silent &= silent_for > 3 * limit  # a GIL is held by one at a time; several at once are starved
        dead = [
            (int(r), sight)
            for r in np.flatnonzero(stopped | silent)
            if (stopped[r] or ranks.operation[r] != _TEARDOWN)
            and (sight := self._look(ranks, int(r), silent=bool(silent[r]))).life is Liveness.DEAD
        ]
        if len(dead) == int(fresh.sum()) > 1 and not stopped.any():
            return []  # all at once is a starved host, not one bad worker
        return [
            self._dead(ranks, rank, bool(stopped[rank]), float(idle[rank]), float(limit[rank]), sight, now)
            for rank, sight in dead
        ]

    def _look(self, ranks: RankTable, rank: int, silent: bool = False) -> Sight:
        return look(
            ranks.activity[rank], stopped=bool(ranks.stopped[rank]), silent=silent, longest=self.options.idle_limit
        )

    def _dead(
        self, ranks: RankTable, rank: int, stopped: bool, idle: float, limit: float, sight: Sight, now: Instant
    ) -> Finding:
        silent_for = float(ranks.seen_at[rank] - ranks.tick_at[rank])
        return Finding(
            kind=t.FindingKind.WORKER_STOPPED if stopped else t.FindingKind.WORKER_HANG,
            severity=t.Severity.CRITICAL,
            subject=f"rank{rank}",
            text=f"rank {rank} made no progress for {idle:.2f} s (limit {limit:.2f} s): it {sight.text}",
            since=now.wall - min(silent_for, idle),
            at=now.wall,
            rank=rank,
            signature="hang",
            evidence={
                "life": Liveness.DEAD.value, "reason": "stopped" if stopped else "lock",
                "step": int(ranks.step[rank]), "phase": t.PHASES[ranks.phase[rank]].value,
                "operation": ranks.operation[rank], "idle_s": idle, "limit_s": limit, "quiet_s": silent_for,
            } | _measured(ranks.activity[rank]),
        )  # fmt: skip

    # --- a job that stands still -------------------------------------------------------------------------------

    def _frozen(
        self,
        ranks: RankTable,
        running: np.ndarray,
        times: StepTimes,
        now: Instant,
        stacks: Sequence[Stack],
    ) -> list[Finding]:
        """No rank has entered or left an operation for long: the ranks that all others wait for."""
        still = _stillness(ranks)
        worst = float(still[running].min())
        lag = float(ranks.lag[running].max())
        may_be_hang = worst > self._limit(times) + lag
        may_be_pause = worst > _unusual(times) + lag
        if not may_be_hang and not may_be_pause:
            return []
        silent = ranks.seen_at - ranks.tick_at >= self.options.hang_floor + ranks.lag
        is_alive = ~ranks.stopped & ~(silent & (ranks.quiet >= STILL))
        verdict = self._standstill.judge(ranks, is_alive, float((ranks.seen_at - still)[running].max()))
        if verdict is not None and verdict.reason is Reason.TRANSFER:
            verdict = _by_stacks(verdict, stacks)
        if may_be_hang and verdict is not None and running.sum() > 1:
            certain = self._certain(verdict, ranks, running, worst)
            if certain is not None:
                return self._culprits(certain, worst, ranks, now)
        if not may_be_pause:
            return []
        # In a large world it takes a tick's time to look at every rank: not at every tick.
        last = self._last
        if last is not None and last.verdict is verdict and now.mono - self._last_at < ranks.world * _LOOK_S:
            self.pause = dataclasses.replace(last, still=worst)
            return []
        self.pause = self._last = self._paused(verdict, ranks, running, worst)
        self._last_at = now.mono
        return []

    def _limit(self, times: StepTimes) -> float:
        """Seconds without a move of any rank, from which on ranks that cannot go on are dead.

        With the end of a step before it and the heartbeat after it, within three median steps and two seconds.
        """
        o, median = self.options, times.median
        limit = o.hang_steps * (_FIRST_STEP if math.isnan(median) else median) + (o.hang_floor + STILL)
        return limit if math.isnan(median) else max(limit, (1 + o.hang_steps / 4) * times.longest)

    def _certain(self, verdict: HangVerdict, ranks: RankTable, running: np.ndarray, worst: float) -> HangVerdict | None:
        """The verdict with those named that cannot go on; None where they may, or where nothing was measured."""
        if verdict.is_guess:
            return None
        involved = sorted({*verdict.suspects, *(rank for wait in verdict.waits for rank in wait.ranks)})
        quiet = ranks.quiet >= STILL
        match verdict.reason:
            case Reason.STOPPED:
                # A rank that stands still with a process of its own is another rule's; an exit is a fact.
                is_gone = bool(ranks.is_in(RankState.DONE)[list(verdict.suspects)].all())
                waiting = [rank for rank in involved if rank not in verdict.suspects]
                return verdict if is_gone and quiet[waiting].all() else None
            case Reason.ORDER:
                return verdict if quiet[involved].all() else None
            case Reason.ENTERING | Reason.OUTSIDE:
                if len(verdict.suspects) > max(1, ranks.world // 4):
                    return None
                return verdict if all(self._is_stuck(verdict, ranks, rank) for rank in verdict.suspects) else None
            case Reason.WITHIN:
                if all(self._is_stuck(verdict, ranks, rank) for rank in verdict.suspects):
                    return verdict
                return _other_side(verdict, ranks, running) if quiet[running].all() else None
            case Reason.STACK | Reason.TRANSFER:
                limit = self.options.stuck_limit  # links that flap take some seconds to be back
                return verdict if worst > limit and bool((ranks.quiet[running] >= limit).all()) else None
        return None

    def _is_stuck(self, verdict: HangVerdict, ranks: RankTable, rank: int) -> bool:
        """Whether an idle worker is where nothing sleeps: where it says itself what it does, or at the door of an
        operation that its group has done before (communicators are made in the first one)."""
        sight, activity = self._look(ranks, rank), ranks.activity[rank]
        if sight.life is not Liveness.IDLE or activity is None or activity.state == "D" or activity.waits_for_gpu:
            return False
        if verdict.reason is Reason.ENTERING:
            standing = ranks.pending[rank]
            return standing is None or standing.number != 0
        reports = int(ranks.coordinate[rank, 0]) >= 0
        return reports and ranks.phase[rank] == _TRAIN

    def _paused(self, verdict: HangVerdict | None, ranks: RankTable, running: np.ndarray, worst: float) -> Pause:
        everyone = [int(r) for r in np.flatnonzero(running)]
        suspects = everyone
        if verdict is not None and verdict.suspects:
            suspects = [rank for rank in verdict.suspects if running[rank]] or everyone
        sights = {rank: self._look(ranks, rank) for rank in suspects}
        life = next(
            (x for x in (Liveness.BUSY, Liveness.UNKNOWN, Liveness.IDLE) if any(s.life is x for s in sights.values())),
            Liveness.IDLE,
        )
        shown = [rank for rank in suspects if sights[rank].life is life] or suspects
        # Where it is a guess that the others wait for them, what any of the others does still counts.
        quiet = ranks.quiet[everyone if verdict is not None and verdict.is_guess else suspects]
        ends = [s.ends_in for s in sights.values() if not math.isnan(s.ends_in)]
        return Pause(
            life=life,
            ranks=tuple(shown),
            waiting=tuple(sorted(set(everyone) - set(suspects))),
            still=worst,
            quiet=math.nan if life is Liveness.UNKNOWN or np.isnan(quiet).all() else float(np.nanmin(quiet)),
            ends_in=max(ends, default=math.nan),
            sights=tuple(sights[rank] for rank in shown[:_DESCRIBED]),
            is_training=bool((ranks.phase[running] == _TRAIN).all()),
            verdict=verdict,
            behind=tuple(islice(behind(ranks, running), _DESCRIBED)),
        )

    def _culprits(self, verdict: HangVerdict, idle: float, ranks: RankTable, now: Instant) -> list[Finding]:
        is_jobs = not verdict.suspects or (verdict.reason is Reason.ORDER and len(verdict.suspects) > 1)
        return [
            Finding(
                kind=t.FindingKind.WORKER_HANG,
                severity=t.Severity.CRITICAL,
                subject="job" if rank < 0 else f"rank{rank}",
                text=f"no rank has made progress for {idle:.2f} s: {verdict.text}{self._seen(ranks, rank)}",
                since=now.wall - idle,
                at=now.wall,
                rank=rank,
                signature=f"hang:{verdict.reason}" if is_jobs else "hang",
                evidence={
                    **_evidence(verdict),
                    "life": Liveness.DEAD.value,
                    "idle_s": idle,
                    **({"step": int(ranks.step[rank])} | _measured(ranks.activity[rank]) if rank >= 0 else {}),
                },
            )
            for rank in ([-1] if is_jobs else verdict.suspects)
        ]

    def _seen(self, ranks: RankTable, rank: int) -> str:
        if rank < 0 or ranks.activity[rank] is None or not ranks.is_in(RankState.RUNNING)[rank]:
            return ""
        return f"; it {self._look(ranks, rank).text}"


def _other_side(verdict: HangVerdict, ranks: RankTable, running: np.ndarray) -> HangVerdict | None:
    """Some wait inside of DDP's backward pass, others in another operation: none can end. Those in the pass that have
    skipped the operation are named, where others in the pass have done it; else the fewer.

    Only where the pass itself waits for its peers, without a deadline; a forward pass may wait for anything.
    """
    everyone = {int(r) for r in np.flatnonzero(running)}
    inside = {rank for rank in everyone if ranks.operation[rank] == "ddp:backward"}
    calls = [ranks.activity[rank] for rank in inside]
    if not inside.issuperset(verdict.suspects) or not all(
        call is not None and math.isnan(call.ends_in) and call.state != "D" for call in calls
    ):
        return None
    others = everyone - inside
    if not others or not all(_is_together(ranks, rank) for rank in others):
        return None
    names = ", ".join(sorted({ranks.operation[rank] for rank in others}))
    behind = set(verdict.suspects)
    if behind != inside and all(inside <= _members(ranks, rank) for rank in others):
        text = (
            f"{named(verdict.suspects)} went on to ddp:backward without the {names} that "
            f"{named(sorted(inside - behind))} did and that holds {named(sorted(others))}"
        )
        return dataclasses.replace(verdict, reason=Reason.ORDER, text=text)
    text = f"ranks {compact(inside)} wait in ddp:backward for all ranks, but ranks {compact(others)} wait in {names}"
    odd = min(inside, others, key=len) if len(inside) != len(others) else inside | others
    return dataclasses.replace(verdict, reason=Reason.ORDER, suspects=tuple(sorted(odd)), text=text)


def _members(ranks: RankTable, rank: int) -> set[int]:
    """The ranks that take part in its operation; empty where that is not known."""
    standing = ranks.pending[rank]
    if standing is None or standing.group < 0:
        return set()
    try:
        return set(expand(standing.groups[standing.group].members))
    except ValueError:
        return set()


def _is_together(ranks: RankTable, rank: int) -> bool:
    """Whether its operation is one that needs its peers; "ddp:forward", or a name of the script's own, is not."""
    standing = ranks.pending[rank]
    return bool(standing is not None and standing.kind) or ranks.operation[rank] == "new_group"


def _by_stacks(verdict: HangVerdict, stacks: Sequence[Stack]) -> HangVerdict:
    """All are in the same operation: the one whose stack is another than its peers' may be stuck in a part of it."""
    inside = verdict.waits[0]
    odd = odd_ranks(stacks, inside.ranks)
    if not odd:
        return verdict
    text = f"{named(odd)} is at another place in {inside.operation} than its peers (see the stacks)"
    return HangVerdict(Reason.STACK, odd, text, verdict.waits)


def _evidence(verdict: HangVerdict | None) -> dict[str, object]:
    if verdict is None:
        return {}
    return {
        "reason": verdict.reason.value,
        "suspects": list(verdict.suspects),
        "waits": [str(wait) for wait in verdict.waits],
    }


def _measured(activity: t.Activity | None) -> dict[str, object]:
    """What was seen from outside, for the finding."""
    if activity is None:
        return {}
    return {
        "state": activity.state, "cores": activity.cpu, "children_cores": activity.children_cpu,
        "read_bps": activity.read, "written_bps": activity.written, "network_bps": activity.network,
        "waits_for": activity.waits_for, "unmoved_s": activity.quiet,
        **({"gpu": activity.gpu.value, "events_pending": activity.events_pending, "behind": activity.behind}
           if activity.has_gpu else {}),
    }  # fmt: skip


def _stillness(ranks: RankTable) -> np.ndarray:
    """Seconds since each rank entered or left an operation, or finished a step."""
    still: np.ndarray = ranks.seen_at - np.fmax(ranks.progress_at, ranks.still_at)
    return still


def _unusual(times: StepTimes) -> float:
    """Seconds without a move of any rank, from which on it is reported as a pause, whatever the options are."""
    return _PAUSE_START if math.isnan(times.median) else max(2 * times.median + 1.2, 1.5 * times.longest)
