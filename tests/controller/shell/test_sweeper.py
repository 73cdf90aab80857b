"""The journal and the book keep within their bounds, and what is still needed stays in both."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from holdfast.base.config.controller import ControllerConfig
from holdfast.base.errors import UsageError
from holdfast.controller.app import build
from holdfast.controller.journal.journal import Journal
from holdfast.controller.journal.retention import JournalRetention
from holdfast.controller.shell.shell import Shell
from holdfast.controller.shell.sweeper import Sweeper
from holdfast.controller.state.events import Record
from tests.controller.support.virtual import Virtual

DAY = 86400.0


def came_back(tmp_path: Path) -> tuple[Shell, float]:
    """A controller that came back to a job that trains, after an incident that is over and one that is not."""
    v = Virtual(nodes=3)
    v.submit(nnodes=2, id="over")
    v.run(4.0)
    v.exit(1, signal=9)
    v.run(5.0)
    v.last_steps["over"] = 0
    v.run(5.0)
    v.submit(nnodes=2, id="runs")
    v.run(4.0)
    for _ in range(2):
        v.exit(1, signal=9, job="runs")
        v.run(8.0)
    journal = Journal(tmp_path / "controller.sqlite")
    for (kind, key), doc in v.saved.items():
        journal.write([Record(kind, key, doc)], v.instant.wall)
    journal.write([Record("node", name, {"cordoned": name == "gone1"}) for name in ("gone1", "gone2")], v.instant.wall)
    journal.write_steps("over", v.brain.jobs.brains["over"].c.ledger.sorted_rows())
    journal.close()
    return build(ControllerConfig(state_dir=tmp_path)), v.instant.wall


def kinds(shell: Shell) -> set[str]:
    return {f"{kind} {key}" for kind, key, _ in shell.journal.entities()}


def test_what_is_needed_stays_in_journal_and_book(tmp_path: Path) -> None:
    shell, at = came_back(tmp_path)
    book, before = shell.brain.c.book, kinds(shell)
    assert {i.job for i in book.incidents.values()} == {"over", "runs"}
    (opened,) = [i.id for i in book.incidents.values() if i.is_open]
    newest = max((i for i in book.incidents.values() if i.job == "runs" and not i.is_open), key=lambda i: i.opened)
    asyncio.run(Sweeper(shell, JournalRetention(), clock=lambda: at + 80 * DAY).sweep())
    assert kinds(shell) == before
    asyncio.run(Sweeper(shell, JournalRetention(), clock=lambda: at + 100 * DAY).sweep())
    left = kinds(shell)
    assert {"job runs", "time runs", "node gone1", f"incident {newest.id}"} <= left
    assert not left & {"job over", "time over", "node gone2"}
    assert set(book.incidents) == {opened, newest.id}
    assert {key for key in left if key.startswith("incident")} <= {f"incident {id}" for id in book.incidents}
    assert "gone2" not in shell.brain.c.histories
    assert shell.journal.steps("over") == []
    total = sum(book.forgotten.values()) + len(book.incidents)
    assert total == 4, "the metric of all incidents does not go down"
    shell.journal.close()


def test_an_error_of_the_disk_ends_the_sweep_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell, at = came_back(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr("holdfast.controller.journal.pruning.Sweep._delete", fail)
    asyncio.run(Sweeper(shell, JournalRetention(), clock=lambda: at + 100 * DAY).sweep())
    monkeypatch.undo()
    asyncio.run(Sweeper(shell, JournalRetention(), clock=lambda: at + 100 * DAY).sweep())
    assert "job over" not in kinds(shell)
    shell.journal.close()


def test_a_controller_does_not_start_with_a_retention_that_forgets_lemons(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="retention_age is 7 days, but node-lemon"):
        build(ControllerConfig(state_dir=tmp_path, retention_age=7 * DAY))
    for name in ("retention_age", "retention_incidents", "retention_jobs"):
        with pytest.raises(UsageError, match=name):
            ControllerConfig(**{name: 0})  # type: ignore[arg-type]
