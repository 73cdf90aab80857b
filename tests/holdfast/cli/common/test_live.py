"""A picture that is drawn again: on a terminal's second screen, and into a file once per change."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.cli.common.live import pause
from tests.holdfast.support.fake_controller import FakeController

ROOT = Path(__file__).parents[4]
SECOND_SCREEN, FIRST_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"


def test_drawing_takes_a_tenth_of_the_time_at_most() -> None:
    assert pause(0.01, 1.0) == pytest.approx(0.99)
    assert pause(0.5, 1.0) == pytest.approx(4.5)


class Terminal:
    """A terminal of 80 x 24, and what was written to it."""

    def __init__(self, *argv: str, **env: str) -> None:
        self.text = b""
        self._fd, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        kept = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *argv],
            stdin=side, stdout=side, stderr=side, cwd=ROOT, env={**kept, "TERM": "xterm", **env},
        )  # fmt: skip
        os.close(side)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            while data := os.read(self._fd, 65536):
                self.text += data
        except OSError:  # how Linux says that the other side is closed
            pass

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(timeout=60)
        self._reader.join(timeout=60)
        os.close(self._fd)
        return code


def test_on_a_terminal_it_has_the_whole_screen_and_gives_it_back(
    fake: FakeController, until: Callable[..., None]
) -> None:
    terminal = Terminal("status", "--watch", HOLDFAST_CONTROLLER=fake.address)
    try:
        until(lambda: terminal.text.count(b"worker-killed on rank3") >= 2)
    finally:
        assert terminal.interrupt() == 130
    assert terminal.text.startswith(SECOND_SCREEN)
    assert FIRST_SCREEN in terminal.text
    first = terminal.text.partition(SECOND_SCREEN)[2]
    assert first.partition(b"worker-killed")[0].count(b"\n") < 24


def test_into_a_file_only_changes_go(fake: FakeController, until: Callable[..., None], tmp_path: Path) -> None:
    env = {**os.environ, "HOLDFAST_CONTROLLER": fake.address}
    path = tmp_path / "out"
    with path.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "status", "--watch"], stdout=out, cwd=ROOT, env=env
        )
        until(lambda: sum(asked[1] == "/status" for asked in fake.asked) >= 4)
        assert path.read_text().count("nodes  ") == 1
        fake.incidents = []
        until(lambda: path.read_text().count("nodes  ") == 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
