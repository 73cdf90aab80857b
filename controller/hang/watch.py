"""When no rank moves: read the workers' stacks first, then name the faulty rank. Pure as all of the brain."""

import dataclasses
import math
from typing import Any

import numpy as np

from holdfast.controller.cluster import incidents as books
from holdfast.controller.detectors.base.table import Response
from holdfast.controller.detectors.workers.hang import HangDetector
from holdfast.controller.detectors.workers.pause import Pause
from holdfast.controller.hang.connectivity import Connectivity
from holdfast.controller.hang.pauses import PauseWatch
from holdfast.controller.hang.places import Places, has_stepped
from holdfast.controller.hang.stack_dumps import StackDumps
from holdfast.controller.job import policy
from holdfast.controller.job.recovery import Recovery
from holdfast.controller.job.state import JobState
from holdfast.controller.state.events import Action
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import LIMITS, Instant, Job, Options
from holdfast.controller.state.ranks import RankState
from holdfast.diagnostics.hang.stack_tree import Stack
from holdfast.diagnostics.hang.stillness import Liveness
from holdfast.wire import messages as msg
from holdfast.wire import turns
from holdfast.wire import types as t

_KINDS = (t.FindingKind.WORKER_HANG, t.FindingKind.WORKER_STOPPED, t.FindingKind.RESTART)


