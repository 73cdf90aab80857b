"""Replayed to its end, a recording names each incident that is another one now."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from holdfast.controller.journal.recording import Recorder, Start, did, incident_records
from holdfast.controller.journal.replay import replay
from holdfast.controller.journal.summary import UNKNOWN, IncidentSummary
from holdfast.controller.state.events import Record
from holdfast.controller.state.model import Options
from tests.controller.support.recorded import RECORDINGS, Recorded

BEFORE = RECORDINGS / "before_evidence.jsonl.gz"
"""Rank 5 of 8 sleeps outside of any operation for 40 s, later rank 2 gets SIGSTOP, then the controller is restarted.
That version took rank 5 for a hang after 2 s; it recorded no summaries, and agents measured nothing of workers."""


def test_a_verdict_without_evidence_is_none_now(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--through", str(BEFORE)]) == 1
    said = capsys.readouterr().out.splitlines()
    changes = [line for line in said if " -> " in line]
    assert changes == [
        "i1 worker-hang rank5 restart -> none (the job pauses: not measured) (line 347)",
        "i2 worker-stopped rank2 restart -> none (line 1856)",  # whoever holds it was not reported
    ]
    assert "3 incidents then (1 unknown), 1 now, 2 changed" in said
    # The workers ended because the recorded controller stopped them: that is no verdict of today.
    assert "not compared: worker-killed rank0 restart (now line 348): stopped by the recorded controller" in said


def test_programs_get_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--through", "--json", str(BEFORE)]) == 1
    found = json.loads(capsys.readouterr().out)
    change, _ = found["changed"]
    assert change["then"] == {
        "id": "i1", "line": 347, "kind": "worker-hang", "culprit": "rank5", "action": "restart",
        "state": "", "life": "",
    }  # fmt: skip
    assert (change["now"], change["pause"]) == (None, "unknown")
    assert [(one["id"], one["kind"], one["culprit"]) for one in found["then"]] == [
        ("i1", "worker-hang", "rank5"), ("i2", "worker-stopped", "rank2"), ("i3", "unknown", ""),
    ]  # fmt: skip
    assert [one["line"] for one in found["aftermath"]] == [348, 1857]


def test_without_a_later_run_an_old_recording_does_not_say_what_was_found(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    lines = gzip.decompress(BEFORE.read_bytes()).splitlines(keepends=True)
    second = next(i for i, line in enumerate(lines[1:], 1) if line.startswith(b'{"holdfast"'))
    path.write_bytes(b"".join(lines[:second]))
    assert [one.text for one in replay(path, through=True).changed] == [
        "i1 unknown -> none (the job pauses: not measured) (line 347)",
        "i2 unknown -> none (line 1856)",
    ]


@pytest.mark.parametrize("opened", [0.0, 1e9, None, "today"])
def test_documents_of_another_journal_name_nothing(opened: object, tmp_path: Path) -> None:
    """The next run in the file may have begun with another state folder, and another i1."""
    path = tmp_path / "run.jsonl"
    lines = gzip.decompress(BEFORE.read_bytes()).splitlines(keepends=True)
    second = next(i for i, line in enumerate(lines[1:], 1) if line.startswith(b'{"holdfast"'))
    path.write_bytes(b"".join([*lines[:400], *lines[second : second + 10]]))

    def other(head: dict[str, Any]) -> None:
        for kind, _, doc in head["entities"]:
            if kind == "incident":
                doc["opened"] = opened

    edit_head(path, other, life=1)
    assert replay(path, through=True).changed[0].text.startswith("i1 unknown -> none")


# --- recordings with summaries -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hanged(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Rank 5 holds the GIL, later rank 1 is killed."""
    v = Recorded(tmp_path_factory.mktemp("hang") / "run.jsonl")
    v.submit()
    v.run(5)
    v.hold_gil(5)
    v.run(6)
    v.exit(1, signal=9)
    v.run(6)
    v.recorder.close()
    assert [(i.cause.kind, i.cause.subject) for i in v.incidents] == [
        ("worker-hang", "rank5"), ("worker-killed", "rank1"),
    ]  # fmt: skip
    return v


