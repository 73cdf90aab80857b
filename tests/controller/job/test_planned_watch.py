"""A job beside its plan: when it is said to be slower, and all that looks like it and is not. In virtual time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import cycle, islice, repeat

import numpy as np
import pytest

from holdfast.controller.shell.job_report import job_doc
from holdfast.controller.state.events import Action, EventSeen, FrameSeen, PlanCompared, Say
from holdfast.controller.state.model import Options
from holdfast.plan.plan import Action as PlanAction
from holdfast.plan.plan import Layers, Mesh, Op, Plan
from holdfast.plan.planned_step import PlannedStep
from holdfast.wire import types as t
from holdfast.wire.plans import encode_plan
from tests.controller.support.virtual import Virtual

PLANNED = 2.0
WHERE = "messages between stages 0 and 1: 500 ms of a step, planned 100 ms; a step would be 400 ms shorter"


def plan(dp: int = 8, planned: float | None = PLANNED) -> bytes:
    order = (PlanAction(Op.FORWARD, 0, 0), PlanAction(Op.BACKWARD, 0, 0))
    one = Plan("1f1b", Mesh.of(pp=1, dp=dp, tp=1), (Layers(0, 1, 0),), 1, (order,))
    return encode_plan(one, None if planned is None else PlannedStep(planned))


class Run:
    """A job of 8 ranks whose steps are given one by one."""

    def __init__(self, data: bytes | None, v: Virtual | None = None) -> None:
        self.v = v or training_with()
        self.number = self.v.job.best_step + 1
        self.said: list[Say] = []
        self.published(data)

    def published(self, data: bytes | None) -> None:
        if data is not None:
            self.v.feed(EventSeen("node0", t.PlanPublished("j1", self.v.job.generation, data)))

    def steps(self, seconds: Iterable[float]) -> list[str]:
        """Names of what is said meanwhile."""
        before = len(self.said)
        for took in seconds:
            self.v.now += took
            wall = int(self.v.instant.wall * 1e9)
            record = t.StepRecord(0, self.v.job.generation, self.number, wall, took, 2.0, 1, job="j1")
            self._heard(self.v.feed(FrameSeen("node0", t.Frame(1, wall, int(self.v.now * 1e9), steps=(record,)))))
            self.number += 1
        return [one.name for one in self.said[before:]]

    def looked(self, text: str = WHERE, explained: float = 0.0) -> None:
        self._heard(self.v.feed(PlanCompared("j1", self.v.job.generation, text, explained)))

    def _heard(self, actions: list[Action]) -> None:
        about = "slower-than-planned"
        self.said += [one for one in actions if isinstance(one, Say) and one.fields.get("kind") == about]

    @property
    def since(self) -> float | None:
        return self.v.brain.jobs.newest.plans.since


def always(seconds: float, count: int = 200) -> Iterator[float]:
    return repeat(seconds, count)


def test_it_begins_and_ends_at_its_limits_and_says_where() -> None:
    run = Run(plan())
    run.looked()
    assert run.steps(always(1.14 * PLANNED)) == [], "within 15 %"
    assert run.steps(always(1.16 * PLANNED, 25)) == [], "not yet the median of 50"
    assert run.steps(always(1.16 * PLANNED, 2)) == ["finding"]
    assert run.said[0].fields["text"] == f"steps take 2.32 s, planned 2 s (+16%): {WHERE}"
    began = run.since
    assert began == pytest.approx(run.v.instant.wall, abs=3.0)
    doc = job_doc(run.v.brain.jobs.newest, run.v.instant)  # whose ratio is of the newest 64 steps
    assert doc["planned"] == {"step_seconds": 2.0, "ratio": pytest.approx(1.14), "slower_since": began, "where": WHERE}
    assert doc["step_planned_seconds"] == 2.0
    assert run.steps(always(1.12 * PLANNED)) == [], "neither slower nor over: no flapping at the limit"
    assert run.steps(always(1.09 * PLANNED, 24)) == []
    assert run.steps(always(1.09 * PLANNED, 4)) == ["finding.ended"]
    assert run.since is None
    assert run.said[-1].fields["text"] == "steps take 2.18 s, planned 2 s (+9%)"
    doc = job_doc(run.v.brain.jobs.newest, run.v.instant)
    assert doc["planned"] == {"step_seconds": 2.0, "ratio": pytest.approx(1.12), "slower_since": None, "where": ""}
    assert run.v.incidents == [], "no incident, so no alert and nothing that pages"
    assert run.v.brain.c.book.counts == {"slower-than-planned": 1}
    assert not any(run.v.brain.c.history(name).recent(run.v.instant.wall, 1e9) for name in ("node0", "node1"))


def test_where_spans_say_nothing_it_waits_for_them_and_then_says_so() -> None:
    run = Run(plan())
    assert run.steps(always(1.5 * PLANNED, 10 + 49 + 50)) == [], "blame may still look"
    assert run.steps(always(1.5 * PLANNED, 1)) == ["finding"]
    assert run.said[0].fields["text"].endswith("(+50%): its spans do not say where")
    nowhere = Run(plan())
    nowhere.looked(text="")
    nowhere.steps(always(1.5 * PLANNED, 60))
    assert nowhere.said[0].fields["text"].endswith(": no kind of action exceeds its own plan by as much")


# --- what looks like it ----------------------------------------------------------------------------------------------


def test_first_steps() -> None:
    run = Run(plan())
    run.looked()
    assert run.steps([*always(9 * PLANNED, 10), *always(PLANNED, 26), *always(1.3 * PLANNED, 24)]) == []
    exact = Run(plan())
    exact.looked()
    assert exact.steps(always(1.3 * PLANNED, 59)) == []
    assert exact.steps(always(1.3 * PLANNED, 1)) == ["finding"], "10 of warm-up and 50 that count"


@pytest.mark.parametrize(
    ("what", "usual", "other", "every"),
    [("a checkpoint", 1.0, 4.0, 3), ("an evaluation", 1.1, 20.0, 10), ("a compilation", 1.0, 50.0, 25)],
)
def test_steps_that_do_more_than_others(what: str, usual: float, other: float, every: int) -> None:
    run = Run(plan())
    run.looked()
    one = [usual * PLANNED] * (every - 1) + [other * PLANNED]
    assert run.steps(islice(cycle(one), 300)) == [], what


def test_a_program_that_compiles_anew_for_a_while() -> None:
    run = Run(plan())
    run.looked()
    assert run.steps([*always(PLANNED), *always(3 * PLANNED, 24), *always(PLANNED)]) == []


@pytest.mark.parametrize("why", ["no plan", "other micro-batches", "another gpu"])
def test_nothing_was_planned_for_what_runs(why: str) -> None:
    """For all but the first, the trainer reports no prediction: tests/trainer/settings/test_planned.py."""
    run = Run(None if why == "no plan" else plan(planned=None))
    run.looked()
    assert run.steps(always(10 * PLANNED)) == []
    assert run.v.brain.jobs.newest.plans.planned is None
    doc = job_doc(run.v.brain.jobs.newest, run.v.instant)
    assert (doc["planned"], doc["step_planned_seconds"]) == (None, None)


def test_a_slow_rank_that_blame_names() -> None:
    run = Run(plan())
    run.looked(explained=0.5)
    assert run.steps(always(1.25 * PLANNED + 0.1)) == [], "but for the straggler it would take 2.1 s"
    run.looked(explained=0.2)
    assert run.steps(always(1.25 * PLANNED + 0.1, 1)) == ["finding"], "and here it would take 2.4 s"


def test_a_restart_of_the_job() -> None:
    """What an earlier generation's steps took says nothing about this one's, nor does its look."""
    run = Run(plan())
    run.looked()
    assert run.steps([*always(PLANNED, 10), *always(1.5 * PLANNED, 49)]) == []
    run.v.exit(0, code=1, error="ValueError")
    run.v.run(5.0)
    assert run.v.job.generation == 2
    run.number = run.v.job.best_step + 1
    run.published(plan())
    assert run.steps(always(5 * PLANNED, 10)) == []
    assert run.v.brain.jobs.newest.plans.where == ""
    run.looked()
    assert run.steps(always(1.5 * PLANNED, 49)) == []
    assert run.steps(always(1.5 * PLANNED, 1)) == ["finding"]


def test_another_number_of_ranks() -> None:
    run = Run(plan(dp=4))
    run.looked()
    assert run.steps(always(5 * PLANNED)) == [], "planned for 4 ranks, on 8 now"
    slow = Run(plan())
    slow.looked()
    slow.steps(always(1.5 * PLANNED))
    assert slow.since is not None
    slow.published(plan(planned=None))
    assert slow.steps(always(1.5 * PLANNED, 2)) == ["finding.ended"]
    assert "no plan of this number of ranks" in slow.said[-1].fields["text"]


def test_heavy_jitter() -> None:
    """Steps from 1 to 3.7 s: a median of 2.35 s of 50 may well be one of 2 s. Three times as steady it is not."""
    run = Run(plan())
    run.looked()
    rng = np.random.default_rng(7)
    wide = 1.175 * PLANNED + rng.permutation(np.linspace(-1.35, 1.35, 50))
    assert run.steps([*always(PLANNED, 10), *wide]) == []
    steady = Run(plan())
    steady.looked()
    narrow = 1.175 * PLANNED + (wide - 1.175 * PLANNED) / 3
    assert steady.steps([*always(PLANNED, 10), *narrow]) == ["finding"]


def test_it_can_be_left_out_and_its_limits_set() -> None:
    off = Run(plan(), training_with("slower-than-planned.action=off"))
    off.looked()
    assert off.steps(always(2 * PLANNED)) == []
    assert off.v.brain.c.book.counts == {}
    strict = Run(plan(), training_with("slower-than-planned.times=1.02", "slower-than-planned.steps=20"))
    strict.looked()
    assert strict.steps(always(1.03 * PLANNED, 30)) == ["finding"]
    assert strict.steps(always(1.01 * PLANNED, 11)) == ["finding.ended"], "the end is never above the begin"


def test_a_forged_plan_is_none() -> None:
    run = Run(b"forged")
    run.looked()
    assert run.steps(always(2 * PLANNED, 100)) == []


def training_with(*detectors: str) -> Virtual:
    """A job that is up, and makes no step by itself."""
    v = Virtual(options=Options(detectors=detectors))
    v.step_seconds = 1e9
    v.submit(nnodes=2)
    v.run(1.0)
    assert v.job.generation == 1
    return v
