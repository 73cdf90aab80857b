"""Signals to `run` and `demo` with daemons of their own: the conventional exit code, and nothing left behind.

tests/holdfast/cli/common/test_interrupts.py has many more moments, with stand-ins for the daemons.
"""

import os
import pty
import signal
import sys
import time
from pathlib import Path

import pytest

from holdfast.agent.node.checkpoints import snapshots_dir
from holdfast.agent.workers.workers import shared_dir
from tests.e2e.daemons import HOLDFAST, Commands, Running, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SCRIPT = "import sys, time\nprint('up', flush=True)\ntime.sleep(float(sys.argv[1]))\nprint('bye', flush=True)\n"
START_S = 60.0
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stage:
    """Runs of a small script on a cluster of their own, all of whose files are in one folder."""

    def __init__(self, holdfast: Commands, folder: Path) -> None:
        self.holdfast = holdfast
        self.tmp = folder / "tmp"
        self.tmp.mkdir()
        self.script = folder / "script.py"
        self.script.write_text(SCRIPT)
        self.shared: list[Path] = []

    def start(self, sleep_s: float) -> Running:
        env = {"TMPDIR": str(self.tmp), "XDG_STATE_HOME": str(self.tmp / "state")}
        return self.holdfast.start("run", "--fresh", str(self.script), str(sleep_s), env=env)

    def demo(self) -> Running:
        env = {"TMPDIR": str(self.tmp), "XDG_STATE_HOME": str(self.tmp / "state")}
        return self.holdfast.start("demo", "--nodes", "2", "--nproc", "1", "--steps", "100000", env=env)

    def look(self) -> None:
        """Note what lies in shared memory while it is there."""
        for folder in (*self.tmp.glob("holdfast-run-*"), *self.tmp.glob("holdfast-demo-*")):
            for node in ("node0", "node1"):
                self.shared += [shared_dir(folder / node), snapshots_dir(folder / node, node)]

    def check_nothing_left(self, may_stay: str = "torchinductor_") -> None:
        """`may_stay`: torch's cache of compiled kernels is meant for a script's next run, as under torchrun."""
        wait_for(lambda: self.holdfast.left() == [], 60, self.holdfast.left)
        assert [path.name for path in self.tmp.iterdir() if not may_stay or not path.name.startswith(may_stay)] == []
        assert [folder for folder in self.shared if folder.exists()] == []


@pytest.fixture
def stage(holdfast: Commands, tmp_path: Path) -> Stage:
    return Stage(holdfast, tmp_path)


def code_of(command: Running, deadline_s: float = 60.0) -> int:
    """As a shell shows it."""
    code = command.wait(deadline_s)
    return code if code >= 0 else 128 - code


def catches(command: Running, number: signal.Signals) -> bool:
    """Whether it has a handler for this signal by now."""
    status = Path(f"/proc/{command.process.pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def test_while_it_starts(stage: Stage) -> None:
    """From the interpreter's own start to the agents' registration."""
    for number, delay_s in zip((*ENDING, *ENDING[1:]), (0.4, 0.08, 0.7, 1.3, 2.2), strict=True):
        run = stage.start(60)
        time.sleep(delay_s)  # the moments are what is tried
        if number is signal.SIGINT:  # Python's own start would answer it with a traceback
            wait_for(lambda run=run: catches(run, signal.SIGTERM))  # type: ignore[misc]
        stage.look()
        run.signal(number)
        assert code_of(run) == 128 + number, (delay_s, run.err)
        assert "Traceback" not in run.err, (delay_s, run.err)
        stage.check_nothing_left()


def test_while_it_runs(stage: Stage) -> None:
    number = signal.SIGTERM
    run = stage.start(600)
    run.says("[0] up", START_S)
    stage.look()
    assert stage.shared[0].is_dir()
    run.signal(number)
    run.says("stopping the job")
    assert code_of(run) == 128 + number
    assert "Traceback" not in run.err
    stage.check_nothing_left()


def test_again_and_again_while_all_is_put_away(stage: Stage) -> None:
    run = stage.start(600)
    run.says("[0] up", START_S)
    stage.look()
    run.signal(signal.SIGTERM)
    run.says("stopping the job")
    numbers = iter(ENDING * 100)
    while run.process.poll() is None:
        run.signal(next(numbers))
        time.sleep(0.05)
    assert code_of(run) in (128 + number for number in ENDING)
    assert "Traceback" not in run.err
    stage.check_nothing_left()


def test_a_terminal_that_closes_ends_the_job(stage: Stage, tmp_path: Path) -> None:
    env = stage.holdfast.environment({"TMPDIR": str(stage.tmp), "XDG_STATE_HOME": str(stage.tmp)})
    pid, terminal = pty.fork()
    if not pid:
        try:
            os.execve(sys.executable, [*HOLDFAST, "run", "--fresh", str(stage.script), "600"], env)
        finally:
            os._exit(70)
    seen = b""
    while b"[0] up" not in seen:
        seen += os.read(terminal, 4096)
    stage.look()
    os.close(terminal)  # the kernel sends SIGHUP, and every write fails from now on
    deadline = time.monotonic() + 60
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert os.waitstatus_to_exitcode(ended[1]) == 129
    stage.check_nothing_left()


def test_a_demo_leaves_nothing(stage: Stage) -> None:
    """While its daemons start, while workers are launched, and while it trains: also what torch makes by itself."""
    for number, said in (
        (signal.SIGTERM, ""),
        (signal.SIGHUP, "the page:"),
        (signal.SIGINT, "/100000  loss"),  # the first line of progress: which step it shows is chance
    ):
        demo = stage.demo()
        if said:
            demo.says(said, START_S)
        else:
            wait_for(lambda: list(stage.tmp.glob("holdfast-demo-*/node0")), START_S)
        stage.look()
        assert stage.shared
        if number is signal.SIGINT:
            assert len(stage.holdfast.left()) >= 8  # the command, its daemons, their fork servers, workers
            assert sum(folder.is_dir() for folder in stage.shared) == 4  # two of each node of this demo
            os.killpg(demo.process.pid, number)  # as a terminal does: its daemons get it, too
        else:
            demo.signal(number)
        assert code_of(demo) == 128 + number, (said, demo.err)
        assert "Traceback" not in demo.err, (said, demo.err)
        stage.check_nothing_left(may_stay="")
