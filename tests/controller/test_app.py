"""A controller as it comes up: with what its journal knows."""

import asyncio
import math
from pathlib import Path

import pytest

from holdfast.base.config.controller import ControllerConfig
from holdfast.base.errors import UsageError
from holdfast.controller import app
from holdfast.controller.app import build
from holdfast.controller.journal.journal import Journal
from holdfast.controller.state.events import FrameSeen, Record, Tick
from holdfast.controller.state.ledger import StepRow
from holdfast.controller.state.model import JobStatus
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from tests.controller.support.stage import Sent, make_shell
from tests.controller.support.virtual import Virtual


def remember(folder: Path, v: Virtual) -> None:
    """Write the journal that the brain of `v` would have left."""
    journal = Journal(folder / "controller.sqlite")
    journal.write([Record(kind, key, doc) for (kind, key), doc in v.saved.items()], 1.0)
    if v.brain.jobs.newest.c.job is not None:
        journal.write_steps(v.job.spec.id, v.brain.jobs.newest.c.ledger.sorted_rows())
    journal.close()


def training() -> Virtual:
    v = Virtual()
    v.submit()
    v.run(5.0)
    return v


def test_from_nothing(tmp_path: Path) -> None:
    shell = build(ControllerConfig(state_dir=tmp_path / "new", heartbeat_interval=0.25, agent_grace=3.0))
    assert (shell.brain.jobs.newest, shell.brain.c.nodes) == (None, {})
    assert (shell.brain.c.options.heartbeat_interval, shell.brain.c.options.agent_grace) == (0.25, 3.0)
    shell.journal.close()


def test_a_running_job_is_taken_up(tmp_path: Path) -> None:
    v = training()
    remember(tmp_path, v)
    shell = build(ControllerConfig(state_dir=tmp_path))
    job = shell.brain.jobs.newest.c.job
    assert job is not None
    assert (job.spec, job.state, job.generation, job.nodes) == (v.job.spec, JobStatus.RUNNING, 1, ["node0", "node1"])
    assert shell.brain.jobs.newest.c.ledger.sorted_rows() == v.brain.jobs.newest.c.ledger.sorted_rows()
    assert [i.cause.kind for i in shell.brain.c.book.incidents.values()] == [t.FindingKind.CONTROLLER_RESTART]
    shell.journal.close()


def test_a_job_that_is_over_stays_over(tmp_path: Path) -> None:
    v = Virtual()
    v.last_step = 5
    v.submit()
    v.run(5.0)
    assert v.job.state is JobStatus.FINISHED
    remember(tmp_path, v)
    shell = build(ControllerConfig(state_dir=tmp_path))
    assert shell.brain.c.active() == []
    assert shell.brain.jobs.newest.c.job.exit_code == 0
    assert shell.brain.jobs.newest.c.book.live() is None
    shell.journal.close()


def test_a_fault_that_is_due_before_its_node_is_back(tmp_path: Path) -> None:
    """The controller died between a fault's step and the fault: there is no agent yet to ask."""
    v = Virtual()
    v.submit(faults=("kill@3:rank7",))
    v.run(5.0)
    v.saved["job", "j1"] = v.saved["job", "j1"] | {"fired": {}}
    remember(tmp_path, v)
    shell = build(ControllerConfig(state_dir=tmp_path))
    v.brain = shell.brain
    sent = Sent("node1")
    shell.sessions.open(sent)
    shell.handle(Tick())
    v.join("node0")
    shell.handle(Tick())
    assert sent.messages == []
    v.join("node1")
    shell.handle(Tick())
    [command] = sent.messages
    assert isinstance(command, msg.Command)
    assert command.order == msg.Inject("kill", 7)
    shell.journal.close()


def test_a_loss_that_comes_after_the_restart_is_kept(tmp_path: Path) -> None:
    """Its step was written down as the first rank reported it, and that one has no loss."""
    v = training()
    last = max(v.brain.jobs.newest.c.ledger.rows)
    rows = v.brain.jobs.newest.c.ledger.rows
    rows[last] = StepRow(last, math.nan, 0.3, 128, 1.0, 1)
    remember(tmp_path, v)
    shell = build(ControllerConfig(state_dir=tmp_path))
    v.brain = shell.brain
    v.join("node0")
    v.join("node1")
    record = t.StepRecord(7, 1, last, 10**9, 0.3, loss=2.5, tokens=128)
    shell.handle(FrameSeen("node1", t.Frame(1, 1, 1, steps=(record,))))
    assert shell.brain.jobs.newest.c.ledger.rows[last].loss == 2.5
    assert last in shell.brain.jobs.newest.c.ledger.dirty
    shell.journal.close()


def test_a_state_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="give another --state-dir"):
        build(ControllerConfig(state_dir=tmp_path / "file" / "state"))


def test_a_part_that_a_bug_ends_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One value that cannot be must not end the watcher of a month's training; what is wrong with the input does."""
    monkeypatch.setattr(app, "_AFTER_A_BUG", 0.0)
    shell, calls = make_shell(tmp_path), 0

    async def part() -> None:
        nonlocal calls
        calls += 1
        if calls < 4:
            raise OverflowError("Python int too large to convert to SQLite INTEGER")
        raise UsageError("no such scheduler")

    with pytest.raises(UsageError):
        asyncio.run(app._lasting(part, shell))
    assert (calls, shell.bugs) == (4, 3)
    shell.journal.close()
