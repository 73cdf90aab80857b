"""Durable state survives the controller, also when it dies in the middle of a write."""

import math
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.base.errors import UsageError
from holdfast.controller.journal.journal import Journal
from holdfast.controller.state.events import Record
from holdfast.controller.state.ledger import StepRow

ROOT = Path(__file__).parents[3]


def row(step: int, loss: float = 1.5, generation: int = 1) -> StepRow:
    return StepRow(step, loss, 0.25, 64, 1000.0 + step, generation)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "controller.sqlite"


def test_the_newest_of_each_is_what_comes_back(path: Path) -> None:
    journal = Journal(path)
    journal.write([Record("job", "j1", {"n": 1}), Record("node", "node0", {"cordoned": True})], at=1.0)
    journal.write([Record("job", "j1", {"n": 2})], at=2.0)
    journal.write([], at=3.0)
    journal.close()
    journal = Journal(path)
    assert journal.entities() == [("node", "node0", {"cordoned": True}), ("job", "j1", {"n": 2})]
    journal.close()
    history = sqlite3.connect(path).execute("SELECT kind, doc FROM history ORDER BY seq").fetchall()
    assert history == [("job", '{"n": 1}'), ("node", '{"cordoned": true}'), ("job", '{"n": 2}')]


def test_superseded_steps_and_meters_come_back(path: Path) -> None:
    journal = Journal(path)
    former = [StepRow(n, 9.0, 0.25, 64, 1000.0, 1, 0.4, math.nan) for n in range(2)]
    newer = [StepRow(0, 1.5, 0.25, 64, 2000.0, 3, 0.41, 2.5)]
    journal.write_steps("j1", newer, former)
    journal.write_steps("j1", newer, [StepRow(0, 8.0, 0.25, 64, 1500.0, 2, math.nan, math.nan)])
    journal.close()
    journal = Journal(path)
    assert journal.steps("j1") == newer
    back = journal.superseded("j1")
    assert [(row.generation, row.step, row.loss) for row in back] == [(1, 0, 9.0), (1, 1, 9.0), (2, 0, 8.0)]
    assert back[0].mfu == 0.4
    assert math.isnan(back[0].grad_norm)
    assert journal.superseded("j2") == []
    journal.close()


def test_a_journal_without_meters_is_read_as_before(path: Path) -> None:
    """As earlier versions left it, whose table of steps had no others beside it."""
    journal = Journal(path)
    journal.write_steps("j1", [row(0)])
    journal.close()
    db = sqlite3.connect(path)
    db.executescript("DROP TABLE step_meter; DROP TABLE superseded;")
    db.close()
    journal = Journal(path)
    assert [r.loss for r in journal.steps("j1")] == [1.5]
    journal.close()


def test_steps_come_back_bit_for_bit_and_nan_as_nan(path: Path) -> None:
    journal = Journal(path)
    losses = [5.537479400634766, math.nan, math.inf, 0.1 + 0.2]
    journal.write_steps("j1", [row(step, loss) for step, loss in enumerate(losses)])
    journal.write_steps("j1", [row(3, 7.0, generation=2)])
    journal.write_steps("j2", [row(0)])
    journal.write_steps("j1", [])
    journal.close()
    journal = Journal(path)
    back = journal.steps("j1")
    journal.close()
    assert [r.step for r in back] == [0, 1, 2, 3]
    assert back[0] == row(0, losses[0])
    assert math.isnan(back[1].loss)
    assert back[2].loss == math.inf
    assert (back[3].loss, back[3].generation) == (7.0, 2)


def test_documents_hold_no_value_that_json_has_not(path: Path) -> None:
    journal = Journal(path)
    journal.write([Record("incident", "i1", {"a": math.nan, "b": [math.inf, (1.0, -math.inf)], "c": {"d": 2.5}})], 1.0)
    assert journal.entities() == [("incident", "i1", {"a": None, "b": [None, [1.0, None]], "c": {"d": 2.5}})]
    journal.close()


def test_a_row_that_no_file_can_hold_is_left_out_and_named(path: Path) -> None:
    journal = Journal(path)
    bad, huge = row(2), row(3)
    bad.seconds = None  # type: ignore[assignment]  # what the schema refuses, as it does NaN
    huge.tokens = 1 << 62 << 5
    assert journal.write_steps("j1", [row(1), bad, huge, row(4)]) == [
        "j1 2: NOT NULL constraint failed: step.seconds",
        "j1 3: Python int too large to convert to SQLite INTEGER",
    ]
    assert [r.step for r in journal.steps("j1")] == [1, 4]
    deep: dict[str, object] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    records = [Record("job", "a", {"n": 1}), Record("node", "\ud800", {}), Record("job", "b", {"n": object()}),
               Record("incident", "i1", deep), Record("job", "c", {"n": 3})]  # fmt: skip
    left_out = journal.write(records, 1.0)
    assert sorted(text.split(":")[0] for text in left_out) == ["incident i1", "job b", "node \ud800"]
    assert [key for _, key, _ in journal.entities()] == ["a", "c"]
    assert journal.write([Record("job", "a", {"n": 2})], 2.0) == []  # no transaction was left open
    journal.close()


