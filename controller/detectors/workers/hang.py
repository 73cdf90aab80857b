"""No step progress: which worker is dead, and which only pauses. No verdict without a proof.

In synchronous training all ranks stop when one does. A rank is dead if no interleaving of what is known of all
threads lets its main thread go on: `diagnostics.hang.closure` proves that, and the finding carries the chain. Alone a
process that is stopped while its peers wait for it is ended without one. All else is a pause: the wait-for graph
(`diagnostics.hang.graph`) names the ranks that hold up the others, and `controller.hang.pauses` has the limits.
"""

import dataclasses
import math
from collections.abc import Sequence
from itertools import islice

import numpy as np

from holdfast.controller.detectors.workers.facts import facts_of
from holdfast.controller.detectors.workers.pause import Pause
from holdfast.controller.detectors.workers.standstill import Standstill, behind, by_stacks
from holdfast.controller.detectors.workers.step_times import StepTimes
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, Options
from holdfast.controller.state.ranks import RankState, RankTable
from holdfast.diagnostics.hang.closure import judge
from holdfast.diagnostics.hang.graph import HangVerdict, Reason
from holdfast.diagnostics.hang.proof import Cause, Proof
from holdfast.diagnostics.hang.stack_tree import Stack
from holdfast.diagnostics.hang.stillness import STILL, Liveness, Sight, look
from holdfast.wire import types as t
from holdfast.wire.standing import ThreadState

_TRAIN = t.PHASES.index(t.Phase.TRAIN)
_DONE = t.PHASES.index(t.Phase.DONE)
_TICK = 0.1  # the probe's liveness period
_STOPPED = 0.5  # of the floor, for a process of which the kernel says that it is stopped
_FIRST_STEP = 0.4  # seconds that a step counts for while too few are known
_STACKS_START = 10.0  # seconds until stacks are looked at, while too few steps are known
_PAUSE_START = 2.0  # seconds until a standstill is a pause, while too few steps are known
_LOOK_S = 1e-4  # seconds between two looks at all ranks, for each of them
_PROVED_S = 2.0  # seconds from the limit in which a thread is known for two windows, also on a busy host
_LARGE = 512  # ranks from which on not every tick judges them
_DESCRIBED = 4  # suspects that a sentence describes one by one
_LIVENESS_ORDER = (Liveness.BUSY, Liveness.UNKNOWN, Liveness.HELD, Liveness.IDLE)
"""The first of these that any suspect is in stands for all."""


