"""What heartbeats bring of one job: states of its ranks, its steps, the traffic of its nodes."""

import math

from holdfast.base.bounds import MAX_STEP
from holdfast.controller.cluster.incidents import saved
from holdfast.controller.detectors.job_detectors import JobDetectors
from holdfast.controller.detectors.workers.origins import GradientOrigins, origin_finding
from holdfast.controller.detectors.workers.training import loss_finding
from holdfast.controller.hang.watch import HangWatch
from holdfast.controller.job import timekeeping
from holdfast.controller.job.planned_watch import PlannedWatch
from holdfast.controller.job.recovery import Recovery
from holdfast.controller.job.requests import Requests
from holdfast.controller.job.stages import Stage
from holdfast.controller.job.state import JobState
from holdfast.controller.state.events import Action, Record
from holdfast.controller.state.model import Instant, Node
from holdfast.controller.state.ranks import RANK_STATES, RankState
from holdfast.wire import types as t

_TRAIN, _RUNNING = t.PHASES.index(t.Phase.TRAIN), RANK_STATES.index(RankState.RUNNING)
_AHEAD = 3600.0  # seconds by which a node's clock may be ahead of the controller's


class JobFrames:
    def __init__(
        self, job: JobState, recovery: Recovery, requests: Requests, hangs: HangWatch, detectors: JobDetectors,
        plans: PlannedWatch,
    ) -> None:  # fmt: skip
        self.c, self.recovery, self.requests, self.hangs, self.detectors = job, recovery, requests, hangs, detectors
        self.plans = plans
        self.origins = GradientOrigins()

    def sample(self, sample: t.WorkerSample, node: Node, heartbeat_interval: float, now: Instant) -> list[Action]:
        """The state of a rank that the node holds or held."""
        if sample.generation != self.c.job.generation:
            return []
        self.c.ranks.update(sample, now.mono, node.lag, heartbeat_interval)
        if sample.meters is None:
            return []
        progress = self.c.job.progress
        step = sample.step + progress.base(sample.generation) if progress.counted else sample.step
        self.c.ledger.measure(sample.generation, step, sample.meters)
        return self.recovery.found_at_nodes(self.detectors.gradients(sample.step, sample.meters, now), now)

    def is_busy(self, node: str) -> bool:
        """Do all ranks of this node train?"""
        ranks = self.c.job.ranks_on(node)
        part = slice(ranks.start, ranks.stop)
        training = (self.c.ranks.phase[part] == _TRAIN) & (self.c.ranks.state[part] == _RUNNING)
        return self.c.life.stage is Stage.UP and bool(ranks) and bool(training.all())

    def traffic(self, node: Node, frame: t.Frame, fresh: int, busy: bool, now: Instant) -> list[Action]:
        """`fresh`: bytes since the node's last frame, both directions. `busy`: all its ranks train."""
        job = self.c.job
        ranks = job.ranks_on(node.name)
        if len(job.nodes) < 2 or not ranks or self.c.life.stage is not Stage.UP:
            return []
        median = float(self.c.ranks.median_step[ranks.start])
        finding = self.c.traffic.observe(node.name, fresh, busy, median, self.c.progress_at, now)
        # Quiet is a fault only where everybody waits in communication: a rank that saves or evaluates is in none.
        if finding is not None and all(self.c.ranks.operation) and self.hangs.is_transfer_stuck:
            return self.recovery.found(finding, now)
        found = self.detectors.traffic(node, frame, job, self.c.ranks, now)
        beside = self.plans.traffic(node.name, self.detectors.take_volumes(node.name), now)
        return self.recovery.found_at_nodes(found, now) + beside

    def origin(self, now: Instant) -> list[Action]:
        """The incident of parameters that are not finite, with the rank whose gradient it was, once that is known."""
        live = self.c.book.live()
        if live is None or live.cause.kind is not t.FindingKind.LOSS_NONFINITE or live.cause.rank >= 0:
            return []
        first = self.origins.first(live.generation_from, self.c.job.spec.world)
        if first is None or not self.c.book.attach(live, origin_finding(*first, live.cause, now)):
            return []
        return [saved(live)]

    def step(self, record: t.StepRecord, node: str, now: Instant) -> list[Action]:
        """A step that a rank finished which the node holds or held."""
        job = self.c.job
        if record.end_wall_ns > (now.wall + _AHEAD) * 1e9:
            record = record._replace(end_wall_ns=int(now.wall * 1e9))
        actions: list[Action] = []
        if record.is_counted:
            if not job.progress.counted:
                job.progress.counted = True
                actions.append(Record("job", job.spec.id, job.to_doc()))
            record = record._replace(step=min(record.step + job.progress.base(record.generation), MAX_STEP))
        elif job.progress.counted and record.generation == job.generation:
            # The hook saw a step before the script numbered its first: only the script's numbers count.
            job.progress.counted, job.progress.bases = False, []
            self.c.ranks.counted[:] = -1
            actions.append(Record("job", job.spec.id, job.to_doc()))
        if record.generation == job.generation:
            # An agent that was restarted reads its workers' last steps again.
            if record.step <= self.c.ranks.counted[record.rank]:
                self.c.ledger.complete(record)  # nor is it known, after a controller restart, whose record was there
                return actions
            self.c.ranks.counted[record.rank] = record.step
        elif self.c.ledger.has(record):
            self.c.ledger.complete(record)  # last records of an earlier attempt, read again by the agent's successor
            return actions
        finding = loss_finding(record, node, job.spec.world, now) if record.generation == job.generation else None
        if finding is not None:
            actions += self.recovery.found(finding, now) + self.origin(now)
        is_new = self.c.ledger.add(record)
        if record.generation == job.generation and (is_new or not math.isnan(record.loss)):
            is_alone = not self.c.shares_nodes
            actions += self.recovery.found_at_nodes(self.detectors.step(record, is_new and is_alone, now), now)
        if not is_new:
            return actions
        if record.generation == job.generation and not self.c.shares_nodes:
            actions += self.plans.step(record, now)
        self.c.cluster.steps_total += 1
        timekeeping.step(self.c, job, record, now)
        self.c.progress_at = now.mono
        if record.generation == job.generation and finding is None:  # a loss that is NaN is no progress
            job.best_step = max(job.best_step, record.step)
            job.life_first = record.step if job.life_first < 0 else min(job.life_first, record.step)
            job.life_last = max(job.life_last, record.step)
            actions += self.recovery.resumed(record, now)
        return actions + self.requests.due_faults(job, now)
