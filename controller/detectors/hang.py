"""No step progress: who is late against its peers and against its own recent steps, with no hand-set timeout.

In synchronous training everybody stops when one does. The one at fault shows no life: its process is stopped, or
its interpreter's liveness thread is (stopped, or the GIL is held for ever; from outside the two look the same). Its
peers wait inside a communication operation with the GIL released, so their threads tick on. Where all tick, the graph
of who waits for whom tells (`diagnostics.hang_graph`); and without any sign at all the job is named, much later.
"""

import math
from collections.abc import Sequence

import numpy as np

from holdfast import types as t
from holdfast.controller.detectors.standstill import Standstill
from holdfast.controller.model import Finding, Instant, Options, RankState, RankTable
from holdfast.diagnostics.hang_graph import Reason, Verdict
from holdfast.diagnostics.stack_tree import Stack, odd_ranks
from holdfast.rank_sets import compact

_TRAIN = t.PHASES.index(t.Phase.TRAIN)
_QUIET_LIMIT = 10.0  # seconds without life outside training: imports and compilers hold the GIL for long
_TICK = 0.1  # the probe's liveness period
_STOPPED = 0.5  # of the floor, for a process of which the kernel says that it is stopped
_PROVEN = (Reason.ENTERING, Reason.ORDER, Reason.STOPPED)  # verdicts that no honest computation looks like


