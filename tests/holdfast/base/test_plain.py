"""What names and errors hold cannot reach a terminal, nor colour a table."""

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.plain import coloured, one_line, plain
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.tiles import GlobalTensor
from holdfast.checkpoint.restore.inspect import CheckpointInfo
from holdfast.checkpoint.stores.folder import Slot
from holdfast.cli.common import output
from holdfast.cli.job import checkpoint
from holdfast.cli.job.job import job_table
from holdfast.cli.look import blame, heat_view
from holdfast.cli.look.incidents import incident_table
from holdfast.cli.look.nodes import node_table
from holdfast.cli.look.stacks import show_stacks
from holdfast.cli.node import diagnose
from tests.holdfast.support.fake_controller import INCIDENT, STACKS, job_as, node_as

NASTY = "a\x1b[31m\x1b]0;t\x07\r\x9b2J\u202e[bold]x[/bold][/no]:warning:"
SEEN = r"a\x1b[31m\x1b]0;t\x07\r\x9b2J\u202e[bold]x[/bold][/no]:warning:"


@given(st.text(st.characters(categories=None), max_size=60))
def test_nothing_of_it_is_a_control_character(text: str) -> None:
    for shown in (plain(text), one_line(text)):
        assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")]
        assert not set(shown) & set("\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u2069")
    assert plain(text.translate(dict.fromkeys(range(0x20)))).isascii() or not text.isascii()


@given(st.text("ab \x1b[0123;m\t\r\nJ\x07", max_size=40))
def test_a_workers_line_keeps_colours_only(text: str) -> None:
    shown = coloured(text)
    rest = shown.split("\x1b[")[1:]
    assert all(part.lstrip("0123456789;:").startswith("m") for part in rest)
    assert "\x07" not in shown
    if rest:
        assert shown.endswith("\x1b[0m")


def test_what_is_harmless_stays_as_it_is() -> None:
    for text in ("node-1.rack_2", "größer 日本", "loss 1.5 [rank 3]"):
        assert plain(text) == one_line(text) == coloured(text) == text
    assert one_line(f"no {'x' * 5000} there") == f"no {'x' * 120}...{'x' * 40} there"


def test_every_table_shows_names_as_they_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    job = job_as("running", name=NASTY, reason=NASTY, assignment=[{"node": NASTY, "ranks": [0]}])
    job["program"]["args"] = [NASTY]
    console = output.out()
    console.print(job_table(job))
    console.print(node_table([node_as(NASTY, switch=NASTY, reason=NASTY, state=NASTY)]))
    console.print(incident_table([INCIDENT | {"summary": NASTY, "culprit": NASTY, "kind": NASTY, "state": NASTY}]))
    rows = [{"depth": 0, "ranks": "0", "frame": NASTY}]
    show_stacks(STACKS | {"rows": rows, "states": {"0": NASTY}, "missing": {NASTY: NASTY}})
    output.say(NASTY)
    output.note(NASTY)
    reported = capsys.readouterr()
    assert reported.out.count(SEEN) == 17, reported.out
    assert SEEN in reported.err
    assert not set(reported.out + reported.err) & {"\x1b", "\x07", "\x9b", "\u202e", "\r"}


def is_harmless(capsys: pytest.CaptureFixture[str], times: int) -> None:
    out = capsys.readouterr().out
    assert out.count(SEEN) == times, out
    assert not set(out) & {"\x1b", "\x07", "\x9b", "\u202e", "\r"}


def test_blame_shows_names_as_they_are(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    waits = ("named_s", "plan_s", "jitter_s")
    columns = ("compute_s", "other_s", "transfer_s", *waits, "self_s", "induced_s", "self_ratio")
    found = {
        "first": 1, "last": 2, "name": NASTY, "job": "j1", "step_s": 1.0, "incomplete": [1],
        "account": {"text": "1.00 s = 0.60 compute + 0.40 jitter"},
        "culprits": [{"kind": NASTY, "text": NASTY}],
        "path": [{"rank": 0, "peer": 1, "what": NASTY, "seconds": 0.5}],
        "ranks": {"rank": [0], **{name: [0.5] for name in columns}},
    }  # fmt: skip
    blame.show(found)
    is_harmless(capsys, 4)
    blame.show(found | {"name": "", "job": NASTY, "culprits": []})
    is_harmless(capsys, 2)
    heat = {
        "first": 1, "last": 2, "name": NASTY, "job": "j1", "phases": [NASTY], "ranks": [0], "node_of": [NASTY],
        "nodes": [NASTY, "short"], "seconds": [[0.5]], "ratio": [[1.5]], "by_step": [[1.5, None], [1.0, 1.0]],
    }  # fmt: skip
    heat_view.show(heat)
    out = capsys.readouterr().out
    assert out.lower().count(SEEN.lower()) == 4, out
    assert not set(out) & {"\x1b", "\x07", "\x9b", "\u202e", "\r"}
    *_, nasty, short = out.splitlines()
    assert nasty.index("#") == short.index(".")  # below each other, however long a name's escapes are


def test_diagnose_shows_names_as_they_are(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "600")
    verdict = {
        "node": NASTY, "check": NASTY, "metric": NASTY, "component": NASTY, "grade": NASTY, "value": 1.0,
        "unit": NASTY, "baseline": 2.0, "bar": None, "baseline_n": 3, "baseline_since": 1.0, "text": NASTY,
        "action": NASTY,
    }  # fmt: skip
    doc = {"verdicts": [verdict], "nodes": [NASTY], "failed": [NASTY], "cleared": [], "began": 1.0, "ended": 2.0}
    output.out().print(diagnose.verdict_table(doc, True))
    is_harmless(capsys, 9)
    output.say(diagnose._conclusion(doc | {"rounds": 0}))
    is_harmless(capsys, 1)


def test_checkpoints_show_names_as_they_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of a store that others write to: whatever its manifests say."""
    monkeypatch.setenv("COLUMNS", "400")
    info = CheckpointInfo(3, 1, 2, NASTY, 1.0, {NASTY: 2}, 1, 10, 1, False, NASTY)
    monkeypatch.setattr("holdfast.checkpoint.restore.inspect.list_checkpoints", lambda url, report: [info])
    assert checkpoint.list_(str(tmp_path)) == 0
    is_harmless(capsys, 3)
    tensor = GlobalTensor(NASTY, (2, 3), "F32")
    manifest = Manifest(
        term=1, generation=2, job=NASTY, attempt=NASTY, step=3, created=1.0, mesh={NASTY: 2}, state={NASTY: NASTY},
        values={NASTY: NASTY}, tensors={NASTY: tensor}, parts=(),
    )  # fmt: skip
    slot = Slot(3, 1)
    monkeypatch.setattr("holdfast.checkpoint.restore.inspect.find", lambda store, step, report: (slot, manifest))
    assert checkpoint.show(str(tmp_path)) == 0
    is_harmless(capsys, 7)
    monkeypatch.setattr("holdfast.checkpoint.restore.inspect.verify", lambda url, step, progress: [NASTY])
    assert checkpoint.verify(str(tmp_path), 3) == 1
    is_harmless(capsys, 1)


def test_json_is_the_same_data_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    data = {NASTY: [NASTY, "\udcff", "größer"]}
    output.print_json(data)
    out = capsys.readouterr().out
    assert json.loads(out) == data
    assert out.strip().isprintable()