class HangDetector:
    def __init__(self, options: Options) -> None:
        self.options = options
        self.pause: Pause | None = None
        """What the last `observe` saw of a job that stands still."""
        self._standstill = Standstill()
        self._times = StepTimes([])
        self._last: Pause | None = None
        self._last_at = -math.inf
        self._judged_at = -math.inf
        self._running = b""  # which ranks ran at the last look
        self._ended_at = -math.inf  # mono, when one of them was seen to run no more

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
        if alive.tobytes() != self._running:
            self._ended_at = now.mono if self._running else -math.inf
            self._running = alive.tobytes()
        if not alive.any():
            return []
        # Judge by what was reported when it was: silence since then is the node's, and another detector's.
        fresh = alive & (now.mono - ranks.seen_at < 1.0 + 2 * ranks.period)
        times = self._of(steps)
        if not fresh.any():
            return []
        still, lag = _stillness(ranks), float(ranks.lag[fresh].max())
        found = self._stopped(ranks, fresh, times, now)
        # A rank that can never go on is ended although others still compute: they would wait for it later.
        if not found and float(np.nanmax(still[fresh], initial=0.0)) > self._limit(times) + lag:
            found = self._dead(ranks, fresh, still, times, now, is_only=alive.sum() == 1)
        if found or not fresh[alive].all():
            return found
        self._look_at_pause(ranks, alive, still, times, now, stacks)
        return []

    def pending_since(self, ranks: RankTable, generation: int, steps: list[float], now: Instant) -> float | None:
        """Since when no rank moves (monotonic), once that is longer than usual: time to look at their stacks."""
        running = ranks.is_in(RankState.RUNNING) & (ranks.generation == generation)
        fresh = now.mono - ranks.seen_at < 1.0 + 2 * ranks.period
        if not running.any() or not fresh[running].all():
            return None
        still = _stillness(ranks)[running]
        times = self._of(steps)
        if math.isnan(times.median):
            limit = min(_STACKS_START, self.options.hang_limit_start)
        else:
            limit = max(0.8 * times.median + 0.3, 1.2 * times.longest)
        if not float(still.min()) > limit:  # nor for one that never reported
            return None
        return float((ranks.seen_at[running] - still).max())

    def proves_within(self, steps: list[float]) -> float:
        """Seconds of a standstill in which a proof is usually there, if there is one."""
        return self._limit(self._of(steps)) + _PROVED_S

    def _of(self, steps: list[float]) -> StepTimes:
        """At most ticks no step has ended since the one before."""
        if steps != self._times.steps:
            self._times = StepTimes([*steps])
        return self._times

    # --- a worker that somebody stopped ------------------------------------------------------------------------

    def _stopped(self, ranks: RankTable, fresh: np.ndarray, times: StepTimes, now: Instant) -> list[Finding]:
        """One process that is stopped alone, without a tracer or a freezer, while its peers wait for it: the one that
        stopped it may be gone. Several at once were stopped by what also lets them go on (a batch system)."""
        stopped = fresh & ranks.stopped
        if stopped.sum() != 1:
            return []
        rank = int(np.flatnonzero(stopped)[0])
        idle = float(ranks.seen_at[rank] - ranks.progress_at[rank])
        limit = self.options.hang_limit_start
        if not math.isnan(times.median) and ranks.phase[rank] == _TRAIN:
            limit = self.options.hang_steps * times.median + _STOPPED * self.options.hang_floor
        limit += float(ranks.lag[rank])
        peers = ranks.is_in(RankState.RUNNING)
        peers[rank] = False
        usual = 0.0 if math.isnan(times.median) else times.median
        do_wait = bool((_stillness(ranks)[peers] > min(idle, usual)).all()) if peers.any() else False
        do_wait = do_wait and all(_may_wait(ranks, int(peer)) for peer in np.flatnonzero(peers))
        sight = self._look(ranks, rank)
        if not idle > limit or not do_wait or self._may_be_held(ranks, rank) or sight.life is not Liveness.HELD:
            return []
        text = f"rank {rank} made no progress for {idle:.2f} s (limit {limit:.2f} s): it {sight.text}"
        found = Finding(
            kind=t.FindingKind.WORKER_STOPPED,
            severity=t.Severity.CRITICAL,
            subject=f"rank{rank}",
            text=text,
            since=now.wall - idle,
            at=now.wall,
            rank=rank,
            signature="hang",
            evidence={
                "life": Liveness.DEAD.value, "reason": "stopped", "step": int(ranks.step[rank]),
                "phase": t.PHASES[ranks.phase[rank]].value, "operation": ranks.operation[rank], "idle_s": idle,
                "limit_s": limit,
            } | _measured(ranks.activity[rank]),
        )  # fmt: skip
        return [found]

    def _may_be_held(self, ranks: RankTable, rank: int) -> bool:
        """Whether somebody may let it go on: who holds it is known once its threads were looked at."""
        standing, activity = ranks.standing[rank], ranks.activity[rank]
        if standing is None or not standing.threads or standing.holder:
            return True
        return activity is not None and activity.state == "t"

    def _look(self, ranks: RankTable, rank: int, silent: bool = False) -> Sight:
        standing = ranks.standing[rank]
        holder = standing.holder if standing is not None else ""
        return look(ranks.activity[rank], stopped=bool(ranks.stopped[rank]), silent=silent, holder=holder)

    # --- a job that stands still -------------------------------------------------------------------------------

    def _look_at_pause(
        self,
        ranks: RankTable,
        running: np.ndarray,
        still: np.ndarray,
        times: StepTimes,
        now: Instant,
        stacks: Sequence[Stack],
    ) -> None:
        lag = float(ranks.lag[running].max())
        worst = float(still[running].min())
        if not worst > _unusual(times) + lag or ranks.left[running].any():
            return  # of a program that replaced itself no steps are seen: none are missed
        silent = self._silent(ranks)
        is_alive = ~ranks.stopped & ~(silent & (ranks.quiet >= STILL))
        verdict = self._standstill.judge(ranks, is_alive, float((ranks.seen_at - still)[running].max()))
        if verdict is not None and verdict.reason is Reason.TRANSFER:
            verdict = by_stacks(verdict, stacks)
        # In a large world it takes a tick's time to look at every rank: not at every tick.
        last = self._last
        if last is not None and last.verdict is verdict and now.mono - self._last_at < ranks.world * _LOOK_S:
            self.pause = dataclasses.replace(last, still=worst)
            return
        self.pause = self._last = self._paused(verdict, ranks, running, silent, worst)
        self._last_at = now.mono

    def _dead(
        self, ranks: RankTable, fresh: np.ndarray, still: np.ndarray, times: StepTimes, now: Instant, is_only: bool
    ) -> list[Finding]:
        """`fresh`: ranks that report. The others may do anything. `is_only`: the job has one rank."""
        if ranks.world > _LARGE and now.mono - self._judged_at < ranks.world * _LOOK_S:
            return []
        self._judged_at = now.mono
        silent = self._silent(ranks)
        if silent[fresh].all() and not is_only:
            silent[:] = False  # all at once is a starved host: no lock is held for certain
        # The end of a rank lets others go on, with an error: what was seen of them before shows nothing any more.
        facts = facts_of(ranks, fresh, silent, now.mono - self._ended_at)
        proof = judge(facts, longest_s=self.options.pause_limit)
        if proof is None:
            return []
        idle = max((float(still[rank]) for rank in (*proof.reasons, *proof.dead) if fresh[rank]), default=0.0)
        if not idle > self._limit(times):
            return []
        return [self._finding(proof, rank, idle, ranks, now) for rank in (proof.reasons or (-1,))]

    def _limit(self, times: StepTimes) -> float:
        """Seconds without a move of a rank, from which on it is dead if that is proved.

        With the end of a step before it and the heartbeat after it, within three median steps and two seconds.
        """
        o, median = self.options, times.median
        return o.hang_steps * (_FIRST_STEP if math.isnan(median) else median) + o.hang_floor

    def _silent(self, ranks: RankTable) -> np.ndarray:
        """Ranks whose interpreter has not run for long although nothing else of the host was late. What is torn down
        holds the lock while it waits for its peers."""
        limit = max(self.options.hang_floor, 4 * _TICK) + ranks.lag
        silent: np.ndarray = (ranks.seen_at - ranks.tick_at > limit) & ~ranks.left & (ranks.phase != _DONE)
        return silent

    def _finding(self, proof: Proof, rank: int, idle: float, ranks: RankTable, now: Instant) -> Finding:
        is_jobs = rank < 0 or (proof.cause in (Cause.ORDER, Cause.MISMATCH) and len(proof.reasons) > 1)
        seen = "" if rank < 0 or not ranks.is_in(RankState.RUNNING)[rank] else f"; it {self._look(ranks, rank).text}"
        return Finding(
            kind=t.FindingKind.WORKER_HANG,
            severity=t.Severity.CRITICAL,
            subject="job" if is_jobs else f"rank{rank}",
            text=f"no progress for {idle:.2f} s, and none to come: {proof.text}{seen}",
            since=now.wall - idle,
            at=now.wall,
            rank=-1 if is_jobs else rank,
            signature=f"hang:{proof.cause}" if is_jobs else "hang",
            evidence={
                "life": Liveness.DEAD.value, "reason": proof.cause.value,
                "suspects": list(proof.reasons or proof.dead[:64]), "dead": list(proof.dead[:64]),
                "proof": list(proof.lines), "idle_s": idle,
                **({"step": int(ranks.step[rank])} | _measured(ranks.activity[rank]) if rank >= 0 else {}),
            },
        )  # fmt: skip

    def _paused(
        self, verdict: HangVerdict | None, ranks: RankTable, running: np.ndarray, silent: np.ndarray, worst: float
    ) -> Pause:
        everyone = [int(r) for r in np.flatnonzero(running)]
        suspects = everyone
        if verdict is not None and verdict.suspects:
            suspects = [rank for rank in verdict.suspects if running[rank]] or everyone
        sights = {rank: self._look(ranks, rank, bool(silent[rank])) for rank in suspects}
        life = next((x for x in _LIVENESS_ORDER if any(s.life is x for s in sights.values())), Liveness.IDLE)
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


def _may_wait(ranks: RankTable, rank: int) -> bool:
    """Whether a rank that stands may wait for another. Of one whose process groups are known it is known whether its
    main thread is in an operation, or waits for a thread that is; on a GPU the host is in none."""
    activity, pending, standing = ranks.activity[rank], ranks.pending[rank], ranks.standing[rank]
    if (activity is not None and activity.has_gpu) or pending is None or not pending.groups:
        return True
    if standing is None:
        return False
    main = standing.main
    if main is None or main.state in (ThreadState.OWN, ThreadState.UNKNOWN):
        return bool(standing.operations)
    return any(one.thread in (0, main.tid) for one in standing.operations)


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
