"""Blame of a running job: what it counts, the ranks it reports, and that it looks at every step once."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.simulated_spans import Culprit, Job, simulate
from holdfast.controller.detectors.base.table import Tuning
from holdfast.controller.http.metrics_text import blame_families
from holdfast.controller.shell.blame_watch import BlameTotals, BlameWatch, Due, _look, _steps_of, plan_compared
from holdfast.controller.shell.health_facts import facts
from holdfast.controller.shell.job_report import job_doc
from holdfast.controller.shell.shell import Shell, now
from holdfast.controller.state.events import Found
from holdfast.controller.state.model import Job as TrainingJob
from holdfast.controller.state.model import JobSpec
from holdfast.diagnostics.blame.planned import Excess
from holdfast.diagnostics.steps import span_table
from holdfast.plan.planned_step import PlannedStep
from holdfast.wire import messages as msg
from holdfast.wire import span_rows
from holdfast.wire import types as t
from holdfast.wire.plans import decode_plan, encode_plan
from tests.controller.support.stage import Recording, make_shell, with_job


def training(folder: Path, culprits: list[Culprit], steps: int) -> tuple[Shell, BlameWatch]:
    shell = make_shell(folder)
    table, plan = simulate(Job(), culprits, steps, 1)
    spec = JobSpec("j1", "train", msg.Program("x"), 2, 4)
    job = TrainingJob(spec, generation=1, nodes=["node0", "node1"], life_first=0)
    with_job(shell.brain, job).c.plan = t.PlanPublished("j1", 1, encode_plan(plan))
    shell.listen("j1")
    for spans in span_table.encode(table, "j1", 1):
        shell.spans.add("node0", msg.Spans((spans,), 0, 1000))
    return shell, BlameWatch(shell, Tuning(["straggler.windows=1"]))


def look(shell: Shell, watch: BlameWatch) -> bool:
    taken = watch.due(shell.brain.jobs.newest)
    if taken is None:
        return False
    seen = _look(taken)
    assert seen.blame is not None
    assert seen.seconds > 0
    watch.take(seen.blame, taken.shape, taken.generation, seen.beginning)
    return True


def test_who_slows_the_job_down_is_found_once_and_counted(tmp_path: Path) -> None:
    shell, watch = training(tmp_path, [Culprit(5, "forward", 0.3)], 12)
    assert look(shell, watch)
    assert not look(shell, watch), "no step is looked at twice"
    assert isinstance(shell.brain, Recording)
    (found,) = (event.finding for event in shell.brain.of(Found))
    assert (found.kind, found.subject, found.node, found.rank) == ("straggler", "rank5", "node1", 5)
    assert found.evidence["slowness"] == "compute"
    assert "5 (node node1, GPU 1): forward of stage 1" in found.text
    (incident,) = shell.brain.c.book.incidents.values()
    assert (incident.action, incident.live) == ("alert", False)
    brief = watch.found("j1")
    assert brief is not None
    (part,) = [one for one in brief["account"]["parts"] if one["culprit"] >= 0]
    slow = facts(shell.brain.jobs.newest, job_doc(shell.brain.jobs.newest, now()), brief, now()).slow
    assert [(one.rank, one.cost) for one in slow] == [(5, part["share"])], "health, incident and account agree"
    cost, step = (f"{figure} {brief['account']['unit']}" for figure in (part["figure"], brief["account"]["step"]))
    assert f"cost the job {cost} of {step} per step" in found.text
    assert part["name"] == "waiting for rank 5"
    assert incident.phase == "ongoing"
    lost = brief["steps"] * part["seconds"]
    assert incident.cause.evidence["lost_s"] == pytest.approx(lost)
    assert incident.reason.startswith(f"ongoing: it has cost {lost:.3g} s, {part['share']:.1%} of")
    figures = watch.figures("j1")
    assert figures["self_ratio"][5] > 1.05
    assert figures["induced_s"][5] > figures["victim_s"][5]
    nodes = {"nodes": ["node0", "node1"], "rank": list(range(8)), "node": [r // 4 for r in range(8)]}
    reported = {"ranks": nodes, "blame": figures, "job": {"name": "train", "nproc_per_node": 4}}
    text = "".join(blame_families([reported]))
    assert '\nholdfast_gpu_self_slowdown_ratio{job="train",node="node1",gpu="1",rank="5"} 1.' in text
    assert "# TYPE holdfast_gpu_induced_wait_seconds_total counter" in text
    shell.journal.close()


def test_a_job_with_a_plan_is_compared_and_its_brain_is_given_the_worst(tmp_path: Path) -> None:
    """Messages take 1 ms, planned 0.1; rank 5 is slow besides, which explains its part."""
    shell, watch = training(tmp_path, [Culprit(5, "forward", 0.3)], 12)
    brain = shell.brain.jobs.newest
    plan = decode_plan(brain.c.plan.data) if brain.c.plan is not None else None
    assert plan is not None
    quick = PlannedStep(0.3, (0.01,) * 2, (0.02,) * 2, (0.002,) * 2, 1e-4, (0.006,) * 2, (0.006,) * 2)
    brain.c.plan = t.PlanPublished("j1", 1, encode_plan(plan, quick))
    taken = watch.due(brain)
    assert taken is not None
    seen = _look(taken)
    assert seen.blame is not None
    assert seen.excesses is not None
    event = plan_compared("j1", 1, seen.excesses, seen.blame)
    assert event.explained_s == pytest.approx(sum(one.cost_s for one in seen.blame.culprits))
    assert event.explained_s > 0
    assert event.text.startswith("messages between stages 0 and 1: ")
    assert event.text.endswith(" shorter")
    assert plan_compared("j1", 1, [], seen.blame).text == ""
    tiny = Excess("data", 1.0, 0.0, 0.009 * seen.blame.step_s)
    assert plan_compared("j1", 1, [tiny], seen.blame).text == "", "less than a hundredth is no answer"
    shell.journal.close()


def test_what_rank_0_does_by_design_sends_no_alert_also_after_a_restart_of_the_controller(tmp_path: Path) -> None:
    """60 ms more in every step since the first."""
    shell, watch = training(tmp_path, [Culprit(0, "optimizer", 12.0)], 40)
    assert look(shell, watch)
    assert isinstance(shell.brain, Recording)
    (found,) = (event.finding for event in shell.brain.of(Found))
    assert (found.subject, found.severity, found.evidence["by_design"]) == ("rank0", t.Severity.INFO, True)
    assert shell.brain.c.book.incidents == {}
    brief = watch.found("j1")
    assert brief is not None
    assert [(c["rank"], c["by_design"]) for c in brief["culprits"]] == [(0, True)]
    again = BlameWatch(shell, Tuning(["straggler.windows=1"]))
    again.restore(shell.journal.entities())
    assert look(shell, again)
    assert [event.finding.severity for event in shell.brain.of(Found)] == [t.Severity.INFO] * 2
    broken = BlameWatch(shell, Tuning())
    broken.restore([("extras", "newest", {"job": "j1", "first": None})])
    assert not broken.of("j1").extras.looked
    shell.journal.close()


def test_nothing_is_said_of_a_clean_job_nor_of_few_steps(tmp_path: Path) -> None:
    for steps, looked in ((12, True), (6, False)):
        shell, watch = training(tmp_path / str(steps), [], steps)
        assert look(shell, watch) == looked
        assert isinstance(shell.brain, Recording)
        assert shell.brain.of(Found) == []
        shell.journal.close()


def test_only_who_is_named_again_is_reported() -> None:
    table, plan = simulate(Job(), [Culprit(3, "compute", 0.3)], 10, 1)
    from holdfast.diagnostics.blame.blame import analyse
    from holdfast.diagnostics.steps import graph as step_graph
    from holdfast.diagnostics.steps.job_shape import JobShape

    blame = analyse(step_graph.graphs(table, plan, 8), JobShape())
    assert blame is not None
    counted = BlameTotals()
    counted.add("j1", blame)
    assert counted.stragglers(blame, 2, 1.05, 0.01) == []
    assert [c.rank for c in counted.stragglers(blame, 2, 1.05, 0.01)] == [3]
    assert counted.stragglers(blame, 2, 1.05, 0.01) == [], "and once"
    assert BlameTotals().stragglers(blame, 1, 1.5, 0.01) == [], "below the ratio"
    assert BlameTotals().stragglers(blame, 1, 1.05, 0.9) == [], "below the cost"
    induced = counted.induced_s[3]
    counted.add("j1", blame)
    assert counted.induced_s[3] == pytest.approx(2 * induced)
    counted.add("j2", blame)
    assert counted.induced_s[3] == pytest.approx(induced), "another job begins at nothing"


def test_a_new_generation_is_looked_at_afresh(tmp_path: Path) -> None:
    shell, watch = training(tmp_path, [Culprit(5, "forward", 0.3)], 12)
    assert look(shell, watch)
    assert watch.of("j1").counted.streaks == {(5, "compute"): 1}
    assert shell.brain.jobs.newest.c.job is not None
    shell.brain.jobs.newest.c.job.generation = 2
    watch.due(shell.brain.jobs.newest)
    assert watch.of("j1").counted.streaks == {}


def test_what_cannot_be_analysed_ends_nothing() -> None:
    from holdfast.diagnostics.steps.job_shape import JobShape

    names = ("", "forward")
    rows = span_rows.pack(span_rows.ROW.pack(0, 9, 3, 0, 1, 0, 1, 0, 0, 0, 0, -1))
    parts = [(0, msg.WorkerSpans(0, 1, 1, 0, 1, 1, names, rows))]
    blame = _look(Due(parts, 0, 5, JobShape("j1"), 1, True)).blame
    assert blame is None or blame.culprits == []


@pytest.mark.parametrize(
    ("seconds", "steps"), [([], 64), ([0.0] * 9, 64), ([2.0] * 9, 64), ([0.1] * 9, 100), ([0.001] * 9, 1024)]
)
def test_of_short_steps_it_looks_at_more(seconds: list[float], steps: int) -> None:
    assert _steps_of(seconds) == steps


def test_run_waits_for_steps(tmp_path: Path) -> None:
    async def story() -> None:
        shell, watch = training(tmp_path, [], 2)
        running = asyncio.create_task(watch.run())
        await asyncio.sleep(0)
        running.cancel()
        shell.journal.close()

    asyncio.run(story())
