"""The last line while it has no end: bars and questions, as a terminal would show them."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agent.logs.unfinished import APART_S, Unfinished, needed, visible
from holdfast.agent.logs.worker_logs import WorkerLogs
from holdfast.wire.messages import LogChunk


@pytest.mark.parametrize(
    ("line", "shown"),
    [("10%\r50%\r", "50%"), ("\r10%\r50%", "50%"), ("windows\r", "windows"), ("plain", "plain"), ("\r", ""), ("", "")],
)
def test_what_a_terminal_shows(line: str, shown: str) -> None:
    assert visible(line) == shown


@given(st.lists(st.sampled_from([b"a", b"\r", b"bc"])).map(b"".join))
def test_what_is_kept_shows_the_same(rest: bytes) -> None:
    assert visible(needed(rest).decode()) == visible(rest.decode())
    assert needed(rest + b"\r99%").lstrip(b"\r") == b"99%"


def test_a_bar_is_reported_as_it_moves_but_not_too_often() -> None:
    bar = Unfinished()
    assert bar.look(b"\r 1%", True, 0.0) == " 1%"
    assert bar.look(b"\r 2%", True, 0.1) == ""
    assert bar.waits
    assert bar.look(b"\r 3%", True, APART_S) == " 3%"
    assert not bar.waits
    assert bar.look(b"\r 3%", False, 1.0) == ""


def test_a_question_is_reported_once_it_stands() -> None:
    question = Unfinished()
    assert question.look(b"name: ", True, 0.0) == ""
    assert question.waits
    assert question.look(b"name: ", False, 0.1) == "name: "
    assert question.look(b"name: ", False, 9.0) == ""
    assert not question.waits
    assert question.look(b"", True, 9.1) == ""
    assert question.look(b"name: ", True, 9.2) == ""
    assert question.look(b"name: ", False, 9.3) == "name: "


BAR = st.lists(st.sampled_from([b"10%", b"\r", b"\n", b"a b", b"\r\n"]), max_size=20).map(b"".join)


@settings(deadline=None, max_examples=60)
@given(BAR, st.lists(st.integers(0, 60), max_size=6))
def test_any_cut_of_bars_gives_the_lines_that_a_terminal_shows_at_their_end(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes, cuts: list[int]
) -> None:
    logs = WorkerLogs(tmp_path_factory.mktemp("logs"))
    out, _ = logs.paths("j", 1, 0)
    chunks: list[LogChunk] = []
    last = 0
    for cut in [*sorted(c % (len(raw) + 1) for c in cuts), len(raw)]:
        with open(out, "ab") as file:
            file.write(raw[last:cut])
        last = cut
        chunks += logs.poll()
    chunks += logs.drain("j", 1, 0)
    logs.close()
    got = "".join(chunk.text for chunk in chunks if not chunk.unfinished)
    body = raw.decode().removesuffix("\n")
    assert got == "".join(f"{visible(line)}\n" for line in (body.split("\n") if raw else []))


def test_a_bar_of_hours_is_live_and_takes_no_memory(tmp_path: Path) -> None:
    now = [0.0]
    logs = WorkerLogs(tmp_path, clock=lambda: now[0])
    out, _ = logs.paths("j", 1, 0)
    shown = []
    for step in range(200):
        with open(out, "ab") as file:
            file.write(f"\r{step:>4}/200 [{'#' * 500}] step {step}".encode())
        shown += [chunk for chunk in logs.poll() if chunk.unfinished]
        now[0] += 0.1
    assert 50 < len(shown) <= 200 * 0.1 / APART_S + 1
    assert all(chunk.text.count("/200") == 1 and "\r" not in chunk.text for chunk in shown)
    [pair] = logs._files.values()
    assert len(pair[0].rest) < 600
    mark = logs.mark("j", 1, 0)
    assert mark is not None
    assert mark.number > 190  # how far it is, for a program that numbers no steps
    [last] = logs.drain("j", 1, 0)
    assert (last.unfinished, last.text.count("/200")) == (False, 1)
    logs.close()


def test_a_question_is_forwarded_while_it_waits_and_then_nothing_is_read(tmp_path: Path) -> None:
    now = [0.0]
    logs = WorkerLogs(tmp_path, clock=lambda: now[0])
    out, err = logs.paths("j", 1, 0)
    err.touch()
    out.write_text("first\nname: ")
    chunks = []
    for _ in range(5):
        chunks += logs.poll()
        now[0] += 0.1
    assert [(chunk.text, chunk.unfinished) for chunk in chunks] == [("first\n", False), ("name: ", True)]
    assert logs._idle is not None
    logs.close()
