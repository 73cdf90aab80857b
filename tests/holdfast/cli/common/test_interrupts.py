"""Signals to a command at any moment, in real processes: the conventional exit code, and nothing left behind.

Daemons are stand-ins here, which takes a second where real ones take six; tests/e2e/test_signals.py has those.
"""

import os
import pty
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.cli.common.interrupts import Interrupted, allowed, guarded
from holdfast.cli.local import leftovers
from tests.holdfast.support.fake_controller import FakeController

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[4]
COMMAND = (sys.executable, str(ROOT / "tests" / "holdfast" / "support" / "interrupted.py"))
RUN = (sys.executable, "-m", "holdfast", "run", "-m", "x")
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stage:
    """Starts commands with a folder for temporary files and a mark by which their processes are found."""

    def __init__(self, folder: Path, controller: str = "") -> None:
        self.tmp = folder / "tmp"
        self.tmp.mkdir()
        self.err = folder / "err"
        self.mark = f"HOLDFAST_TEST={uuid.uuid4().hex}"
        name, _, value = self.mark.partition("=")
        clean = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_")}
        self.env = clean | {name: value, "TMPDIR": str(self.tmp), "PYTHONPATH": str(ROOT), "HOLDFAST_CONFIG": ""}
        if controller:
            self.env["HOLDFAST_CONTROLLER"] = controller

    def start(self, *argv: str, ignored: tuple[signal.Signals, ...] = ()) -> "subprocess.Popen[bytes]":
        def prepare() -> None:
            for number in ignored:
                signal.signal(number, signal.SIG_IGN)

        with open(self.err, "wb") as err:
            return subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err, env=self.env, cwd=ROOT,
                preexec_fn=prepare if ignored else None,
            )  # fmt: skip

    def check_ended(self, process: "subprocess.Popen[bytes]", *codes: int) -> None:
        code = process.wait(90)
        assert process.stdout is not None
        process.stdout.close()
        said = self.err.read_text()
        assert (code if code >= 0 else 128 - code) in codes, said
        assert "Traceback" not in said
        deadline = time.monotonic() + 5
        while leftovers.marked(self.mark) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert leftovers.marked(self.mark) == []
        assert list(self.tmp.iterdir()) == []


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_at_any_moment(stage: Stage) -> None:
    """From the first line of the command to the end of its cluster, whose start takes a second or so."""
    for number, delay_s in zip(ENDING * 3, (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8), strict=True):
        process = stage.start(*COMMAND, "60")
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        time.sleep(delay_s)  # the moments are what is tried
        process.send_signal(number)
        stage.check_ended(process, 128 + number)


def test_again_and_again(stage: Stage) -> None:
    process = stage.start(*COMMAND, "60")
    assert process.stdout is not None
    assert process.stdout.readline() + process.stdout.readline() == b"begun\nup\n"
    process.send_signal(signal.SIGHUP)
    while process.poll() is None:
        for number in ENDING:
            process.send_signal(number)
        time.sleep(0.002)
    stage.check_ended(process, *(128 + number for number in ENDING))


def test_while_all_is_put_away(stage: Stage, tmp_path: Path) -> None:
    """What was done is done: the code is the command's own."""
    process = stage.start(*COMMAND, "0", str(tmp_path / "signalled"))
    assert process.stdout is not None
    assert process.stdout.readline() + process.stdout.readline() + process.stdout.readline() == b"begun\nup\nending\n"
    process.send_signal(signal.SIGTERM)
    (tmp_path / "signalled").touch()
    stage.check_ended(process, 0)


@pytest.fixture
def following(fake: FakeController, tmp_path: Path) -> Iterator[tuple[Stage, FakeController]]:
    fake.line(0, "hello")
    yield Stage(tmp_path, fake.address), fake
    fake.log.put("cut")


def stopped(fake: FakeController) -> bool:
    return any(path == "/jobs/j1/stop" for _, path, _ in fake.asked)


