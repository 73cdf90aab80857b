"""Heat maps: seconds and ratios match the scenario."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.simulated_spans import Culprit, Job, simulate
from holdfast.base.errors import UsageError
from holdfast.cli.main import main
from holdfast.diagnostics.blame import report as blame_report
from holdfast.diagnostics.blame.heat import MOST_RANKS, Heat, heat
from holdfast.diagnostics.steps import graph as step_graph
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.wire.plans import encode_plan

SHAPE = JobShape("j1", "train", ("n0", "n1"), 4)


def made(job: Job, culprits: list[Culprit], garbage: np.ndarray | None = None) -> Heat:
    table, plan = simulate(job, culprits, 10, 1)
    found = heat(list(step_graph.graphs(table, plan, plan.mesh.world)), SHAPE, garbage)
    assert found is not None
    return found


def test_rank_by_phase() -> None:
    found = made(Job(), [Culprit(5, "forward", 0.2), Culprit(2, "load", 0.5)])
    assert found.ranks.tolist() == list(range(8))
    for phase in ("forward", "backward", "load", "optimizer", "other", "transfer", "wait"):
        assert phase in found.phases
    ratio = {phase: found.ratio[:, p] for p, phase in enumerate(found.phases)}
    assert ratio["forward"][5] == pytest.approx(1.2, abs=0.03)
    assert ratio["load"][2] == pytest.approx(1.5, abs=0.05)
    assert np.abs(ratio["backward"] - 1).max() < 0.05
    assert np.isnan(ratio["wait"]).all()
    seconds = {phase: found.seconds[:, p] for p, phase in enumerate(found.phases)}
    assert seconds["forward"][5] == pytest.approx(8 * 0.012, rel=0.05)
    assert seconds["forward"][4] == pytest.approx(8 * 0.010, rel=0.05)
    assert seconds["wait"][5] == seconds["wait"][4:].min(), "the rank waited for waits least of its stage"


def test_node_by_step() -> None:
    found = made(Job(), [Culprit(5, "compute", 0.3)])
    assert found.nodes == ("n0", "n1")
    assert found.by_step.shape == (2, len(found.steps))
    assert (found.by_step[1] > 1.15).all()
    assert (found.by_step[0] < 1.1).all()


def test_the_worst_ranks_by_step_are_those_that_are_slow_in_most_steps() -> None:
    found = made(Job(), [Culprit(5, "compute", 0.3), Culprit(2, "compute", 0.1)])
    assert found.worst.tolist()[:2] == [5, 2]
    assert sorted(found.worst.tolist()) == list(range(8))
    assert found.worst_by_step.shape == (8, len(found.steps))
    assert found.worst_by_step[0] == pytest.approx(found.by_step[1])
    assert np.median(found.worst_by_step[1]) == pytest.approx(1.1, abs=0.05)
    many = made(Job(pp=2, dp=32, tp=2), [Culprit(77, "compute", 0.3)])
    assert len(many.worst) == MOST_RANKS
    assert many.worst[0] == 77


def test_a_rank_that_is_missing_is_not_known_and_hides_no_other() -> None:
    table, plan = simulate(Job(), [Culprit(5, "compute", 0.3)], 3, 1)
    found = heat(list(step_graph.graphs(table.take(table.rank != 4), plan, 8)), SHAPE)
    assert found is not None
    assert np.isnan(found.seconds[4]).all()
    assert (found.by_step[1] > 1.1).all()
    assert heat([], SHAPE) is None


def test_collections_are_a_phase_where_there_were_any() -> None:
    garbage = np.arange(8) * 0.001
    found = made(Job(), [], garbage)
    assert found.phases[-1] == "gc"
    assert found.seconds[:, -1].tolist() == garbage.tolist()


def test_as_data_and_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    from holdfast.diagnostics.files import span_files

    table, plan = simulate(Job(), [Culprit(6, "forward", 0.4)], 12, 1)
    span_files.write(table, JobShape("j1", "train", ("n0", "n1"), 4, encode_plan(plan)), tmp_path / "1.parquet")
    assert main(["blame", str(tmp_path), "--heat", "--steps", "2:9", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["first"], found["last"], found["steps"]) == (2, 9, list(range(2, 10)))
    assert found["node_of"] == ["n0"] * 4 + ["n1"] * 4
    assert {len(row) for row in found["seconds"]} == {len(found["phases"])}
    assert found["ratio"][6][found["phases"].index("wait")] is None
    monkeypatch.setenv("COLUMNS", "120")  # or a figure may go on in the next line
    assert main(["blame", str(tmp_path), "--heat"]) == 0
    out = capsys.readouterr().out
    (row,) = (line for line in out.splitlines() if line.lstrip().startswith("6 "))
    assert " +4" in row
    (strip,) = (line for line in out.splitlines() if line.startswith("n1"))
    assert "*" in strip


def test_nothing_to_go_by_is_one_line() -> None:
    table, _ = simulate(Job(), [], 1, 1)
    with pytest.raises(UsageError, match="no step"):
        blame_report.heat_report(table.of_steps(7, 9), SHAPE)
