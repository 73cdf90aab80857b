"""No step progress: who is late against its peers and against its own recent steps, with no hand-set timeout.

In synchronous training everybody stops when one does. The one at fault shows no life: its process is stopped, or
its interpreter's liveness thread is (stopped, or the GIL is held for ever; from outside the two look the same). Its
peers wait inside a communication operation with the GIL released, so their threads tick on. Without such a sign the
one that is in no operation while all others wait in one is named, later; and without any sign at all the job is.
"""

import math

import numpy as np

from holdfast import types as t
from holdfast.controller.model import Finding, Instant, Options, RankState, RankTable

_TRAIN = t.PHASES.index(t.Phase.TRAIN)
_QUIET_LIMIT = 10.0  # seconds without life outside training: imports and compilers hold the GIL for long
_TICK = 0.1  # the probe's liveness period


class HangDetector:
    def __init__(self, options: Options) -> None:
        self.options = options

    def observe(self, ranks: RankTable, generation: int, steps: list[float], now: Instant) -> list[Finding]:
        """`steps`: durations of the job's recent steps, seconds, from this and earlier generations."""
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
        if found or math.isnan(median) or not training.any():
            return found
        return self._waiting(ranks, alive, training, idle, median, steps, now)

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
        limit = np.full(ranks.world, _QUIET_LIMIT)
        if not math.isnan(median):
            limit[training] = o.hang_steps * median + o.hang_floor
        # What the node's own agent could not do in time, its workers could not either: a starved host, no fault.
        limit += ranks.lag
        slack = np.zeros(ranks.world)
        if not math.isnan(median):
            # A held GIL can be an honest long call; as long as recent steps were, it is not suspicious.
            slack[training] = max(0.0, 1.2 * float(np.quantile(steps, 0.9)) - o.hang_steps * median)
        stopped = fresh & ranks.stopped & (idle > limit)
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

    def _waiting(
        self,
        ranks: RankTable,
        alive: np.ndarray,
        training: np.ndarray,
        idle: np.ndarray,
        median: float,
        steps: list[float],
        now: Instant,
    ) -> list[Finding]:
        longest = max(steps[-50:])
        late = training & (idle > max(5 * median, 2 * longest) + 2.0)
        if not late.any() or (late.sum() < alive.sum()):
            return []  # somebody still moves: a long step, or a user's own pace
        in_operation = np.array([bool(name) for name in ranks.operation])
        outside = late & ~in_operation
        if 0 < outside.sum() <= max(1, alive.sum() // 4) and alive.sum() > 1:
            return [self._bystander(ranks, int(r), float(idle[r]), now) for r in np.flatnonzero(outside)]
        worst = float(idle[late].min())
        if worst <= max(10 * median, 3 * longest) + 30.0:
            return []
        return [
            Finding(
                kind=t.FindingKind.WORKER_HANG,
                severity=t.Severity.CRITICAL,
                subject="job",
                text=f"no rank made progress for {worst:.1f} s (median step {median:.2f} s), none stands out",
                since=now.wall - worst,
                at=now.wall,
                signature="hang",
                evidence={"operations": sorted(set(ranks.operation))},
            )
        ]

    def _bystander(self, ranks: RankTable, rank: int, idle: float, now: Instant) -> Finding:
        return Finding(
            kind=t.FindingKind.WORKER_HANG,
            severity=t.Severity.CRITICAL,
            subject=f"rank{rank}",
            text=f"rank {rank} made no progress for {idle:.2f} s and is in no operation, while its peers wait in one",
            since=now.wall - idle,
            at=now.wall,
            rank=rank,
            signature="hang",
            evidence={"step": int(ranks.step[rank]), "peers_wait_in": sorted(set(ranks.operation) - {""})[:8]},
        )
