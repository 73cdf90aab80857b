"""Traces: every rank, action and arrow is in there, in the form that Perfetto reads."""

import io
import json
from pathlib import Path

import pytest

from benchmarks.simulated_spans import Job, simulate
from holdfast.cli.main import main
from holdfast.diagnostics import timeline
from holdfast.diagnostics.job_shape import JobShape
from holdfast.errors import UsageError
from holdfast.plan import RECEIVES, SPANS
from holdfast.wire_plan import encode_plan

JOB = Job(2, 2, 2, micro_batches=3)


def traced() -> tuple[list[dict], int]:
    table, plan = simulate(JOB, [], 2, 1)
    shape = JobShape("j1", "train", ("n0", "n1"), 4, encode_plan(plan))
    out = io.StringIO()
    count = timeline.write(table, shape, out)
    events = json.loads(out.getvalue())["traceEvents"]
    assert len(events) == count
    return events, len(table)


def test_every_span_is_a_slice_of_its_rank_and_node() -> None:
    events, spans = traced()
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) == spans
    assert {(e["pid"], e["tid"]) for e in slices} == {(rank // 4, rank) for rank in range(8)}
    assert min(e["ts"] for e in slices) == 0
    assert all(e["dur"] >= 0 for e in slices)
    actions = {e["args"]["action"] for e in slices if "action" in e["args"] and e["tid"] == 0}
    assert {"0F0", "0F2", "0B1", "0SEND_F1", "0RECV_B2", "0LOAD", "0STEP"} <= actions
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {rank: f"rank {rank}" for rank in range(8)}
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["n0", "n1"]


def test_every_message_and_every_wait_for_the_last_has_its_arrow() -> None:
    events, _ = traced()
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys()
    receives = {SPANS[op] for op in RECEIVES}
    assert sum(e["name"] == "message" for e in starts.values()) == sum(
        e["ph"] == "X" and e["name"] in receives for e in events
    )
    for number, start in starts.items():
        end = ends[number]
        assert start["ts"] < end["ts"]
        assert start["tid"] != end["tid"]
        for edge, names in ((start, ("send_", "")), (end, ("recv_", ""))):
            around = [
                e["name"]
                for e in events
                if e["ph"] == "X" and e["tid"] == edge["tid"] and e["ts"] <= edge["ts"] <= e["ts"] + e["dur"]
            ]
            wanted = names[0] if start["name"] == "message" else ":"
            assert any(wanted in name for name in around), (edge, around)


def test_no_spans_is_said() -> None:
    table, _ = simulate(JOB, [], 1, 1)
    with pytest.raises(UsageError, match="no spans"):
        timeline.write(table.of_steps(7, 9), JobShape(), io.StringIO())


def test_commands_read_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow")
    from benchmarks.simulated_spans import Culprit
    from holdfast.diagnostics import span_files

    table, plan = simulate(JOB, [Culprit(6, "forward", 0.3)], 20, 1)
    shape = JobShape("j1", "train", ("n0", "n1"), 4, encode_plan(plan))
    span_files.write(table.of_steps(0, 9), shape, tmp_path / "1.parquet")
    span_files.write(table.of_steps(10, 19), shape, tmp_path / "2.parquet")
    assert main(["blame", str(tmp_path), "--steps", "5:14", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["first"], found["last"], found["steps"]) == (5, 14, 10)
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
    assert "no file of spans" in capsys.readouterr().err
