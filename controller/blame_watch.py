"""Blame of the running job, again and again: who slows it down is a finding, and what it costs each GPU is counted.

Analysing takes time that heartbeats need, so it happens in a thread, and the pauses are as long as it asks for.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass, field
from typing import Any

from holdfast import log
from holdfast import types as t
from holdfast.controller.detectors.table import Tuning, finding
from holdfast.controller.events import Found
from holdfast.controller.model import Finding, Instant
from holdfast.controller.shell import Shell, now
from holdfast.controller.span_window import Part, decoded
from holdfast.diagnostics.blame import Blame, Culprit
from holdfast.diagnostics.blame_model import Slowness
from holdfast.diagnostics.blame_report import MOST_SPANS, blame_of, to_json
from holdfast.diagnostics.job_shape import JobShape

_EVERY = 10.0
_SHARE = 0.05  # of a core, at most
_FEWEST = 8  # steps in a look: of fewer, noise makes culprits
_MOST = 64


@dataclass(slots=True)
class Counted:
    """By rank, since the job began. Pure."""

    job: str = ""
    self_ratio: dict[int, float] = field(default_factory=dict)
    induced_s: dict[int, float] = field(default_factory=dict)
    victim_s: dict[int, float] = field(default_factory=dict)
    streaks: dict[tuple[int, str], int] = field(default_factory=dict)
    """How many looks in a row named this rank for this."""

    def add(self, job: str, blame: Blame) -> None:
        if job != self.job:
            self.job = job
            for table in (self.self_ratio, self.induced_s, self.victim_s, self.streaks):
                table.clear()
        for i, rank in enumerate(blame.ranks.tolist()):
            self.self_ratio[rank] = float(blame.self_ratio[i])
            self.induced_s[rank] = self.induced_s.get(rank, 0.0) + float(blame.induced_s[i]) * blame.steps
            self.victim_s[rank] = self.victim_s.get(rank, 0.0) + float(blame.victim_s[i]) * blame.steps

    def stragglers(self, blame: Blame, looks: int, ratio: float, cost: float) -> list[Culprit]:
        """Those named for the `looks`-th time in a row, slower than their peers by `ratio` or more where there is
        one, that cost this share of the step or more."""
        named = {
            (c.rank, c.kind.value): c
            for c in blame.culprits
            if c.kind is not Slowness.IMBALANCE
            and c.cost_s >= cost * blame.step_s
            and (math.isnan(c.ratio) or c.ratio >= ratio)
        }
        self.streaks = {key: self.streaks.get(key, 0) + 1 for key in named}
        return [named[key] for key, count in self.streaks.items() if count == looks]


class BlameWatch:
    def __init__(self, shell: Shell, tuning: Tuning) -> None:
        self._shell, self._tuning = shell, tuning
        self.counted = Counted()
        self._next = 0
        self._generation = -1
        self.seconds = 0.0
        """Processor time spent on looking so far."""
        self._found: dict[str, Any] | None = None

    async def run(self) -> None:
        """Looks until cancelled."""
        pause = _EVERY
        while True:
            await asyncio.sleep(pause)
            taken = self._due()
            if taken is None:
                continue
            parts, first, last, shape = taken
            blame, seconds = await asyncio.to_thread(_look, parts, first, last, shape)
            self.seconds += seconds
            pause = max(_EVERY, seconds / _SHARE)
            if blame is not None:
                self._take(blame, shape)

    def _due(self) -> tuple[list[Part], int, int, JobShape] | None:
        """Steps that nobody looked at yet, if there are enough."""
        job = self._shell.brain.c.job
        whole = self._shell.spans.whole_steps()
        if job is None or whole is None:
            return None
        if job.generation != self._generation or whole[1] < self._next - 1:
            self._generation, self._next = job.generation, 0  # steps are done again
            self.counted.streaks.clear()  # who was told of while the job recovered is told of again
        first = max(whole[0], self._next, whole[1] - _MOST + 1)
        if whole[1] - first + 1 < _FEWEST:
            return None
        first = self._shell.spans.first_within(first, whole[1], MOST_SPANS)
        self._next = whole[1] + 1
        return self._shell.spans.parts_of(first, whole[1]), first, whole[1], self._shell.shape()

    def _take(self, blame: Blame, shape: JobShape) -> None:
        self.counted.add(shape.job, blame)
        found = to_json(blame, shape)
        self._found = {key: value for key, value in found.items() if key not in ("ranks", "path", "incomplete")}
        limit = self._tuning.limits(t.FindingKind.STRAGGLER)
        named = self.counted.stragglers(blame, int(limit["looks"]), limit["ratio"], limit["cost"])
        for culprit in named:
            self._shell.handle(Found(straggler_finding(culprit, blame, shape, now())))

    def found(self) -> dict[str, Any] | None:
        """The last look in brief, if it was at the job that there is now."""
        job = self._shell.brain.c.job
        return self._found if job is not None and self._found and self._found["job"] == job.spec.id else None

    def figures(self) -> dict[str, dict[int, float]]:
        """By rank, for /metrics."""
        c = self.counted
        return {"self_ratio": c.self_ratio, "induced_s": c.induced_s, "victim_s": c.victim_s}


def straggler_finding(culprit: Culprit, blame: Blame, shape: JobShape, at: Instant) -> Finding:
    return finding(
        t.FindingKind.STRAGGLER,
        f"rank{culprit.rank}",
        culprit.text,
        at,
        seconds=blame.steps * blame.step_s,
        node=shape.node_of(culprit.rank),
        rank=culprit.rank,
        signature=f"straggler {culprit.kind.value}",
        evidence={
            "slowness": culprit.kind.value, "what": culprit.what, "peer": culprit.peer,
            "ratio": None if math.isnan(culprit.ratio) else culprit.ratio, "cost_s": culprit.cost_s,
            "induced_s": culprit.induced_s, "step_s": blame.step_s, "steps": [blame.first, blame.last],
        },
    )  # fmt: skip


def _look(parts: list[Part], first: int, last: int, shape: JobShape) -> tuple[Blame | None, float]:
    began = time.thread_time()
    blame = None
    try:
        blame = blame_of(decoded(parts).of_steps(first, last), shape)
    except Exception as error:
        # Spans are made by other people's programs: what they break here must not end the watcher of the job.
        log.exception("blame.failed", first=first, last=last, error=repr(error))
    return blame, time.thread_time() - began
