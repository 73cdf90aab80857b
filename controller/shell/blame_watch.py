"""Blame of the running jobs, again and again: a straggler is a finding, and what it costs each GPU is counted.

Analysing takes time that heartbeats need, so it happens in a thread, and the pauses are as long as it asks for.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from holdfast.base import log
from holdfast.controller.brain.job_brain import JobBrain
from holdfast.controller.detectors.base.table import Tuning, finding
from holdfast.controller.past.slowness import SlowHistory
from holdfast.controller.shell.extras import LENIENT, Extras, Judged
from holdfast.controller.shell.shell import Shell, now
from holdfast.controller.spans.window import Part, decoded
from holdfast.controller.state.events import Found, PlanCompared, Record, StragglersSeen
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant
from holdfast.diagnostics.blame import text as blame_text
from holdfast.diagnostics.blame.blame import Blame
from holdfast.diagnostics.blame.model import Culprit, Slowness
from holdfast.diagnostics.blame.planned import Excess
from holdfast.diagnostics.blame.report import MOST_SPANS, blame_of, excesses_of, to_json
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.wire import types as t
from holdfast.wire.plans import decode_planned

_LEAST_SHARE = 0.01  # of a step: less is no answer to where it is slow
_FEWEST = 8  # steps in a look: of fewer, noise makes culprits
_MOST = 64
_AT_LENGTH = ("ranks", "path", "course", "incomplete")  # of a report: not kept from look to look
_SHORT, _MOST_SHORT = 10.0, 1024
"""Of short steps as many as fill so many seconds, up to that number: a difference of one second is no fault."""


@dataclass(slots=True)
class BlameTotals:
    """By rank, since the job began. Pure."""

    job: str = ""
    self_ratio: dict[int, float] = field(default_factory=dict)
    induced_s: dict[int, float] = field(default_factory=dict)
    victim_s: dict[int, float] = field(default_factory=dict)
    streaks: dict[tuple[int, str], int] = field(default_factory=dict)
    """How many windows in a row named this rank for this."""

    def add(self, job: str, blame: Blame) -> None:
        if job != self.job:
            self.job = job
            for table in (self.self_ratio, self.induced_s, self.victim_s, self.streaks):
                table.clear()
        for i, rank in enumerate(blame.ranks.tolist()):
            self.self_ratio[rank] = float(blame.self_ratio[i])
            for counted, per_step in ((self.induced_s, blame.induced_s[i]), (self.victim_s, blame.victim_s[i])):
                # A rank without spans adds nothing: a NaN would stay in the counter for good.
                more = 0.0 if math.isnan(per_step) else float(per_step) * blame.steps
                counted[rank] = counted.get(rank, 0.0) + more

    def stragglers(self, blame: Blame, windows: int, ratio: float, cost: float) -> list[Culprit]:
        """Those named in the `windows`-th window in a row, slower than their peers by `ratio` or more where there is
        one, that cost this share of the step or more."""
        named = {
            (c.rank, c.kind.value): c
            for c in blame.culprits
            if c.kind is not Slowness.IMBALANCE
            and c.cost_s >= cost * blame.step_s
            and (math.isnan(c.ratio) or c.ratio >= ratio)
        }
        self.streaks = {key: self.streaks.get(key, 0) + 1 for key in named}
        return [named[key] for key, count in self.streaks.items() if count == windows]


@dataclass(frozen=True, slots=True)
class Due:
    """Steps to look at."""

    parts: list[Part]
    first: int
    last: int
    shape: JobShape
    generation: int
    begins: bool
    """Are they the first of an attempt?"""


@dataclass(frozen=True, slots=True)
class SeenCulprit:
    blame: Blame | None
    beginning: Blame | None
    """Of the first steps of an attempt: the same by `LENIENT` limits."""
    seconds: float
    """Processor time that it took."""
    excesses: list[Excess] | None = None
    """Where the steps take longer than planned; None where nothing was planned."""


class JobBlame:
    """What is known of one job."""

    def __init__(self, extras: Extras) -> None:
        self.counted = BlameTotals()
        self.extras = extras
        self.next = 0
        self.generation = -1
        self.history = SlowHistory()
        self.found: dict[str, Any] | None = None
        self.found_in = -1
        """The generation whose steps that was."""


class BlameWatch:
    def __init__(
        self,
        shell: Shell,
        tuning: Tuning,
        clock: Callable[[], Instant] = now,
        every: float = 10.0,
        share: float = 0.05,
    ) -> None:
        """`every`: seconds between looks, `share`: of a core that they may take, at most."""
        self._shell, self._tuning, self._clock = shell, tuning, clock
        self._every, self._share = every, share
        self._jobs: dict[str, JobBlame] = {}
        self._extras: dict[str, Extras] = {}  # of an earlier run of the controller, by job
        self.seconds = 0.0
        """Processor time spent on looking so far."""

    async def run(self) -> None:
        """Watches until cancelled."""
        pause = self._every
        while True:
            await asyncio.sleep(pause)
            spent = 0.0
            for brain in self._shell.brain.jobs.active():
                taken = self.due(brain)
                if taken is None:
                    continue
                seen = await asyncio.to_thread(_look, taken)
                spent += seen.seconds
                if seen.blame is not None:
                    self.take(seen.blame, taken.shape, taken.generation, seen.beginning)
                    if seen.excesses is not None:
                        event = plan_compared(taken.shape.job, taken.generation, seen.excesses, seen.blame)
                        self._shell.handle(event)
            self.seconds += spent
            pause = max(self._every, spent / self._share)

    def restore(self, documents: Iterable[tuple[str, str, dict[str, Any]]]) -> None:
        """From the journal's: what an earlier controller knew of the jobs' first steps."""
        for kind, _, document in documents:
            if kind == "extras":
                try:
                    extras = Extras.from_doc(document)
                    self._extras[extras.job] = extras
                except (KeyError, TypeError, ValueError) as error:
                    log.error("extras.unreadable", error=repr(error))

    def of(self, job: str) -> JobBlame:
        known = self._jobs.get(job)
        if known is None:
            known = self._jobs[job] = JobBlame(self._extras.pop(job, Extras(job)))
            brains = self._shell.brain.jobs.brains
            for gone in [name for name in self._jobs if name not in brains and name != job]:
                del self._jobs[gone]
        return known

    def due(self, brain: JobBrain) -> Due | None:
        """Steps not yet examined, if there are enough: of an attempt the first ones first."""
        job = brain.c.job
        window = self._shell.spans.of(job.spec.id)
        whole = window.whole_steps()
        if whole is None:
            return None
        mine = self.of(job.spec.id)
        if job.generation != mine.generation or whole[1] < mine.next - 1:
            mine.generation, mine.next = job.generation, 0  # steps are done again
            mine.counted.streaks.clear()  # ranks reported while the job recovered are reported again
        begins = mine.next == 0 and 0 <= whole[0] - job.life_first <= _FEWEST
        most = _steps_of(brain.c.ledger.recent)
        last = min(whole[1], whole[0] + most - 1) if begins else whole[1]
        first = max(whole[0], mine.next, last - most + 1)
        if last - first + 1 < _FEWEST:
            return None
        first = window.first_within(first, last, MOST_SPANS)
        mine.next = last + 1
        shape = self._shell.brain.jobs.shape(job.spec.id)
        return Due(window.parts_of(first, last), first, last, shape, job.generation, begins)

    def take(self, blame: Blame, shape: JobShape, generation: int, beginning: Blame | None = None) -> None:
        mine = self.of(shape.job)
        mine.counted.add(shape.job, blame)
        if generation != mine.extras.generation:
            mine.extras.begin(generation, beginning, shape)
            self._shell.keep([Record("extras", shape.job, mine.extras.to_doc())])
        mine.found_in = generation
        found = to_json(blame, shape)
        mine.found = {key: value for key, value in found.items() if key not in _AT_LENGTH}
        for reported, culprit in zip(found["culprits"], blame.culprits, strict=True):
            judged = mine.extras.judge(culprit, blame, shape)
            reported["by_design"] = judged.is_design
            reported["text"] = _with(culprit.text, judged)
        wall = self._clock().wall
        mine.history.see(found["culprits"], wall - blame.steps * blame.step_s, wall)
        for reported in found["culprits"]:
            mine.history.add_to(reported)
        limit = self._tuning.limits(t.FindingKind.STRAGGLER)
        named = mine.counted.stragglers(blame, int(limit["windows"]), limit["ratio"], limit["cost"])
        for culprit in named:
            judged = mine.extras.judge(culprit, blame, shape)
            finding = straggler_finding(culprit, blame, shape, judged, self._clock())
            self._shell.handle(Found(finding, shape.job))
        self._cost(blame, shape)

    def _cost(self, blame: Blame, shape: JobShape) -> None:
        """What this window adds to the cost of the incidents that are open."""
        brain = self._shell.brain.jobs.brains.get(shape.job)
        if brain is None or brain.stragglers.is_quiet:
            return
        costs: dict[str, float] = {}
        for one in blame.culprits:
            if one.kind is not Slowness.IMBALANCE:
                key = f"rank{one.rank} {_signature(one)}"
                costs[key] = costs.get(key, 0.0) + one.cost_s * blame.steps
        self._shell.handle(StragglersSeen(shape.job, blame.steps * blame.step_s, costs))

    def found(self, job: str) -> dict[str, Any] | None:
        """The last look at this job in brief."""
        return self._jobs[job].found if job in self._jobs else None

    def found_now(self, job: str, generation: int) -> dict[str, Any] | None:
        """The same, if it was a look at this generation: a restarted job may be well."""
        return self.found(job) if job in self._jobs and self._jobs[job].found_in == generation else None

    def figures(self, job: str) -> dict[str, dict[int, float]]:
        """By rank, for /metrics."""
        c = self._jobs[job].counted if job in self._jobs else BlameTotals()
        return {"self_ratio": c.self_ratio, "induced_s": c.induced_s, "victim_s": c.victim_s}


def _steps_of(recent: Collection[float]) -> int:
    """How many steps to look at, by how long they took recently."""
    usual = sorted(recent)[len(recent) // 2] if recent else 0.0
    return min(max(round(_SHORT / usual), _MOST), _MOST_SHORT) if usual > 0 else _MOST


def _with(text: str, judged: Judged) -> str:
    return f"{text}; {judged.why}" if judged.why else text


def straggler_finding(culprit: Culprit, blame: Blame, shape: JobShape, judged: Judged, at: Instant) -> Finding:
    return finding(
        t.FindingKind.STRAGGLER,
        f"rank{culprit.rank}",
        _with(culprit.text, judged),
        at,
        severity=judged.severity,
        seconds=blame.steps * blame.step_s,
        node=shape.node_of(culprit.rank),
        rank=culprit.rank,
        signature=_signature(culprit),
        evidence={
            "slowness": culprit.kind.value, "what": culprit.what, "peer": culprit.peer,
            "ratio": None if math.isnan(culprit.ratio) else culprit.ratio, "cost_s": culprit.cost_s,
            "induced_s": culprit.induced_s, "step_s": blame.step_s, "steps": [blame.first, blame.last],
            "by_design": judged.is_design, "every": culprit.every,
        },
    )  # fmt: skip


def _signature(culprit: Culprit) -> str:
    return f"straggler {culprit.kind.value}"


def plan_compared(job: str, generation: int, found: list[Excess], blame: Blame) -> PlanCompared:
    """What the job is to know of it: the kind that costs it the most, if that is a hundredth of a step."""
    named = sum(one.cost_s for one in blame.culprits if one.kind is not Slowness.IMBALANCE)
    worst = found[0] if found and found[0].exposed_s >= _LEAST_SHARE * blame.step_s else None
    if worst is None:
        return PlanCompared(job, generation, "", named)
    took, planned = blame_text.seconds(worst.measured_s), blame_text.seconds(worst.planned_s)
    text = f"{worst.what}: {took} of a step, planned {planned}; a step would be {blame_text.seconds(worst.exposed_s)}"
    return PlanCompared(job, generation, f"{text} shorter", named)


def _look(due: Due) -> SeenCulprit:
    began = time.thread_time()
    blame = beginning = excesses = None
    first, last, shape = due.first, due.last, due.shape
    try:
        table = decoded(due.parts).of_steps(first, last)
        blame = blame_of(table, shape)
        beginning = blame_of(table, shape, LENIENT) if due.begins else None
        planned = decode_planned(shape.plan) if shape.plan else None
        excesses = excesses_of(table, shape, planned) if planned is not None else None
    except Exception as error:
        # Spans are made by other people's programs: what they break here must not end the watcher of the job.
        log.exception("blame.failed", first=first, last=last, error=repr(error))
    return SeenCulprit(blame, beginning, time.thread_time() - began, excesses)