_STACKS_S = 0.25
"""Seconds that a verdict waits for the stacks of all workers."""
_SAME_S = 0.05
"""Two reports of one instant differ by less."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Dead:
    """A verdict that waits for the stacks."""

    generation: int
    at: float
    found: list[Finding]
    moved_at: float


def _dead_ranks(finding: Finding) -> list[int]:
    dead = finding.evidence.get("dead")
    return [int(rank) for rank in dead] if isinstance(dead, list) else []


class HangWatch:
    def __init__(self, job: JobState, recovery: Recovery) -> None:
        self.c, self.recovery = job, recovery
        self.detector = HangDetector(job.options)
        self.pauses, self.places = PauseWatch(), Places()
        self._dead: _Dead | None = None
        self._is_again = False  # whether the newest stacks are not the first of a pause, which are read another way
        self.stacks = StackDumps(job, self._answered)
        self.connectivity = Connectivity(job, recovery.found_at_nodes)

    def look(self, job: Job, now: Instant) -> list[Action]:
        """At every tick of a job that is up. Nothing is judged while a worker waits for its turn on a node that jobs
        share: another job's worker has it, for a limited time."""
        if job.spec.share_bytes and self._awaits_turn():
            self.detector.pause = None
            return self._paused(job, self._limits(job), [], now)
        if self._dead is not None:
            return self._end_dead(self._dead, job, now)
        steps = list(self.c.ledger.recent)
        limits = self.detector.options = self._limits(job)
        since = self.detector.pending_since(self.c.ranks, job.generation, steps, now)
        actions = [] if since is None else self.connectivity.ask_once(since, now)
        if self.connectivity.is_open(now):
            return actions  # a node that is cut off explains it better than the wait-for graph
        stacks = [] if since is None else self.stacks.of_standstill(job.generation, since)
        found = self.detector.observe(self.c.ranks, job.generation, steps, now, stacks)
        if self.c.ending_since(now) is not None:  # what waits for itself then is left to `--exit-limit`
            found = [one for one in found if not policy.is_own_wait(one)]
        if found:
            # Stacks are gone once the workers are.
            self._dead = _Dead(job.generation, now.mono, found, self._moved_at(found))
            idle = max(float(one.evidence["idle_s"]) for one in found)
            return [*actions, *self.stacks.ask_once(now.mono - idle, now)]
        if (
            self.detector.pause is not None
            and since is not None
            and now.mono - since > self.detector.proves_within(steps)
        ):
            # Not before: to be asked disturbs what is known of a thread, and with it a proof.
            actions += self.stacks.ask_once(since, now)
        return [*actions, *self._paused(job, limits, stacks, now)]

    def _end_dead(self, dead: "_Dead", job: Job, now: Instant) -> list[Action]:
        """Act on it once the stacks are here, or after a moment. What was proved holds until the rank moves."""
        if not self.stacks.is_complete and now.mono - dead.at < _STACKS_S and dead.generation == job.generation:
            return []
        self._dead = None
        if dead.generation != job.generation or self._moved_at(dead.found) > dead.moved_at + _SAME_S:
            return []
        actions: list[Action] = []
        for finding in dead.found:
            if finding.rank >= 0 and self.c.tuning.response(finding.kind) is Response.ACT:
                self.c.ranks.mark(finding.rank, RankState.STALLED)
            actions += self.recovery.found(self.recovery.at_node(finding, job), now)
        return [*actions, *self.keep_stacks()]

    def _moved_at(self, found: list[Finding]) -> float:
        """When the last of the ranks moved that the findings are about, monotonic seconds."""
        ranks = self.c.ranks
        about = {rank for one in found for rank in (one.rank, *_dead_ranks(one)) if 0 <= rank < ranks.world}
        moved = [float(np.fmax(ranks.progress_at[rank], ranks.still_at[rank])) for rank in about]
        return max((at for at in moved if not math.isnan(at)), default=-math.inf)

    def _awaits_turn(self) -> bool:
        running = self.c.ranks.is_in(RankState.RUNNING)
        return any(running[rank] and what == turns.WAITING for rank, what in enumerate(self.c.ranks.operation))

    @property
    def is_transfer_stuck(self) -> bool:
        """Whether all ranks wait in an operation that no rank is missing from: that leaves the network to blame."""
        pause = self.detector.pause
        return pause is not None and pause.life is not Liveness.BUSY and pause.is_in_flight

    def _limits(self, job: Job) -> Options:
        """The controller's, but for those that the job sets itself."""
        own: dict[str, Any] = {name: value for name, value in job.spec.limits.items() if name in LIMITS}
        return dataclasses.replace(self.c.options, **own) if own else self.c.options

    def _paused(self, job: Job, limits: Options, stacks: list[Stack], now: Instant) -> list[Action]:
        """Report which rank pauses, alert, and restart the job at the limit."""
        pause = self.detector.pause
        if pause is None:
            self.places.begin()
        place = self._place(pause, stacks) if pause is not None else ""
        is_stepping = has_stepped(self.c.ledger, job.generation)
        outcome = self.pauses.look(pause, place, job, limits, is_stepping, now, self.c.ending_since(now) is not None)
        actions = outcome.actions
        if pause is None:
            self._is_again = False
        if self.pauses.wants_stacks(now):
            self._is_again = True
            actions += self.stacks.ask_again(now)
        if outcome.alert is not None:
            actions += self.recovery.noted(outcome.alert, now)
        if outcome.end is not None:
            restarts = job.generation, self.c.life.stage
            actions += self.recovery.found(outcome.end, now)
            if (job.generation, self.c.life.stage) != restarts and not job.state.ended:
                actions += [self.pauses.ended(job), *self.keep_stacks()]
        return actions

    def _place(self, pause: Pause, stacks: list[Stack]) -> str:
        """Where in the script the first of those stands that hold up the job."""
        awaited = pause.verdict.waits[0].operation if pause.verdict is not None and pause.verdict.waits else ""
        return self.places.of(pause.ranks[0], stacks, self.c.ranks.operation[pause.ranks[0]], awaited)

    def _answered(self, result: msg.CommandResult, now: Instant) -> list[Action]:
        if not self.stacks.answered(result):
            return []  # of an older round
        if self._is_again and self.stacks.is_complete:
            self.pauses.saw_stacks(self.stacks.of_standstill(self.c.job.generation), now)
        return self.keep_stacks()

    def keep_stacks(self) -> list[Action]:
        """What the workers did when no rank moved belongs to the incident that came of it."""
        live = self.c.book.live()
        tree = None if live is None else self.stacks.tree(live.generation_from)
        if live is None or tree is None or live.cause.kind not in _KINDS:
            return []
        live.stacks = tree
        return [books.saved(live)]