class HangDetector:
    def __init__(self, options: Options) -> None:
        self.options = options
        self._standstill = Standstill()

    def observe(
        self, ranks: RankTable, generation: int, steps: list[float], now: Instant, stacks: Sequence[Stack] = ()
    ) -> list[Finding]:
        """`steps`: durations of the job's recent steps, seconds, from this and earlier generations.

        `stacks`: the workers' while nobody moves, as far as they are known.
        """
        alive = ranks.is_in(RankState.RUNNING) & (ranks.generation == generation)
        if not alive.any():
            return []
        # Judge by what was reported when it was: silence since then is the node's, and another detector's.
        fresh = alive & (now.mono - ranks.seen_at < 1.0 + 2 * ranks.period)
        training = fresh & (ranks.phase == _TRAIN)
        idle = ranks.seen_at - ranks.progress_at
        quiet = ranks.seen_at - ranks.tick_at
        median = float(np.median(steps)) if len(steps) >= 3 else math.nan
        found = self._lifeless(ranks, fresh, training, idle, quiet, median, steps, now)
        if found or math.isnan(median):
            return found
        return self._frozen(ranks, alive, training, quiet, median, steps, now, stacks)

    def standing_since(self, ranks: RankTable, generation: int, steps: list[float], now: Instant) -> float | None:
        """Since when nobody moves (monotonic), once that is longer than usual: time to look at their stacks."""
        running = ranks.is_in(RankState.RUNNING) & (ranks.generation == generation)
        fresh = now.mono - ranks.seen_at < 1.0 + 2 * ranks.period
        if not running.any() or not (fresh & (ranks.phase == _TRAIN))[running].all() or len(steps) < 3:
            return None
        still = _stillness(ranks)[running]
        limit = max(0.8 * float(np.median(steps)) + 0.3, 1.2 * max(steps[-50:]))
        if not float(still.min()) > limit:  # nor for one that never told
            return None
        return float((ranks.seen_at[running] - still).max())

    def _lifeless(
        self,
        ranks: RankTable,
        fresh: np.ndarray,
        training: np.ndarray,
        idle: np.ndarray,
        quiet: np.ndarray,
        median: float,
        steps: list[float],
        now: Instant,
    ) -> list[Finding]:
        o = self.options
        limit, limit_stopped = np.full(ranks.world, _QUIET_LIMIT), np.full(ranks.world, _QUIET_LIMIT)
        if not math.isnan(median):
            limit[training] = o.hang_steps * median + o.hang_floor
            limit_stopped[training] = o.hang_steps * median + _STOPPED * o.hang_floor
        # What the node's own agent could not do in time, its workers could not either: a starved host, no fault.
        limit += ranks.lag
        limit_stopped += ranks.lag
        slack = np.zeros(ranks.world)
        if not math.isnan(median):
            # A held GIL can be an honest long call; as long as recent steps were, it is not suspicious.
            slack[training] = max(0.0, 1.2 * float(np.quantile(steps, 0.9)) - o.hang_steps * median)
        stopped = fresh & ranks.stopped & (idle > limit_stopped)
        limit = np.where(stopped, limit_stopped, limit)
        silent = fresh & ~stopped & (idle > limit + slack)
        silent &= quiet > np.where(training, max(o.hang_floor, 4 * _TICK), _QUIET_LIMIT) + ranks.lag
        if silent.sum() > 1:
            silent &= quiet > 3 * limit  # a GIL is held by one at a time; several at once are starved, until proven
        lifeless = stopped | silent
        if not lifeless.any():
            return []
        if (fresh & ~lifeless).sum() == 0 and fresh.sum() > 1 and not stopped.any():
            return []  # everybody quiet at once is a starved host, not one bad worker
        return [
            self._finding(ranks, int(r), bool(stopped[r]), float(idle[r]), float(limit[r]), float(quiet[r]), now)
            for r in np.flatnonzero(lifeless)
        ]

    def _finding(
        self, ranks: RankTable, rank: int, stopped: bool, idle: float, limit: float, quiet: float, now: Instant
    ) -> Finding:
        why = "its process is stopped" if stopped else f"its interpreter has not run for {quiet:.2f} s"
        return Finding(
            kind=t.FindingKind.WORKER_STOPPED if stopped else t.FindingKind.WORKER_HANG,
            severity=t.Severity.CRITICAL,
            subject=f"rank{rank}",
            text=f"rank {rank} made no progress for {idle:.2f} s (limit {limit:.2f} s) and {why}",
            since=now.wall - min(quiet, idle),
            at=now.wall,
            rank=rank,
            signature="hang",
            evidence={
                "step": int(ranks.step[rank]), "phase": t.PHASES[ranks.phase[rank]].value,
                "operation": ranks.operation[rank], "idle_s": idle, "limit_s": limit, "quiet_s": quiet,
            },
        )  # fmt: skip

    def _frozen(
        self,
        ranks: RankTable,
        running: np.ndarray,
        training: np.ndarray,
        quiet: np.ndarray,
        median: float,
        steps: list[float],
        now: Instant,
        stacks: Sequence[Stack],
    ) -> list[Finding]:
        """Nobody has entered or left an operation for long: the one whom all wait for."""
        still = _stillness(ranks)
        if not training.any() or (running & ~training).any():
            return []
        worst = float(still[running].min())
        longest = max(steps[-50:])
        if not worst > _quick(median, longest) + float(ranks.lag[running].max()):
            return []
        is_alive = ~ranks.stopped & (quiet < self.options.hang_floor + ranks.lag)
        verdict = self._standstill.judge(ranks, is_alive, float((ranks.seen_at - still)[running].max()))
        if verdict is not None and verdict.reason is Reason.TRANSFER:
            verdict = _by_stacks(verdict, stacks)
        # A script that only hooks watch may well save or evaluate outside of operations, and does not tell.
        is_told = bool((ranks.coordinate[running, 0] >= 0).all())
        is_sure = is_told or (verdict is not None and verdict.reason in _PROVEN)
        if verdict is not None and self._names(verdict, ranks) and running.sum() > 1:
            if is_sure or worst > max(5 * median, 2 * longest) + 2.0:
                return self._named(verdict, worst, ranks, now)
            return []
        if worst <= max(10 * median, 3 * longest) + 30.0:
            return []
        return [self._nobody(verdict, worst, median, ranks, now)]

    def _names(self, verdict: Verdict, ranks: RankTable) -> bool:
        """Whether it says more than the other rules, which know better who does not run."""
        if verdict.reason is Reason.STOPPED:
            return bool(ranks.is_in(RankState.DONE)[list(verdict.suspects)].all())
        return 0 < len(verdict.suspects) <= max(1, ranks.world // 4) or verdict.reason is Reason.ORDER

    def _named(self, verdict: Verdict, idle: float, ranks: RankTable, now: Instant) -> list[Finding]:
        together = verdict.reason is Reason.ORDER and len(verdict.suspects) > 1
        return [
            Finding(
                kind=t.FindingKind.WORKER_HANG,
                severity=t.Severity.CRITICAL,
                subject="job" if rank < 0 else f"rank{rank}",
                text=f"nobody has moved for {idle:.2f} s: {verdict.text}",
                since=now.wall - idle,
                at=now.wall,
                rank=rank,
                signature=f"hang:{verdict.reason}" if together else "hang",
                evidence={
                    **_evidence(verdict),
                    "idle_s": idle,
                    **({"step": int(ranks.step[rank])} if rank >= 0 else {}),
                },
            )
            for rank in ([-1] if together else verdict.suspects)
        ]

    def _nobody(self, verdict: Verdict | None, idle: float, median: float, ranks: RankTable, now: Instant) -> Finding:
        why = "none stands out" if verdict is None else verdict.text
        return Finding(
            kind=t.FindingKind.WORKER_HANG,
            severity=t.Severity.CRITICAL,
            subject="job",
            text=f"no rank made progress for {idle:.1f} s (median step {median:.2f} s), {why}",
            since=now.wall - idle,
            at=now.wall,
            signature="hang",
            evidence=_evidence(verdict) | {"operations": sorted(set(ranks.operation))},
        )


def _by_stacks(verdict: Verdict, stacks: Sequence[Stack]) -> Verdict:
    """All are in the same operation: the one whose stack is another than its peers' may be stuck in a part of it."""
    inside = verdict.waits[0]
    odd = odd_ranks(stacks, inside.ranks)
    if not odd:
        return verdict
    named = ("rank " if len(odd) == 1 else "ranks ") + compact(odd)
    text = f"{named} stands elsewhere in {inside.operation} than its peers (see the stacks)"
    return Verdict(Reason.STACK, odd, text, verdict.waits)


def _evidence(verdict: Verdict | None) -> dict[str, object]:
    if verdict is None:
        return {}
    return {
        "reason": verdict.reason.value,
        "suspects": list(verdict.suspects),
        "waits": [str(wait) for wait in verdict.waits],
    }


def _stillness(ranks: RankTable) -> np.ndarray:
    """Seconds since each rank entered or left an operation, or finished a step."""
    still: np.ndarray = ranks.seen_at - np.fmax(ranks.progress_at, ranks.still_at)
    return still


def _quick(median: float, longest: float) -> float:
    """With the end of a step before it and the heartbeat after it, within three median steps and two seconds."""
    return max(2 * median + 1.2, 1.5 * longest)
