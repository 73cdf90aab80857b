"""What must survive the controller does: also when it dies in the middle of a write."""

import math
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.controller.events import Record
from holdfast.controller.journal import Journal
from holdfast.controller.ledger import StepRow
from holdfast.errors import UsageError

ROOT = Path(__file__).parents[2]


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


def test_documents_hold_no_number_that_json_has_not(path: Path) -> None:
    journal = Journal(path)
    journal.write([Record("incident", "i1", {"a": math.nan, "b": [math.inf, (1.0, -math.inf)], "c": {"d": 2.5}})], 1.0)
    assert journal.entities() == [("incident", "i1", {"a": None, "b": [None, [1.0, None]], "c": {"d": 2.5}})]
    journal.close()


def test_all_of_a_batch_or_none(path: Path) -> None:
    journal = Journal(path)
    journal.write([Record("job", "j1", {"n": 1})], 1.0)
    bad = row(2)
    bad.seconds = None  # type: ignore[assignment]  # what the schema refuses
    with pytest.raises(sqlite3.IntegrityError):
        journal.write_steps("j1", [row(1), bad])
    assert journal.steps("j1") == []
    journal.write_steps("j1", [row(1)])  # the failed one left no transaction open
    assert len(journal.steps("j1")) == 1
    journal.close()


WRITER = """
import itertools, sys
from pathlib import Path
from holdfast.controller.events import Record
from holdfast.controller.journal import Journal
from holdfast.controller.ledger import StepRow
journal = Journal(Path(sys.argv[1]))
for n in itertools.count():
    journal.write([Record("job", "a", {"n": n}), Record("job", "b", {"n": n})], float(n))
    journal.write_steps("a", [StepRow(2 * n, 1.0, 0.1, 1, float(n), 1), StepRow(2 * n + 1, 1.0, 0.1, 1, float(n), 1)])
    print(n, flush=True)
"""


def test_killed_between_any_two_instructions(path: Path) -> None:
    """What was said to be written is there, and what was begun is there whole or not at all."""
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
