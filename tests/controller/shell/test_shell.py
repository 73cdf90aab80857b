"""Around the brain: records before sends, a disk that is full, ticks that are late."""

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.errors import Conflict, Unavailable, UsageError
from holdfast.controller.brain.cluster_brain import ClusterBrain
from holdfast.controller.shell.sessions import Sessions
from holdfast.controller.shell.shell import Shell
from holdfast.controller.state.events import (
    Action,
    BrainEvent,
    FrameSeen,
    JobSubmitted,
    Record,
    Say,
    Send,
    StopRequested,
    Tick,
)
from holdfast.controller.state.ledger import StepRow
from holdfast.controller.state.model import Instant, JobSpec
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.controller.support.stage import Sent, make_shell

COMMAND = msg.Command("c1", "j1", 1, msg.StopWorkers())
SPEC = JobSpec("j1", "job", msg.Program("train.py"), 1, 1)


class Scripted(ClusterBrain):
    """Answers every event with the same actions."""

    def __init__(self, *answer: Action) -> None:
        super().__init__("b1")
        self.answer = list(answer)

    def handle(self, event: BrainEvent, now: Instant) -> list[Action]:
        return self.answer


def failing(times: list[int]) -> Callable[..., None]:
    def fail(*_: Any) -> None:
        times.append(1)
        raise sqlite3.OperationalError("database or disk is full")

    return fail


def test_every_record_is_written_before_any_command_leaves(tmp_path: Path) -> None:
    shell = make_shell(tmp_path, Scripted(Send("node0", COMMAND), Say("x", {}), Record("job", "j1", {"n": 1})))
    rows: list[Any] = []
    other = sqlite3.connect(tmp_path / "controller.sqlite")

    class Looking(Sent):
        def send(self, message: msg.ControllerMessage) -> None:
            rows.append((message, other.execute("SELECT doc FROM entity").fetchall()))

    shell.sessions.open(Looking())
    shell.handle(Tick())
    assert rows == [(COMMAND, [('{"n": 1}',)])]
    other.close()
    shell.journal.close()


def test_a_command_for_an_unknown_node_is_dropped(tmp_path: Path) -> None:
    shell = make_shell(tmp_path, Scripted(Send("ghost", COMMAND)))
    shell.handle(Tick())
    with pytest.raises(Unavailable, match="ghost is not connected"):
        shell.send("ghost", COMMAND)
    shell.journal.close()


def test_a_full_disk_is_reported_once_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shell = make_shell(tmp_path, Scripted(Record("job", "j1", {}), Send("node0", COMMAND)))
    sent = Sent()
    shell.sessions.open(sent)
    with monkeypatch.context() as patch:
        patch.setattr(shell.journal, "write", failing([]))
        for _ in range(3):
            shell.handle(Tick())
    assert shell.journal_failing
    assert len(sent.messages) == 3
    assert len([r for r in caplog.records if r.message == "journal.failed"]) == 1
    shell.handle(Tick())
    assert not shell.journal_failing
    assert shell.journal.entities() == [("job", "j1", {})]
    shell.journal.close()


def test_steps_that_could_not_be_written_are_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = make_shell(tmp_path, ClusterBrain("b1"))
    shell.handle(JobSubmitted(SPEC))
    sent = Sent()
    sent.frames = 1
    shell.sessions.open(sent)
    ledger = shell.brain.jobs.newest.c.ledger
    ledger.rows[4] = StepRow(4, 1.0, 0.1, 8, 1.0, 1)
    ledger.dirty.add(4)
    with monkeypatch.context() as patch:
        patch.setattr(shell.journal, "write_steps", failing([]))
        shell.flush_steps()
    assert shell.journal_failing
    assert sent.messages == [], "a frame is acknowledged once its steps are written"
    shell.flush_steps()
    assert not shell.journal_failing
    assert len(sent.messages) == 1
    assert [row.step for row in shell.journal.steps("j1")] == [4]
    shell.journal.close()


def test_a_wish_that_cannot_be_changes_nothing(tmp_path: Path) -> None:
    shell = make_shell(tmp_path, ClusterBrain("b1"))
    with pytest.raises(Conflict, match="no job is running"):
        shell.handle(StopRequested(1.0))
    shell.handle(JobSubmitted(SPEC))
    shell.logs.add(msg.LogChunk("j1", 1, 0, "out", "kept"))
    with pytest.raises(Conflict, match="a job j1 already exists"):
        shell.handle(JobSubmitted(JobSpec("j1", "job", msg.Program("x"), 1, 1)))
    shell.handle(JobSubmitted(JobSpec("j2", "job", msg.Program("x"), 1, 1)))
    assert [kept.chunk.text for kept in shell.logs._jobs["j1"].tail] == ["kept"]  # the running job's log goes on
    shell.journal.close()


def test_frames_leave_their_samples(tmp_path: Path) -> None:
    shell = make_shell(tmp_path, ClusterBrain("b1"))
    nics = (t.NicSamples("eth0", 1, 1, b"\1\0\0\0", b"\1\0\0\0"),)
    shell.handle(FrameSeen("node0", t.Frame(1, 10**9, 1, offsets=b"\0\0\0\0", nics=nics)))
    assert shell.samples.read("node0", 5)[0]["tx"] == [1]
    shell.journal.close()


def test_it_ticks_and_flushes_and_knows_when_it_was_late(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "holdfast")
    ticks: list[float] = []

    class Counting(ClusterBrain):
        def handle(self, event: BrainEvent, now: Instant) -> list[Action]:
            if isinstance(event, Tick):
                ticks.append(event.lag)
            return super().handle(event, now)

    async def story() -> Shell:
        flushed: list[int] = []

        class Acknowledging(Sessions):
            def acknowledge(self, interval: float) -> None:
                flushed.append(1)

        shell = make_shell(tmp_path, Counting("b1"), sessions=Acknowledging())
        task = asyncio.create_task(shell.run())
        async with asyncio.timeout(60):
            while len(flushed) < 2:
                await asyncio.sleep(0.01)
            time.sleep(0.4)  # something blocks the loop
            while max(ticks) < 0.2:
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return shell

    shell = asyncio.run(story())
    assert shell.worst_lag >= 0.2
    shell.journal.close()


class Broken(ClusterBrain):
    """Fails at every tick, as with a bug."""

    def handle(self, event: BrainEvent, now: Instant) -> list[Action]:
        if isinstance(event, Tick):
            raise ZeroDivisionError("a bug of ours")
        return super().handle(event, now)


def test_a_bug_of_the_brain_is_reported_and_the_watch_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shell = make_shell(tmp_path, Broken("b1"))
    shell.handle(Tick())
    assert shell.bugs == 1
    assert "a bug of ours" in caplog.text
    with pytest.raises(UsageError):
        shell.handle(StopRequested(0.0))
    shell.journal.close()
