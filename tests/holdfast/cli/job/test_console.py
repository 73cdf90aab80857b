"""Lines without an end on the console: a bar moves in place, a question stands, and no finished line is lost."""

import io
import sys

import pytest

from holdfast.cli.job.console import Choice, Console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def line(text: str, *, rank: int = 0, stream: str = "out", unfinished: bool = False) -> dict[str, object]:
    return {"rank": rank, "stream": stream, "text": text, "generation": 1, "dropped": 0, "unfinished": unfinished}


def shown(file: io.StringIO, monkeypatch: pytest.MonkeyPatch, *lines: dict[str, object]) -> str:
    monkeypatch.setattr(sys, "stdout", file)
    monkeypatch.setattr(sys, "stderr", file)
    console = Console(Choice())
    for one in lines:
        console.show(one)
    return file.getvalue()


BAR = (line("10%", unfinished=True), line("50%", unfinished=True), line("100%"), line("done"))


def test_a_bar_on_a_terminal_is_drawn_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    clear = "\r\x1b[K"
    assert shown(Terminal(), monkeypatch, *BAR) == f"[0] 10%{clear}[0] 50%{clear}[0] 100%\n[0] done\n"


def test_a_bar_in_a_file_returns_as_it_does_under_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(io.StringIO(), monkeypatch, *BAR) == "[0] 10%\r[0] 50%\r[0] 100%\n[0] done\n"


def test_another_ranks_line_takes_the_place_of_a_bar_and_not_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(Terminal(), monkeypatch, line("10%", unfinished=True), line("hi", rank=1, stream="err"), line("20%"))
    assert text == "[0] 10%\r\x1b[K[1] hi\n[0] 20%\n"


def test_a_note_of_the_commands_own_stands_below_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(Choice())
    console.show(line("10%", stream="err", unfinished=True))
    console.note("no step for 90 s")
    console.show(line("20%", stream="err"))
    assert capsys.readouterr().err == "[0] 10%\nholdfast: no step for 90 s\n[0] 20%\n"


def test_a_hidden_rank_has_no_bar_either(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(Choice(nproc=2, ranks={1}))
    console.show(line("10%", unfinished=True))
    console.show(line("20%", rank=1, unfinished=True))
    assert capsys.readouterr().out == "[1] 20%"
