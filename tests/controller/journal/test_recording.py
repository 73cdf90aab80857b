"""Lines of recordings, of this version and of others."""

import base64
import json
from pathlib import Path
from typing import Any, get_args

import pytest

from holdfast.base.errors import UsageError
from holdfast.controller.journal.recording import Recorder, Reported, Start, compared, did, read
from holdfast.controller.state import events as e
from holdfast.controller.state.incidents import Finding
from holdfast.controller.state.model import Instant, JobSpec, Options
from holdfast.wire import codec as wire
from holdfast.wire import messages as msg
from holdfast.wire import types as t

EVENTS: tuple[e.BrainEvent, ...] = (
    e.AgentJoined(msg.Hello(t.Identity("n", "n", "n-1", slots=4), ())),
    e.AgentLeft("n", "n-1"),
    e.FrameSeen("n", t.Frame(1, 2, 3)),
    e.EventSeen("n", t.WorkerExited("j", 1, 0, 7, 8, 1, 0)),
    e.ResultSeen("n", msg.CommandResult("b1-1", True, "", {})),
    e.Found(Finding(t.FindingKind.WORKER_HANG, t.Severity.CRITICAL, "rank3", "text", 1.0, 2.0, evidence={"a": [1]})),
    e.JobSubmitted(JobSpec("j", "job", msg.Program("train.py", ("-v",)), 2, 4, faults=("kill@5",), node_counts=(1,))),
    e.StopRequested(3.0),
    e.RestartRequested(),
    e.FaultRequested("kill@5:rank1"),
    e.CheckpointRequested(),
    e.DiagnoseRequested("d1", ("n",), "full", ("gemm",), True),
    e.StacksRequested(),
    e.CordonRequested("n", True),
    e.EvictRequested("n"),
    e.StragglersSeen("j", 10.0, {"rank3 straggler compute": 0.5}),
    e.PlanCompared("j", 2, "forward of stage 1", 0.25),
    e.Tick(0.5, 0.25),
)


def written(path: Path, *events: e.BrainEvent) -> list[dict[str, Any]]:
    recorder = Recorder(path, Start("b", Options(), [], [], Instant(1.0, 2.0)))
    for event in events:
        recorder.add(event, Instant(3.0, 4.0), [])
    recorder.close()
    return [json.loads(line) for line in path.read_text().splitlines()]


def reread(path: Path, docs: list[dict[str, Any]]) -> list[e.BrainEvent]:
    path.write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    return [one.event for one in read(path) if isinstance(one, Reported)]


def test_every_event_comes_back_as_it_was(tmp_path: Path) -> None:
    assert {type(event) for event in EVENTS} == set(get_args(e.BrainEvent))
    docs = written(tmp_path / "r", *EVENTS)
    assert reread(tmp_path / "r", docs) == list(EVENTS)


@pytest.mark.parametrize("suffix", ["Asked", "Requested"])
def test_the_suffix_of_a_request_does_not_matter(suffix: str, tmp_path: Path) -> None:
    docs = written(tmp_path / "r", *EVENTS)
    for doc in docs[1:]:
        if doc["event"].endswith(("Asked", "Requested")):
            doc["event"] = doc["event"].removesuffix("Asked").removesuffix("Requested") + suffix
    assert sum(doc.get("event", "").endswith(suffix) for doc in docs) == 8
    assert reread(tmp_path / "r", docs) == list(EVENTS)


def test_fields_that_only_another_version_has_are_ignored(tmp_path: Path) -> None:
    docs = written(tmp_path / "r", *EVENTS)
    docs[0]["options"]["colour"] = "red"
    docs[0]["steps"] = [{"step": 1, "loss": 2.0, "seconds": 0.1, "tokens": 5, "at": 3.0, "generation": 1, "new": 1}]
    for doc in docs[1:]:
        doc["data"]["colour"] = "red"
        for inner in ("job", "finding"):
            if isinstance(doc["data"].get(inner), dict):
                doc["data"][inner]["colour"] = "red"
        if isinstance(doc["data"].get("job"), dict):
            doc["data"]["job"]["spec"]["colour"] = doc["data"]["job"]["spec"]["program"]["colour"] = "red"
    assert reread(tmp_path / "r", docs) == list(EVENTS)
    start = next(read(tmp_path / "r"))
    assert isinstance(start, Start)
    assert (start.options, [row.step for row in start.steps]) == (Options(), [1])