def test_what_the_disk_refuses_is_no_fault_of_a_row(path: Path) -> None:
    """All of the batch or none, and the caller is notified."""
    journal = Journal(path)
    journal._db.execute("PRAGMA max_page_count = 1")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        journal.write([Record("job", str(n), {"n": "x" * 5000}) for n in range(100)], 1.0)
    journal._db.execute("PRAGMA max_page_count = 100000")
    assert journal.entities() == []
    assert journal.write([Record("job", "j1", {"n": 1})], 1.0) == []
    journal.close()


def edit(path: Path, statement: str, *values: object) -> None:
    db = sqlite3.connect(path)
    db.execute(statement, values)
    db.commit()
    db.close()


@pytest.mark.parametrize("raw", ["{", "", "[1]", '"text"', "1" * 5000, "[" * 100_000])
def test_a_damaged_document_is_left_out_and_named(raw: str, path: Path) -> None:
    journal = Journal(path)
    journal.write([Record("incident", "i1", {"n": 1}), Record("node", "node0", {"n": 2})], 1.0)
    journal.close()
    edit(path, "UPDATE entity SET doc = ? WHERE id = 'i1'", raw)
    journal = Journal(path)
    assert journal.entities() == [("node", "node0", {"n": 2})]
    assert [text.split(":")[0] for text in journal.damaged] == ["incident i1"]
    journal.close()


def test_the_newest_job_must_be_readable(path: Path) -> None:
    """Without it a controller would end its workers as orphaned workers."""
    journal = Journal(path)
    journal.write([Record("job", "old", {"n": 1})], 1.0)
    journal.write([Record("job", "new", {})], 2.0)
    edit(path, "UPDATE entity SET doc = '{' WHERE id = 'old'")
    assert journal.entities() == [("job", "old", {}), ("job", "new", {})], "that there is one is known"
    assert [text.split(":")[0] for text in journal.damaged] == ["job old"]
    edit(path, "UPDATE entity SET doc = '{' WHERE id = 'new'")
    with pytest.raises(UsageError, match=r"the document of the newest job is damaged \(new: .*docs/operations"):
        journal.entities()
    journal.close()


def test_damaged_steps_are_left_out(path: Path) -> None:
    journal = Journal(path)
    journal.write_steps("j1", [row(0), row(1), row(2)])
    edit(path, "UPDATE step SET seconds = 'soon' WHERE step = 1")
    assert [r.step for r in journal.steps("j1")] == [0, 2]
    assert len(journal.damaged) == 1
    journal.close()


def test_a_file_whose_pages_are_damaged_is_one_line(path: Path) -> None:
    journal = Journal(path)
    for n in range(200):
        journal.write([Record("incident", f"i{n}", {"text": "x" * 500})], float(n))
    journal._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    journal.close()
    raw = bytearray(path.read_bytes())
    raw[4096 * 3 : -4096] = os.urandom(len(raw) - 4096 * 4)
    path.write_bytes(raw)
    with pytest.raises(UsageError, match="docs/operations") as caught:
        Journal(path).entities()
    assert "\n" not in str(caught.value)


WRITER = """
import itertools, sys
from pathlib import Path
from holdfast.controller.state.events import Record
from holdfast.controller.journal.journal import Journal
from holdfast.controller.state.ledger import StepRow
journal = Journal(Path(sys.argv[1]))
for n in itertools.count():
    journal.write([Record("job", "a", {"n": n}), Record("job", "b", {"n": n})], float(n))
    journal.write_steps("a", [StepRow(2 * n, 1.0, 0.1, 1, float(n), 1), StepRow(2 * n + 1, 1.0, 0.1, 1, float(n), 1)])
    print(n, flush=True)
"""


def test_killed_between_any_two_instructions(path: Path) -> None:
    """Acknowledged writes are there; unfinished ones are there in full or not at all."""
    for lines in (1, 7, 40):
        command = [sys.executable, "-c", WRITER, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as writer:
            assert writer.stdout is not None
            for _ in range(lines):
                said = int(writer.stdout.readline())
            os.kill(writer.pid, signal.SIGKILL)
        journal = Journal(path)
        docs = {key: doc["n"] for _, key, doc in journal.entities()}
        steps = [r.step for r in journal.steps("a")]
        journal.close()
        assert docs["a"] == docs["b"] >= said
        assert steps == list(range(len(steps)))
        assert len(steps) % 2 == 0
        assert len(steps) >= 2 * said


def test_what_is_not_ours_is_refused_in_one_line(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"no database at all, but long enough to be taken for one" * 20)
    with pytest.raises(UsageError, match="cannot be used as the controller's journal: file is not a database"):
        Journal(path)


def test_a_foreign_version_is_refused(path: Path) -> None:
    Journal(path).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(UsageError, match=r"written by another version of holdfast \(journal 99, ours 1\)"):
        Journal(path)


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="give another --state-dir"):
        Journal(tmp_path / "file" / "controller.sqlite")
    (tmp_path / "controller.sqlite").mkdir()
    with pytest.raises(UsageError, match="unable to open database file"):
        Journal(tmp_path / "controller.sqlite")
