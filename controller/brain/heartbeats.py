"""What heartbeats bring: states of ranks, steps done, gauges and traffic of nodes; each held against what is known."""

import math

from holdfast.base.bounds import MAX_STEP
from holdfast.controller.detectors.agents.silence import note_arrival
from holdfast.controller.detectors.node_detectors import Ensemble
from holdfast.controller.detectors.workers.training import loss_finding
from holdfast.controller.hang.watch import HangWatch
from holdfast.controller.job import timekeeping
from holdfast.controller.job.cluster import Cluster
from holdfast.controller.job.lifecycle import Stage
from holdfast.controller.job.recovery import Recovery
from holdfast.controller.job.requests import Requests
from holdfast.controller.state.events import Action, FrameSeen, Record
from holdfast.controller.state.model import RANK_STATES, Finding, Instant, Job, Node, RankState
from holdfast.wire import types as t

_TRAIN, _RUNNING = t.PHASES.index(t.Phase.TRAIN), RANK_STATES.index(RankState.RUNNING)
_AHEAD = 3600.0  # seconds by which a node's clock may be ahead of ours


class Heartbeats:
    def __init__(
        self, cluster: Cluster, recovery: Recovery, requests: Requests, hangs: HangWatch, detectors: Ensemble
    ) -> None:
        self.c = cluster
        self.recovery, self.requests, self.hangs, self.detectors = recovery, requests, hangs, detectors
        self.steps_total = 0

    def frame(self, event: FrameSeen, now: Instant) -> list[Action]:
        node, frame = self.c.nodes.get(event.node), event.frame
        if node is None:
            return []
        note_arrival(node, now.mono, frame.cadence)
        actions: list[Action] = []
        if node.state in (t.NodeState.SUSPECT, t.NodeState.LOST) and node.connected:
            # One that was given up has its orders to stop in that stream; while a generation ends, we wait for them.
            self.c.set_healthy(node)
            actions += self.c.life.node_back(self.c.active, node.name, now) if self.c.active else []
        if frame.host:
            node.host, node.host_at = frame.host, now.mono
        for gauges in frame.gpus:
            node.gpus[gauges.index] = gauges.values
        fresh_bytes = self._count_bytes(node, frame)
        job = self.c.active
        if job is None:
            return actions + self._gauges(node, frame, False, now)
        for sample in frame.workers:
            if self.c.is_of(node.name, sample.job, sample.generation, sample.rank) and (
                sample.generation == job.generation
            ):
                self.c.ranks.update(sample, now.mono, node.lag, frame.cadence)
                if sample.meters is not None:
                    actions += self._found(self.detectors.gradients(sample.step, sample.meters, now), now)
        busy = self.c.life.stage is Stage.UP and self._busy(job.ranks_on(node.name))
        actions += self._gauges(node, frame, busy, now)
        for record in frame.steps:
            actions += self._step(record, node.name, now)
        timekeeping.frame(self.c, job, node.name, frame)
        return actions + self._traffic(job, node, frame, fresh_bytes, busy, now) if frame.nics else actions

    def _gauges(self, node: Node, frame: t.Frame, busy: bool, now: Instant) -> list[Action]:
        if not (frame.host or frame.gpus):
            return []
        return self._found(self.detectors.gauges(node, frame, busy, now), now)

    def _found(self, findings: list[Finding], now: Instant) -> list[Action]:
        return self.recovery.found_at_nodes(findings, now)

    def _busy(self, ranks: range) -> bool:
        """Do all these ranks train?"""
        part = slice(ranks.start, ranks.stop)
        training = (self.c.ranks.phase[part] == _TRAIN) & (self.c.ranks.state[part] == _RUNNING)
        return bool(ranks) and bool(training.all())

    def _count_bytes(self, node: Node, frame: t.Frame) -> int:
        """Bytes since the node's last frame, both directions; keeps its running rates."""
        if not frame.nics:
            return 0
        tx, rx = sum(n.tx_total for n in frame.nics), sum(n.rx_total for n in frame.nics)
        width = (frame.mono_ns - node.counted_ns) / 1e9
        fresh_tx, fresh_rx = max(0, tx - node.tx_total), max(0, rx - node.rx_total)
        first = not node.counted_ns or width <= 0
        node.tx_total, node.rx_total, node.counted_ns = tx, rx, frame.mono_ns
        if first:
            return 0
        weight = min(1.0, width)  # a running mean over about a second
        node.tx_rate += weight * (fresh_tx / width - node.tx_rate)
        node.rx_rate += weight * (fresh_rx / width - node.rx_rate)
        return fresh_tx + fresh_rx

    def _traffic(self, job: Job, node: Node, frame: t.Frame, fresh: int, busy: bool, now: Instant) -> list[Action]:
        ranks = job.ranks_on(node.name)
        if len(job.nodes) < 2 or not ranks or self.c.life.stage is not Stage.UP:
            return []
        median = float(self.c.ranks.median_step[ranks.start])
        finding = self.c.traffic.observe(node.name, fresh, busy, median, self.c.progress_at, now)
        # Quiet is a fault only where everybody waits in communication: a rank that saves or evaluates is in none.
        if finding is not None and all(self.c.ranks.operation) and self.hangs.is_transfer_stuck:
            return self.recovery.found(finding, now)
        return self._found(self.detectors.traffic(node, frame, job, self.c.ranks, now), now)

    def _step(self, record: t.StepRecord, node: str, now: Instant) -> list[Action]:
        job = self.c.job
        if job is None or not self.c.is_of(node, record.job, record.generation, record.rank):
            return []
        if record.end_wall_ns > (now.wall + _AHEAD) * 1e9:
            record = record._replace(end_wall_ns=int(now.wall * 1e9))
        actions: list[Action] = []
        if record.is_counted:
            if not job.progress.counted:
                job.progress.counted = True
                actions.append(Record("job", job.spec.id, job.to_doc()))
            record = record._replace(step=min(record.step + job.progress.base(record.generation), MAX_STEP))
        if record.generation == job.generation:
            # An agent that was restarted reads its workers' last steps again.
            if record.step <= self.c.ranks.counted[record.rank]:
                self.c.ledger.complete(record)  # nor do we know, after a restart of ours, whose record was there
                return actions
            self.c.ranks.counted[record.rank] = record.step
        elif self.c.ledger.has(record):
            self.c.ledger.complete(record)  # last words of an earlier life, read again by the agent's successor
            return actions
        finding = loss_finding(record, node, now) if record.generation == job.generation else None
        if finding is not None:
            actions += self.recovery.found(finding, now)
        is_new = self.c.ledger.add(record)
        if record.generation == job.generation and (is_new or not math.isnan(record.loss)):
            actions += self._found(self.detectors.step(record, is_new, now), now)
        if not is_new:
            return actions
        self.steps_total += 1
        timekeeping.step(self.c, job, record, now)
        self.c.progress_at = now.mono
        if record.generation == job.generation and finding is None:  # a loss that is no number is no progress
            job.best_step = max(job.best_step, record.step)
            job.life_first = record.step if job.life_first < 0 else min(job.life_first, record.step)
            job.life_last = max(job.life_last, record.step)
            actions += self.recovery.resumed(record, now)
        return actions + self.requests.due_faults(job, now)
