"""What names and errors hold cannot reach a terminal, nor colour a table."""

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.plain import coloured, one_line, plain
from holdfast.cli.common import output
from holdfast.cli.job.job import job_table
from holdfast.cli.look.incidents import incident_table
from holdfast.cli.look.nodes import node_table
from holdfast.cli.look.stacks import show_stacks
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
    told = capsys.readouterr()
    assert told.out.count(SEEN) == 17, told.out
    assert SEEN in told.err
    assert not set(told.out + told.err) & {"\x1b", "\x07", "\x9b", "\u202e", "\r"}


def test_json_is_the_same_data_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    data = {NASTY: [NASTY, "\udcff", "größer"]}
    output.print_json(data)
    out = capsys.readouterr().out
    assert json.loads(out) == data
    assert out.strip().isprintable()