@pytest.mark.parametrize("number", ENDING, ids=lambda n: n.name)
def test_run_stops_the_job(following: tuple[Stage, FakeController], number: signal.Signals) -> None:
    stage, fake = following
    process = stage.start(*RUN)
    assert process.stdout is not None
    assert process.stdout.readline() == b"[0] hello\n"
    process.send_signal(number)
    wait_for(lambda: stopped(fake))
    fake.end("stopped")
    stage.check_ended(process, 128 + number)


def test_run_leaves_the_job_at_the_second(following: tuple[Stage, FakeController]) -> None:
    stage, fake = following
    process = stage.start(*RUN)
    assert process.stdout is not None
    assert process.stdout.readline() == b"[0] hello\n"
    process.send_signal(signal.SIGINT)
    wait_for(lambda: stopped(fake))
    process.send_signal(signal.SIGTERM)
    stage.check_ended(process, 143)
    assert "left job j1 to itself" in stage.err.read_text()


def test_what_its_starter_ignores_stays_ignored(following: tuple[Stage, FakeController]) -> None:
    """`nohup holdfast run ... &` in a script goes on when the terminal closes or gets a Ctrl-C."""
    stage, fake = following
    process = stage.start(*RUN, ignored=(signal.SIGHUP, signal.SIGINT))
    assert process.stdout is not None
    assert process.stdout.readline() == b"[0] hello\n"
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGINT)
    fake.line(0, "still here")
    assert process.stdout.readline() == b"[0] still here\n"
    assert not stopped(fake)
    fake.end("finished", exit_code=0)
    stage.check_ended(process, 0)


@pytest.mark.parametrize("ignored", [False, True], ids=["as it is", "nohup"])
def test_a_terminal_that_closes(following: tuple[Stage, FakeController], ignored: bool) -> None:
    """The kernel sends SIGHUP, and every write fails from then on."""
    stage, fake = following
    pid, terminal = pty.fork()
    if not pid:
        try:
            if ignored:
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
            os.chdir(ROOT)
            os.execve(RUN[0], RUN, stage.env)
        finally:
            os._exit(70)
    seen = b""
    while b"[0] hello" not in seen:
        seen += os.read(terminal, 4096)
    os.close(terminal)
    if ignored:
        fake.line(0, "nobody sees this")
        fake.line(0, "nor this")
        fake.end("finished", exit_code=0)
    else:
        wait_for(lambda: stopped(fake))
        fake.end("stopped")
    deadline = time.monotonic() + 30
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert os.waitstatus_to_exitcode(ended[1]) == (0 if ignored else 129)


def test_a_reader_that_leaves(following: tuple[Stage, FakeController]) -> None:
    """`holdfast run ... | head -1` stops the job, and ends as if SIGPIPE had ended it."""
    stage, fake = following
    process = stage.start(*RUN)
    assert process.stdout is not None
    assert process.stdout.readline() == b"[0] hello\n"
    process.stdout.close()
    for _ in range(3):
        fake.line(0, "nobody reads this")
    stage.check_ended(process, 128 + signal.SIGPIPE)
    assert stopped(fake)


def test_ctrl_c_while_it_is_imported_is_no_traceback(stage: Stage) -> None:
    for delay_s in (0.05, 0.1, 0.2, 0.35):
        process = stage.start(sys.executable, "-m", "holdfast", "simulate", "--nodes", "2", "--days", "3650")
        time.sleep(delay_s)  # the moments are what is tried
        process.send_signal(signal.SIGINT)
        process.wait(30)
        said = stage.err.read_text()
        if "Traceback" in said and "/holdfast/" not in said:  # the interpreter itself was still starting
            process.communicate()
        else:
            stage.check_ended(process, 130)


def test_a_signal_that_came_early_is_raised_where_it_may_be() -> None:
    reached = []

    def body() -> int:
        os.kill(os.getpid(), signal.SIGTERM)
        reached.append("kept")
        with allowed():
            reached.append("not here")
        return 0

    before = [signal.getsignal(number) for number in ENDING]
    assert guarded(body) == 143
    assert reached == ["kept"]
    assert [signal.getsignal(number) for number in ENDING] == before
    assert Interrupted(signal.SIGHUP).code == 129
