"""Progress: nothing into a pipe, nothing of short work, a bar on a terminal."""

import io
import threading

import pytest
from rich.console import Console

from holdfast.cli.common import output
from holdfast.cli.common import progress as shown
from holdfast.cli.common.progress import progress

WAIT_S = 30.0


class Terminal(io.StringIO):
    """Remembers what is written, and notifies whoever waits for a text."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()

    def write(self, text: str) -> int:
        with self.changed:
            self.changed.notify_all()
            return super().write(text)

    def wait_for(self, text: str) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: text in self.getvalue(), WAIT_S)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    written = Terminal()
    console = Console(file=written, force_terminal=True, width=80)
    monkeypatch.setattr(output, "err", lambda: console)
    return written


def test_into_a_pipe_goes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(output, "err", lambda: Console(file=written))
    monkeypatch.setattr(shown, "QUIET_S", 0.0)
    with progress("reading") as report:
        report(1, 2)
    assert written.getvalue() == ""


def test_short_work_shows_nothing(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "QUIET_S", 3600.0)
    with progress("reading") as report:
        report(1, 2)
    assert "reading" not in terminal.getvalue()


@pytest.mark.parametrize(("done", "total", "amount"), [(1, 2, "50%"), (12_345, 0, "12,345")])
def test_long_work_shows_how_far_it_is(
    done: int, total: int, amount: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown, "QUIET_S", 0.0)
    with progress("reading") as report:
        report(done, total)
        assert terminal.wait_for(amount)
    assert "reading" in terminal.getvalue()


def test_work_that_reports_nothing_is_shown_too(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "QUIET_S", 0.0)
    with progress("timeline"):
        assert terminal.wait_for("timeline")


def test_an_error_ends_it(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "QUIET_S", 0.0)

    def work() -> None:
        with progress("reading"):
            assert terminal.wait_for("reading")
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        work()
    assert terminal.getvalue().count("\x1b[?25l") == terminal.getvalue().count("\x1b[?25h")  # the cursor is back
