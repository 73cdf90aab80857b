"""What jobs were, written and read back."""

import sqlite3
import threading
from pathlib import Path

import pytest

from holdfast.controller.journal import moments
from holdfast.controller.journal.journal import Journal
from holdfast.controller.journal.pruning import Sweep
from holdfast.controller.journal.retention import JournalRetention, Needed
from holdfast.controller.state.events import Record

DAY = 86400.0


def test_moments_are_read_between_two_times_and_before_one(tmp_path: Path) -> None:
    path = tmp_path / "odd #1?" / "c.sqlite"
    journal = Journal(path)
    for at in (10.0, 20.0, 30.0):
        journal.write_moments([("j1", {"step": int(at), "loss": float("nan")}), ("j2", {"step": -1})], at)
    assert [(one.at, one.doc["step"]) for one in moments.between(path, "j1", 15.0, 30.0)] == [(20.0, 20), (30.0, 30)]
    newest = moments.newest(path, "j1", 29.9)
    assert newest is not None
    assert newest.doc == {"step": 20, "loss": None}
    assert moments.newest(path, "j1", 9.9) is None
    assert moments.between(path, "ghost", 0.0, 99.0) == []
    read: list[object] = []
    other = threading.Thread(target=lambda: read.append(moments.newest(path, "j2", 99.0)))
    other.start()
    other.join()
    assert read == [moments.Moment(30.0, {"step": -1})]
    journal.close()


def test_a_damaged_moment_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    journal = Journal(path)
    journal.write_moments([("j1", {"step": 1})], 1.0)
    db = sqlite3.connect(path)
    db.execute("INSERT INTO moment VALUES ('j1', 2.0, '{'), ('j1', 3.0, '[]')")
    db.commit()
    db.close()
    assert [one.at for one in moments.between(path, "j1", 0.0, 9.0)] == [1.0]
    assert moments.newest(path, "j1", 9.0) == moments.Moment(1.0, {"step": 1})
    journal.close()


def test_a_file_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.Error):
        moments.newest(tmp_path / "none.sqlite", "j1", 1.0)


def test_old_moments_and_those_of_jobs_that_went_are_swept(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    journal = Journal(path)
    now = 100 * DAY
    journal.write([Record("job", "j1", {"spec": {}})], now)
    for i in range(300):
        journal.write_moments([("j1", {"step": i}), ("gone", {"step": i})], now - i * DAY / 10)
    sweep = Sweep(path, Needed(), JournalRetention(), now)
    sweep.run(lambda _: False)
    assert [one.doc["step"] for one in moments.between(path, "j1", 0.0, now)] == list(range(150, -1, -1))
    assert moments.between(path, "gone", 0.0, now) == []
    assert sweep.moments == 300 + 149
    journal.close()
