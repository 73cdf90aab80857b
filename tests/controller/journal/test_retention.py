"""What the journal drops: what is too old or too much, never what is still needed; and a sweep that does it."""

import sqlite3
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.base.errors import UsageError
from holdfast.controller.detectors.base.table import Tuning
from holdfast.controller.journal import pruning, retention
from holdfast.controller.journal.journal import Journal
from holdfast.controller.journal.pruning import Sweep
from holdfast.controller.journal.retention import (
    EntityRow,
    HistoryRow,
    JournalRetention,
    Needed,
    StepMark,
    entities_to_drop,
    history_to_drop,
    steps_to_drop,
)
from holdfast.controller.state.events import Record
from holdfast.controller.state.ledger import StepRow

DAY = 86400.0
NOW = 1000 * DAY
OLD, YOUNG = NOW - 91 * DAY, NOW - 89 * DAY


def dropped(rows: list[EntityRow], needed: Needed | None = None, **bounds: float) -> list[str]:
    found = entities_to_drop(rows, needed or Needed(), JournalRetention(**bounds), NOW)  # type: ignore[arg-type]
    return sorted(f"{row.kind} {row.id}" for row in found)


def test_incidents_are_dropped_by_age_and_by_count() -> None:
    rows = [EntityRow("incident", f"i{n}", OLD if n < 3 else YOUNG + n) for n in range(10)]
    assert dropped(rows) == ["incident i0", "incident i1", "incident i2"]
    assert dropped(rows, incidents=2) == [f"incident i{n}" for n in range(8)]
    assert dropped(rows, Needed(incidents=frozenset({"i1", "i5"})), incidents=2) == [
        f"incident i{n}" for n in (0, 2, 3, 4, 6, 7)
    ]


def test_the_incident_with_the_highest_number_stays() -> None:
    """Or the next one would have an id that was there before."""
    assert dropped([EntityRow("incident", f"i{n}", OLD - n) for n in (8, 9, 10)]) == ["incident i8", "incident i9"]


def test_a_job_goes_with_all_that_is_of_it() -> None:
    kinds = ("job", "time", "plan", "extras")
    rows = [EntityRow(kind, id, at) for kind in kinds for id, at in (("a", OLD), ("b", YOUNG), ("c", OLD))]
    rows += [EntityRow("exit", f"{id}:3", OLD) for id in "abc"]
    assert dropped(rows, Needed(jobs=frozenset("c"))) == ["exit a:3", "extras a", "job a", "plan a", "time a"]
    rows = [EntityRow("job", f"j{n}", YOUNG + n) for n in range(5)] + [EntityRow("time", "j1", NOW)]
    assert dropped(rows, Needed(jobs=frozenset({"j0"})), jobs=2) == ["job j1", "job j2", "time j1"]


def test_what_is_of_no_job_of_the_journal_goes_by_age() -> None:
    assert dropped([EntityRow("time", "x", OLD), EntityRow("time", "y", YOUNG)]) == ["time x"]


def test_nodes_that_are_here_or_kept_out_stay_and_diagnoses_have_their_own_bound() -> None:
    rows = [EntityRow("node", "n1", OLD), EntityRow("node", "n2", OLD), EntityRow("diagnosis", "3", OLD)]
    assert dropped([*rows, EntityRow("node", "n3", YOUNG)], Needed(nodes=frozenset({"n2"}))) == ["node n1"]


ROWS = st.lists(
    st.builds(
        EntityRow, st.sampled_from(["incident", "job", "time", "exit", "node", "diagnosis"]),
        st.integers(0, 30).map(lambda n: f"i{n}"), st.floats(NOW - 200 * DAY, NOW),
    ),
    max_size=60, unique_by=lambda row: (row.kind, row.id),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(ROWS, st.frozensets(st.integers(0, 30).map(lambda n: f"i{n}")), st.integers(1, 20))
def test_whatever_is_there(rows: list[EntityRow], ids: frozenset[str], most: int) -> None:
    needed = Needed(incidents=ids, jobs=ids, nodes=ids)
    bounds = JournalRetention(incidents=most, jobs=most)
    found = set(entities_to_drop(rows, needed, bounds, NOW))
    left = [row for row in rows if row not in found]
    assert not {row.id for row in found if row.kind != "exit"} & ids
    for kind in ("incident", "job"):
        own = [row for row in left if row.kind == kind]
        others = [row for row in own if row.id not in ids]
        assert len(others) <= most + (kind == "incident")
        assert sum(row.at < NOW - bounds.age for row in others) <= (kind == "incident")
    assert set(entities_to_drop(left, needed, bounds, NOW)) == set(), "a second sweep finds nothing"


def test_former_documents_of_jobs_that_are_not_over_stay_until_there_are_too_many() -> None:
    rows = [HistoryRow(1, OLD, "job", "a"), HistoryRow(2, OLD, "job", "b"), HistoryRow(3, YOUNG, "job", "b")]
    needed = Needed(jobs=frozenset({"a"}))
    assert history_to_drop(rows, 3, needed, JournalRetention(), NOW) == [rows[1]]
    assert history_to_drop(rows, 2 + retention.HISTORY_ROWS, needed, JournalRetention(), NOW) == rows[:2]


def test_the_oldest_steps_go_and_never_the_newest() -> None:
    rows = [StepMark(n, OLD if n < 3 else NOW) for n in range(5)]
    assert steps_to_drop(rows, 4, JournalRetention(), NOW) == rows[:3]
    assert steps_to_drop(rows, 2 + retention.STEP_NUMBERS, JournalRetention(), NOW) == rows[:3]
    assert steps_to_drop([StepMark(7, OLD)], 7, JournalRetention(), NOW) == []


def test_retention_is_no_shorter_than_the_window_of_lemons() -> None:
    JournalRetention(age=28 * DAY).check(Tuning())
    with pytest.raises(UsageError, match=r"retention_age is 20 days, but node-lemon counts evictions over 28 days"):
        JournalRetention(age=20 * DAY).check(Tuning())
    with pytest.raises(UsageError, match="over 120 days"):
        JournalRetention().check(Tuning(("node-lemon.days=120",)))
    JournalRetention(age=DAY).check(Tuning(("node-lemon.action=off",)))


# --- a sweep ------------------------------------------------------------------------------------------------------


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "state" / "controller.sqlite")