@pytest.fixture
def hang(hanged: Recorded, tmp_path: Path) -> Path:
    """A copy of that recording."""
    return Path(shutil.copy(hanged.path, tmp_path))


def edit_head(path: Path, edit: Callable[[dict[str, Any]], None], life: int = 0) -> None:
    lines = path.read_text().splitlines()
    at = [i for i, line in enumerate(lines) if line.startswith('{"holdfast"')][life]
    head = json.loads(lines[at])
    edit(head)
    lines[at] = json.dumps(head, separators=(",", ":"))
    path.write_text("\n".join(lines) + "\n")


def edit_decisions(path: Path, edit: Callable[[int, list[str]], list[str]]) -> None:
    """`edit` gets each line's number, from 1, and the decisions."""
    docs = [json.loads(line) for line in path.read_text().splitlines()]
    for number, doc in enumerate(docs, 1):
        if "did" in doc:
            doc["did"] = edit(number, doc["did"])
    path.write_text("".join(json.dumps(doc, separators=(",", ":")) + "\n" for doc in docs))


def test_a_record_of_an_incident_has_its_summary(hanged: Recorded) -> None:
    found = replay(hanged.path, through=True)
    assert (found.difference, found.changed, found.aftermath) == (None, [], [])
    assert [one.summary for one in found.then] == [
        IncidentSummary("worker-hang", "rank5", "restart", "closed", "dead"),
        IncidentSummary("worker-killed", "rank1", "restart", "closed"),
    ]
    assert [one.summary for one in found.now] == [IncidentSummary.from_doc(i.to_doc()) for i in hanged.incidents]