def test_fields_that_another_version_lacks_have_their_default_or_are_empty(tmp_path: Path) -> None:
    docs = written(
        tmp_path / "r",
        e.StopRequested(3.0),
        e.DiagnoseRequested("d1", suite="full"),
        e.CordonRequested("n", True),
        e.Tick(1.0),
    )
    docs[1]["data"] = {}
    del docs[2]["data"]["suite"], docs[3]["data"]["on"], docs[4]["data"]["lag"]
    assert reread(tmp_path / "r", docs) == [
        e.StopRequested(0.0), e.DiagnoseRequested("d1"), e.CordonRequested("n", False), e.Tick(),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "broken",
    [
        {"event": "Asked"},
        {"event": "Nothing"},
        {"data": None},
        {"did": 5},
        {"did": ["record incident i1 0123abcd {no json}"]},
        {"event": "FrameSeen", "data": {"node": "n"}},
        {"event": "FrameSeen", "data": {"node": "n", "wire": base64.b64encode(b"\xff").decode()}},
        {"event": "JobSubmitted", "data": {"job": {}}},
        {"event": "Found", "data": {"finding": {"kind": "worker-hang"}}},
    ],
)
def test_what_is_no_event_names_its_line(broken: dict[str, Any], tmp_path: Path) -> None:
    docs = written(tmp_path / "r", e.StopRequested(3.0), e.Tick())
    docs[1].update(broken)
    with pytest.raises(UsageError, match="line 2: not a line of a recording"):
        reread(tmp_path / "r", docs)


def test_a_recording_of_a_later_version_is_refused(tmp_path: Path) -> None:
    docs = written(tmp_path / "r")
    docs[0]["holdfast"] += 1
    with pytest.raises(UsageError, match=r"another version of holdfast \(recording 6, ours 5\)"):
        reread(tmp_path / "r", docs)


THEN = (
    "record job j1 0123abcd",
    "record time newest 0123abcd",
    "record plan newest 0123abcd",
    "record incident i1 0123abcd",
    "record exit j:1:3 0123abcd",
    "say finding 0123abcd",
    "send n StopWorkers b1-6 generation 1",
)
NOW = (
    "record job j1 4567ffff",
    "record time j1 4567ffff",
    "record plan j1 4567ffff",
    'record incident i1 4567ffff {"kind":"worker-hang","culprit":"rank 5"}',
    "record exit j:1:3 4567ffff",
    "say finding 4567ffff",
    "send n StopWorkers b1-6 generation 1",
)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_documents_of_earlier_versions_are_not_compared(version: int) -> None:
    assert compared(THEN, version) == compared(NOW, version) != compared(NOW[:-1], version)
    others = (
        "record job j2 0123abcd",
        "record incident i2 0123abcd",
        "record exit j:1:4 0123abcd",
        "say incident 0123abcd",
        "send n StopWorkers b1-6 generation 2",
        "send n StopWorkers b1-7 generation 1",
        "refused",
    )
    lines = {line for one in (*THEN, *others) for line in compared([one], version)}
    assert len(lines) == len(THEN) - 1 + len(others)
    for kind in ("time", "node"):
        assert compared([f"record {kind} j1 0123abcd"], version) == [], "when it is recorded decides nothing"


def test_documents_of_this_version_are_compared() -> None:
    assert compared(NOW, 5) == list(NOW)
    lines = [did([e.Record("time", "j1", {"a": a}), e.Say("x", {"a": a})]) for a in (1, 2)]
    assert compared(lines[0], 5)[0] != compared(lines[1], 5)[0]
    assert compared(lines[0], 5)[1] != compared(lines[1], 5)[1]
    assert compared(lines[0], 4) == compared(lines[1], 4)


def test_frames_come_back_as_from_the_wire(tmp_path: Path) -> None:
    frame = t.Frame(1, 2, 3)
    docs = written(tmp_path / "r", e.FrameSeen("n", frame))
    assert base64.b64decode(docs[1]["data"]["wire"]) == wire.encode_agent(frame)