def go_on(_: float) -> bool:
    return False


def filled(journal: Journal) -> None:
    """A job that is over for long, one that runs, and incidents before and after the bound."""
    for at, job in ((OLD, "old"), (YOUNG, "new")):
        incidents = [Record("incident", f"i{n}", {}) for n in (range(300) if job == "old" else range(300, 310))]
        journal.write([Record("job", job, {}), Record("exit", f"{job}:0", {}), *incidents], at)
        journal.write_steps(job, [StepRow(n, 1.0, 0.1, 1, at, 1) for n in range(1500)])
        journal.write_steps(job, [], [StepRow(n, 1.0, 0.1, 1, at, 1) for n in range(300)])
    journal.write_steps("new", [StepRow(n, 1.0, 0.1, 1, OLD, 1) for n in range(20)])
    journal.write_steps("new", [], [StepRow(n, 1.0, 0.1, 1, OLD, 2) for n in range(7)])
    journal.write_steps("new", [], [StepRow(0, 1.0, 0.1, 1, YOUNG, generation) for generation in range(3, 103)])


def counts(journal: Journal) -> tuple[int, ...]:
    db = sqlite3.connect(journal.path)
    found = tuple(db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in ("entity", "history", "step"))
    db.close()
    return found


def test_a_sweep_leaves_what_is_within_the_bounds(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "READ", 100)
    filled(journal)
    sweep = Sweep(journal.path, Needed(jobs=frozenset({"new"})), JournalRetention(), NOW)
    sweep.run(go_on)
    assert counts(journal) == (12, 12, 1480)
    assert (len(sweep.entities), sweep.history, sweep.steps) == (302, 302, 1520 + 607)
    assert [row.generation for row in journal.superseded("new")] == list(range(3, 103))
    assert journal.superseded("old") == []
    db = sqlite3.connect(journal.path)
    assert db.execute("SELECT count(*) FROM step_meter").fetchone() == (1480,)
    db.close()
    assert [row.step for row in journal.steps("new")] == list(range(20, 1500))
    again = Sweep(journal.path, Needed(jobs=frozenset({"new"})), JournalRetention(), NOW)
    again.run(go_on)
    assert again.rows == 0
    journal.close()


def test_what_is_written_while_it_sweeps_stays(journal: Journal) -> None:
    filled(journal)
    written = []

    def rest(_: float) -> bool:
        if not written:
            written.append(journal.write([Record("incident", "i5", {"state": "open"})], NOW))
        return False

    Sweep(journal.path, Needed(jobs=frozenset({"new"})), JournalRetention(), NOW).run(rest)
    assert ("incident", "i5", {"state": "open"}) in journal.entities()
    journal.close()


def test_a_sweep_that_was_cut_off_anywhere_is_completed_by_the_next(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "READ", 500)
    filled(journal)
    for stop in range(60):
        left = iter(range(stop))
        sweep = Sweep(journal.path, Needed(jobs=frozenset({"new"})), JournalRetention(), NOW)
        sweep.run(lambda _: next(left, None) is None)  # noqa: B023
    assert counts(journal) == (12, 12, 1480)
    journal.close()


def test_no_batch_is_long(journal: Journal) -> None:
    """The figures are in benchmarks/RESULTS.md; here only that no batch has all of the work."""
    for n in range(20):
        journal.write([Record("incident", f"i{n * 100 + k}", {"text": "x" * 2000}) for k in range(100)], OLD)
    changes, sizes = journal._db.total_changes, []
    sweep = Sweep(journal.path, Needed(), JournalRetention(), NOW)
    before = 0

    def rest(seconds: float) -> bool:
        nonlocal before
        sizes.append(sweep.rows - before)
        before = sweep.rows
        assert seconds > 0.002
        return False

    begun = time.perf_counter()
    sweep.run(rest)
    assert time.perf_counter() - begun < 30
    assert (max(sizes), sweep.rows) == (pruning.DELETED, 1999 + 2000)
    assert journal._db.total_changes == changes
    journal.close()
