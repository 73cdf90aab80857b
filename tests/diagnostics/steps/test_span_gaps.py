"""Spans that are missing, of a rank or of some steps: every view shows what is known, a dash for the rest, and no
traceback."""

import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulated_spans import Culprit, Job, simulate
from holdfast.base.errors import UsageError
from holdfast.base.json_text import encode
from holdfast.cli.look import blame as blame_view
from holdfast.cli.look import heat_view
from holdfast.cli.main import main
from holdfast.controller.shell.blame_watch import BlameTotals
from holdfast.diagnostics.blame import report as blame_report
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.span_table import SpanTable
from holdfast.diagnostics.timeline import timeline
from holdfast.diagnostics.timeline.lanes import lanes
from holdfast.wire.plans import encode_plan

MESHES = st.sampled_from([(1, 4, 1), (2, 2, 2), (4, 2, 1), (1, 8, 1), (1, 1, 1)])


def without(table: SpanTable, how: str, seed: int) -> SpanTable:
    """The table with some spans gone."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(int(table.rank.max()) + 1))
    of_rank = table.rank == rank
    gone = {
        "a rank": of_rank,
        "a rank from its second step on": of_rank & (table.step > 0),
        "a rank after three spans": of_rank & (np.cumsum(of_rank) > 3),
        "one span in a hundred": rng.random(len(table)) < 0.01,
        "all but one rank": ~of_rank,
    }[how]
    return table.take(~gone)


@settings(max_examples=30, deadline=None)
@given(
    MESHES,
    st.integers(1, 5),
    st.sampled_from(
        ["a rank", "a rank from its second step on", "a rank after three spans", "one span in a hundred",
         "all but one rank"]
    ),
    st.booleans(),
    st.booleans(),
    st.integers(0, 99),
)  # fmt: skip
def test_whatever_is_missing_every_view_shows_the_rest(
    mesh: tuple[int, int, int], steps: int, how: str, planned: bool, timed: bool, seed: int
) -> None:
    table, plan = simulate(Job(*mesh, micro_batches=2, measures_cpu=timed), [Culprit(0, "compute", 0.4)], steps, seed)
    shape = JobShape("j1", "train", ("n0", "n1"), max(plan.mesh.world // 2, 1), encode_plan(plan) if planned else b"")
    table = without(table, how, seed)
    try:
        report, heat = blame_report.report(table, shape), blame_report.heat_report(table, shape)
        trace, columns = io.StringIO(), lanes(table, shape)
    except UsageError:
        return  # one line that says so
    timeline.write(table, shape, trace)
    json.loads(trace.getvalue())
    for found in (report, heat, columns):
        assert json.loads(encode(found)) == json.loads(json.dumps(found, allow_nan=False)), "no NaN in it"
    blame_view.show(report)
    heat_view.show(heat)


def test_a_rank_without_spans_comes_last_with_dashes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a rank that ended before the steps that are asked for: `blame` on files, and as a user calls it."""
    pytest.importorskip("pyarrow")
    from holdfast.diagnostics.files import span_files

    monkeypatch.setenv("COLUMNS", "120")
    table, plan = simulate(Job(), [Culprit(5, "forward", 0.4)], 12, 1)
    shape = JobShape("j1", "train", ("n0", "n1"), 4, encode_plan(plan))
    span_files.write(table.take((table.rank != 4) | (table.step < 2)), shape, tmp_path / "1.parquet")
    assert main(["blame", str(tmp_path), "--steps", "4:11"]) == 0
    out = capsys.readouterr().out
    assert "compute: rank 5" in out
    assert "spans missing of ranks 4" in out
    assert "ms = " in out
    assert " compute + " in out
    assert " communication that nothing hides + " in out
    rows = out.split("COMPUTE/PEERS")[1].splitlines()[1:]
    assert rows[0].split()[0] == "5"
    assert rows[-1].split() == ["4", *"------", "0.0", "ms", "0.0", "ms", "-"]
    for more in (["--heat"], ["--json"], ["--heat", "--json"]):
        assert main(["blame", str(tmp_path), "--steps", "4:11", *more]) == 0
    assert main(["timeline", str(tmp_path), "--steps", "4:11", "-o", str(tmp_path / "trace.json")]) == 0


def test_a_rank_without_spans_spoils_no_counter() -> None:
    """NaN in a counter would stay: of a rank without spans nothing is added."""
    table, plan = simulate(Job(), [Culprit(5, "forward", 0.4)], 12, 1)
    shape = JobShape("j1", "train", ("n0", "n1"), 4, encode_plan(plan))
    counted = BlameTotals()
    for part in (table, table.take(table.rank != 4), table):
        blame = blame_report.blame_of(part, shape)
        assert blame is not None
        assert all(math.isfinite(c.induced_s) for c in blame.culprits)
        counted.add("j1", blame)
    assert all(map(math.isfinite, [*counted.victim_s.values(), *counted.induced_s.values()]))
    assert counted.victim_s[4] > 0
