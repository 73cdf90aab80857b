"""Where steps take longer than planned: the right kind of action, with the seconds that it costs.

The truth is another simulation: of the same job as planned, with the same random numbers.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.simulated_spans import Culprit, Job, simulate
from holdfast.diagnostics.blame.blame import analyse
from holdfast.diagnostics.blame.planned import Excess
from holdfast.diagnostics.blame.report import excesses_of
from holdfast.diagnostics.steps import graph as step_graph
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.span_table import SpanTable
from holdfast.plan.plan import Plan
from holdfast.plan.planned_step import PlannedStep
from holdfast.wire.plans import encode_plan

STEPS = 6
AS_PLANNED = Job(noise=0.005, load=0.0)
PLANNED = PlannedStep(
    1.0,
    forward=(0.010, 0.010),
    backward=(0.020, 0.020),
    tensor=(0.002, 0.002),
    message=0.001,
    replicas=(0.0055, 0.0055),
    optimizer=(0.006, 0.006),
)
WORLD = range(8)


def found(table: SpanTable, plan: Plan, planned: PlannedStep = PLANNED) -> list[Excess]:
    return excesses_of(table, JobShape("j", "j", ("a", "b"), 4, encode_plan(plan)), planned)


def seconds(table: SpanTable) -> float:
    """Mean of a step."""
    return float(table.end.max() - table.start.min()) * 1e-9 / STEPS


def everyone(what: str, share: float, ranks: range = WORLD) -> list[Culprit]:
    return [Culprit(rank, what, share) for rank in ranks]


@pytest.mark.parametrize(
    ("kind", "what", "job", "culprits"),
    [
        ("forward 0", "forward of stage 0", AS_PLANNED, everyone("forward", 0.4, range(4))),
        ("backward 1", "backward of stage 1", AS_PLANNED, everyone("backward", 0.4, range(4, 8))),
        ("messages 0-1", "messages between stages 0 and 1", replace(AS_PLANNED, message=0.006), []),
        ("replicas", "gathering and reducing over replicas", AS_PLANNED, everyone("reduce", 4.0)),
        ("optimizer", "the optimizer", replace(AS_PLANNED, optimizer=0.030), []),
        ("data", "waiting for data", replace(AS_PLANNED, load=0.030), []),
        ("rest", "what is no action of the plan", AS_PLANNED, everyone("between", 1000.0)),
    ],
)
def test_the_kind_that_costs_most_is_first_with_its_cost(
    kind: str, what: str, job: Job, culprits: list[Culprit]
) -> None:
    table, plan = simulate(job, culprits, STEPS, 1)
    truth = seconds(table) - seconds(simulate(AS_PLANNED, [], STEPS, 1)[0])
    assert truth > 0.01
    first, *others = found(table, plan)
    assert (first.kind, first.what) == (kind, what)
    assert first.exposed_s == pytest.approx(truth, rel=0.1)
    assert first.measured_s > first.planned_s
    assert sum(one.exposed_s for one in others) < 0.15 * truth


def test_tensor_parallelism() -> None:
    table, plan = simulate(replace(AS_PLANNED, all_reduce=0.004), [], STEPS, 1)
    planned = replace(PLANNED, replicas=(0.0205, 0.0205), optimizer=(0.009, 0.009))
    first, *others = found(table, plan, planned)
    assert first.what == "collectives of tensor parallelism"
    assert (first.measured_s, first.planned_s) == (pytest.approx(8 * 0.008, rel=0.05), pytest.approx(8 * 0.002))
    # What else is slower here, five times as long among replicas and once in the world, lies behind all computation.
    truth = seconds(table) - seconds(simulate(AS_PLANNED, [], STEPS, 1)[0]) - 6 * 0.003
    assert first.exposed_s == pytest.approx(truth, rel=0.1)
    assert sum(one.exposed_s for one in others) < 0.15 * first.exposed_s


def test_a_job_as_quick_as_planned_has_next_to_none() -> None:
    table, plan = simulate(AS_PLANNED, [], STEPS, 1)
    assert sum(one.exposed_s for one in found(table, plan)) < 0.02 * seconds(table)
    generous = replace(PLANNED, forward=(0.02, 0.02), backward=(0.04, 0.04))
    kinds = {one.kind for one in found(table, plan, generous)}
    assert not kinds & {"forward 0", "forward 1", "backward 0", "backward 1"}


def test_one_slow_rank_is_no_excess_of_its_kind() -> None:
    """Blame names it, with what it costs."""
    table, plan = simulate(AS_PLANNED, [Culprit(5, "forward", 0.5)], STEPS, 1)
    truth = seconds(table) - seconds(simulate(AS_PLANNED, [], STEPS, 1)[0])
    assert sum(one.exposed_s for one in found(table, plan)) < 0.1 * truth
    blame = analyse(step_graph.graphs(table, plan, 8), JobShape())
    assert blame is not None
    assert [one.rank for one in blame.culprits] == [5]


def test_what_other_work_hides_is_no_excess() -> None:
    """The last stage's forward goes on while the first stage does a backward and a forward, of twice its length."""
    table, plan = simulate(AS_PLANNED, everyone("forward", 0.8, range(4, 8)), STEPS, 1)
    truth = seconds(table) - seconds(simulate(AS_PLANNED, [], STEPS, 1)[0])
    (forward,) = [one for one in found(table, plan) if one.kind == "forward 1"]
    assert forward.measured_s - forward.planned_s == pytest.approx(8 * 0.008, rel=0.1)
    assert forward.exposed_s == pytest.approx(truth, rel=0.15)
    assert forward.exposed_s < 0.4 * (forward.measured_s - forward.planned_s)


def test_without_a_plan_or_spans_there_is_nothing() -> None:
    table, plan = simulate(AS_PLANNED, [], 2, 1)
    assert excesses_of(table, JobShape(), PLANNED) == []
    assert found(table.take(table.step < 0), plan) == []
    bare = PlannedStep(1.0)  # says nothing of its kinds: all that is measured exceeds it
    assert {"forward 0", "backward 1"} <= {one.kind for one in found(table, plan, bare)}