def nothing_is_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a controller took no silence of a worker for evidence."""
    monkeypatch.setattr("holdfast.diagnostics.hang.stillness.STILL", 1e9)
    monkeypatch.setattr("holdfast.controller.detectors.workers.hang.judge", lambda facts, longest_s: None)


def test_a_hang_that_is_none_now_is_listed_by_name(
    hang: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing_is_evidence(monkeypatch)
    before = hang.read_bytes()
    assert main(["replay", "--through", str(hang)]) == 1
    said = capsys.readouterr().out
    line = next(number for number, text in enumerate(before.splitlines(), 1) if b"record incident i1" in text)
    assert f"i1 worker-hang rank5 restart -> none (line {line})" in said.splitlines()
    assert "2 incidents then, " in said
    assert hang.read_bytes() == before


def test_an_incident_that_is_missing_now_does_not_shift_those_after_it(hang: Path) -> None:
    """The later ones have other ids now, and are the same."""

    def earlier(number: int, did: list[str]) -> list[str]:
        did = [line.replace("record incident i2", "record incident i3") for line in did]
        did = [line.replace("record incident i1", "record incident i2") for line in did]
        one = 'record incident i1 0123abcd {"kind":"straggler","culprit":"node1","action":"alert","state":"closed"}'
        return [*did, one] if number == 50 else did

    edit_decisions(hang, earlier)
    assert [one.text for one in replay(hang, through=True).changed] == ["i1 straggler node1 alert -> none (line 50)"]


def test_a_document_that_is_the_same_now_names_what_an_old_recording_does_not(hang: Path) -> None:
    edit_head(hang, lambda head: head.update(holdfast=2))
    edit_decisions(hang, lambda _, did: [line.partition(" {")[0] for line in did])
    found = replay(hang, through=True)
    assert (found.difference, found.changed) == (None, [])
    assert [one.summary.details for one in found.then] == [
        "worker-hang rank5 restart closed dead", "worker-killed rank1 restart closed",
    ]  # fmt: skip


def test_a_restart_that_is_an_alert_now_is_listed_by_name(tmp_path: Path) -> None:
    """The options are the recorded ones: changed in the file, they show what another policy would have done."""
    path = tmp_path / "run.jsonl"
    v = Recorded(path, options=Options(idle_limit=3.0))
    v.submit()
    v.run(5)
    v.sleep_worker(5)
    v.run(6)
    v.recorder.close()
    edit_head(path, lambda head: head["options"].update(idle_limit=60.0, pause_alert=2.5))
    found = replay(path, through=True)
    (change,) = found.changed
    assert change.then is not None
    assert change.now is not None
    lines = f"line {change.then.line}, now line {change.now.line}"
    assert change.text == f"i1 worker-hang rank5 restart -> worker-paused rank5 alert ({lines})"
    assert (change.then.summary.life, change.now.summary.life) == ("idle", "idle")


def test_a_change_of_the_evidence_alone_is_listed(hang: Path) -> None:
    hang.write_text(hang.read_text().replace('\\"life\\":\\"dead\\"', '\\"life\\":\\"idle\\"'))
    (change,) = replay(hang, through=True).changed
    then, now = "worker-hang rank5 restart closed idle", "worker-hang rank5 restart closed dead"
    assert change.text == f"i1 {then} -> {now} (line {change.line})"


def test_an_incident_that_only_now_has(hang: Path) -> None:
    edit_decisions(hang, lambda _, did: [line for line in did if not line.startswith("record incident i2")])
    (change,) = replay(hang, through=True).changed
    assert change.text == f"i2 none -> worker-killed rank1 restart (now line {change.line})"


def test_an_incident_that_goes_on_in_the_next_run_is_one(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    v = Recorded(path)
    v.submit()
    v.run(5)
    v.exit(1, signal=9)
    v.restart_controller()
    v.run(6)
    v.recorder.close()
    (incident,) = v.incidents
    found = replay(path, through=True)
    assert (found.difference, found.changed) == (None, [])
    assert [one.id for one in found.then] == [one.id for one in found.now] == [incident.id]
    assert (found.runs, incident.state) == (2, "closed")
    lines = path.read_text()
    path.write_text(lines.replace('\\"state\\":\\"closed\\"', '\\"state\\":\\"failed\\"'))
    (change,) = replay(path, through=True).changed
    then, now = (f"worker-killed rank1 restart {state}" for state in ("failed", "closed"))
    assert change.text == f"i1 {then} -> {now} (line {change.line})"


@pytest.mark.parametrize("doc", [{}, {"findings": [], "root": 0}, {"findings": [{"kind": "x"}], "root": 0}])
def test_a_document_of_another_version_has_no_summary(doc: dict[str, Any]) -> None:
    assert IncidentSummary.from_doc(doc) == UNKNOWN
    ((_, _, summary),) = incident_records(did([Record("incident", "i1", doc)]))
    assert summary == UNKNOWN


def test_a_summary_of_another_version_is_read() -> None:
    fields = {"kind": "worker-hang", "culprit": "rank 5", "confidence": "high"}
    ((key, checksum, summary),) = incident_records([f"record incident i1 0123abcd {json.dumps(fields)}"])
    assert (key, checksum, summary) == ("i1", "0123abcd", IncidentSummary("worker-hang", "rank 5"))


def test_nothing_is_listed_of_a_replay_that_ended_early(hang: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_is_evidence(monkeypatch)
    found = replay(hang)
    assert found.difference is not None
    assert found.events == found.difference.line - 1
    assert (found.then, found.now, found.changed) == ([], [], [])


def test_an_empty_run_has_no_incidents(tmp_path: Path) -> None:
    v = Recorded(tmp_path / "other.jsonl")
    Recorder(tmp_path / "run.jsonl", Start("b", Options(), [], [], v.instant)).close()
    v.recorder.close()
    found = replay(tmp_path / "run.jsonl", through=True)
    assert (found.runs, found.then, found.changed) == (1, [], [])
