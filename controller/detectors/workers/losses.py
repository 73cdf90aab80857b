"""Finds a spike, a single leap far above all before, or a divergence in a job's losses. The program reports them, or
prints them and agents read them; printed ones count where none is reported."""

import math

from holdfast.controller.detectors.base.table import Tuning, finding
from holdfast.controller.detectors.workers.spikes import SpikeDetector
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant
from holdfast.facts.losses import DIVERGES, LEAPS, LossHistory, LossProblem
from holdfast.wire import types as t

PRINTED = frozenset({LEAPS, DIVERGES})
"""Kinds of the printed losses that agents report."""
_KIND = t.FindingKind.LOSS_SPIKE


class LossDetector:
    """Watches the losses of one job."""

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self._spikes = SpikeDetector(tuning, _KIND, "loss")
        self._history = LossHistory()
        self._generation = self._step = -1

    def observe(self, record: t.StepRecord, now: Instant) -> list[Finding]:
        """Every rank may report the same step's loss: the first counts."""
        problem = self._seen(record)
        if problem is None:
            return self._spikes.observe(record.step, record.loss, now)
        self._spikes = SpikeDetector(self._tuning, _KIND, "loss")  # reported once
        name = DIVERGES if problem.diverges else LEAPS
        said = {"step": problem.step, "value": problem.value, "usual": problem.usual}
        return [finding(_KIND, "job", problem.text, now, signature=f"{name}@{problem.step}", evidence=said)]

    def _seen(self, record: t.StepRecord) -> LossProblem | None:
        if not math.isfinite(record.loss):
            return None
        if record.generation != self._generation:  # of an older state, whose losses differ
            self._history, self._step = LossHistory(), -1
            self._generation = record.generation
        if record.step <= self._step:
            return None
        self._step = record.step
        return self._history.observe(record.step, record.loss)

    def printed(self, event: t.LogMatched, step: int, now: Instant) -> list[Finding]:
        """`step`: the job's newest. Ranks print the same loss: they are one finding."""
        if self._generation == event.generation:
            return []  # the program reports its losses
        said = {"step": step, "rank": event.rank}
        return [finding(_KIND, "job", event.line, now, signature=f"{event.rule}@{event.generation}", evidence=said)]
