"""Traces: every rank, action and arrow is in there, in the form that Perfetto reads."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.simulated_spans import Job, simulate
from holdfast.base.errors import UsageError
from holdfast.cli.main import main
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.timeline import timeline
from holdfast.wire.plans import encode_plan
from tests.diagnostics.support import trace_processor as tp

JOB = Job(2, 2, 2, micro_batches=3)


def test_every_rank_action_and_arrow_is_found_by_queries(tmp_path: Path) -> None:
    table, plan = simulate(JOB, [], 2, 1)
    path = tmp_path / "trace.json"
    with path.open("w") as out:
        timeline.write(table, JobShape("j1", "train", ("n0", "n1"), 4, encode_plan(plan)), out)
    tp.check(tp.Importer(path), table, plan, ["n0", "n1"])


@pytest.mark.slow
def test_the_trace_opens_in_perfetto_itself(tmp_path: Path) -> None:
    """With all that there is: messages, collectives, rows of a rank's own for what lies across, collections."""
    pytest.importorskip("playwright")
    from tests.browser import chromium
    from tests.diagnostics.support.perfetto_ui import perfetto

    table, plan = simulate(JOB, [], 2, 1)
    path, across = tmp_path / "trace.json", tmp_path / "across.json"
    shape = JobShape("j1", "train", ("n0", "n1"), 4, encode_plan(plan))
    with path.open("w") as out:
        timeline.write(table, shape, out)
    table.end[table.kind == table.kinds.index("load")] += 2_000_000  # into the forward
    with across.open("w") as out:
        timeline.write(table, shape, out)
    with chromium() as browser:
        with perfetto(browser, path) as real:
            tp.check(real, table, plan, ["n0", "n1"])
        ours = tp.Importer(across)
        with perfetto(browser, across) as real:
            for sql in (tp.ERRORS, tp.RANKS, tp.NODES, tp.SLICES, tp.ARROWS):
                assert sorted(map(str, real.query(sql))) == sorted(map(str, ours.query(sql)))


def test_what_lies_across_another_span_has_a_row_of_its_own(tmp_path: Path) -> None:
    """As what a GPU does beside its host. Perfetto drops slices that overlap in one row."""
    table, plan = simulate(Job(1, 2, 1, micro_batches=1), [], 1, 1)
    loads = np.flatnonzero(table.kind == table.kinds.index("load"))
    table.end[loads] += 2_000_000  # into the forward
    path = tmp_path / "trace.json"
    with path.open("w") as out:
        timeline.write(table, JobShape("j1", "train", ("n0",), 2, encode_plan(plan)), out)
    trace = tp.Importer(path)
    assert trace.query(tp.ERRORS) == []
    assert len(trace.query(tp.SLICES)) == len(table)
    names = [row["name"] for row in trace.query(tp.RANKS)]
    assert names == ["rank 0", "rank 0 (2)", "rank 1", "rank 1 (2)"]


def test_a_message_that_came_before_it_was_sent_has_no_arrow(tmp_path: Path) -> None:
    """Clocks of two hosts that are off by more than a message takes."""
    table, plan = simulate(JOB, [], 1, 1)
    early = np.flatnonzero(table.rank >= 4)
    table.start[early] -= 50_000_000
    table.end[early] -= 50_000_000
    path = tmp_path / "trace.json"
    with path.open("w") as out:
        timeline.write(table, JobShape("j1", "train", ("n0", "n1"), 4, encode_plan(plan)), out)
    trace = tp.Importer(path)
    assert trace.query(tp.ERRORS) == []
    sent = {row["sent"] for row in trace.query(tp.ARROWS)}
    assert "send_backward" in sent
    assert "send_forward" not in sent


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda events: events[-1].pop("bp"), "bp"),
        (lambda events: [e.update(tid=99) for e in events if e["ph"] == "s"], "flow_no_enclosing_slice"),
        (lambda events: [e.update(ts=1e9) for e in events if e["ph"] == "f"], "flow_outside_of_its_slice"),
        (lambda events: [e.update(id=1) for e in events if e["ph"] in "sf"], "flow_duplicate_id"),
        (lambda events: [e.update(dur=e["dur"] * 5) for e in events if e["ph"] == "X"], "overlapping"),
    ],
)
def test_the_check_finds_what_an_importer_drops(tmp_path: Path, spoil: Callable[[Any], Any], said: str) -> None:
    table, plan = simulate(JOB, [], 1, 1)
    events = list(timeline.events(table, JobShape("j1", "train", ("n0", "n1"), 4, encode_plan(plan))))
    spoil(events)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    try:
        found = str(tp.Importer(path).query(tp.ERRORS))
    except (AssertionError, KeyError) as error:
        found = repr(error)
    assert said in found


def test_no_spans_is_said() -> None:
    table, _ = simulate(JOB, [], 1, 1)
    with pytest.raises(UsageError, match="no spans"):
        timeline.write(table.of_steps(7, 9), JobShape(), io.StringIO())


def test_commands_read_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    from benchmarks.simulated_spans import Culprit
    from holdfast.diagnostics.files import span_files

    table, plan = simulate(JOB, [Culprit(6, "forward", 0.3)], 120, 1)
    shape = JobShape("j1", "train", ("n0", "n1"), 4, encode_plan(plan))
    span_files.write(table.of_steps(0, 59), shape, tmp_path / "1.parquet")
    span_files.write(table.of_steps(60, 119), shape, tmp_path / "2.parquet")
    assert main(["blame", str(tmp_path), "--steps", "30:89", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["first"], found["last"], found["steps"]) == (30, 89, 60)
    assert [(c["rank"], c["node"], c["kind"]) for c in found["culprits"]] == [(6, "n1", "compute")]
    assert found["culprits"][0]["what_if_s"] < found["step_s"]
    assert main(["blame", str(tmp_path / "1.parquet")]) == 0
    out = capsys.readouterr().out
    assert "compute: rank 6 (node n1, GPU 2): forward of stage 1" in out
    trace = tmp_path / "trace.json"
    assert main(["timeline", str(tmp_path), "--steps", "3", "-o", str(trace)]) == 0
    slices = [e for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    assert {e["args"]["step"] for e in slices} == {3}


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--steps", "x"], "write A:B"),
        (["--steps", "9:3"], "must not come after"),
        ([], "no .parquet file"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], said: str) -> None:
    pytest.importorskip("pyarrow")
    for command in ("blame", "timeline"):
        assert main([command, str(tmp_path), *argv]) == 2
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == 1


def test_a_file_of_something_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "x.parquet").write_text("nonsense")
    assert main(["blame", str(tmp_path)]) == 2
    assert "not a file of spans" in capsys.readouterr().err
