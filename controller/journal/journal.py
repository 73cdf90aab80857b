"""What must survive the controller: SQLite in WAL mode, written before anything is acted upon.

`synchronous=NORMAL`: a commit survives the death of the process at any instant; the last ones may be lost when the
whole machine loses power, and then the agents' own reports say what really runs.
"""

import json
import math
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from holdfast.base import private
from holdfast.base.errors import UsageError
from holdfast.controller.brain.restore import REMEDY
from holdfast.controller.state.events import Record
from holdfast.controller.state.ledger import StepRow

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entity (kind TEXT NOT NULL, id TEXT NOT NULL, doc TEXT NOT NULL, at REAL NOT NULL,
                                   PRIMARY KEY (kind, id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS entity_at ON entity (at, id, kind);
CREATE TABLE IF NOT EXISTS history (seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL,
                                    doc TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS step (job TEXT NOT NULL, step INTEGER NOT NULL, loss REAL, seconds REAL NOT NULL,
                                 tokens INTEGER NOT NULL, at REAL NOT NULL, generation INTEGER NOT NULL,
                                 PRIMARY KEY (job, step)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS step_meter (job TEXT NOT NULL, step INTEGER NOT NULL, mfu REAL, grad_norm REAL,
                                       PRIMARY KEY (job, step)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS superseded (job TEXT NOT NULL, generation INTEGER NOT NULL, step INTEGER NOT NULL, loss REAL,
                                       seconds REAL NOT NULL, tokens INTEGER NOT NULL, at REAL NOT NULL, mfu REAL,
                                       grad_norm REAL, PRIMARY KEY (job, generation, step)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS moment (job TEXT NOT NULL, at REAL NOT NULL, doc TEXT NOT NULL,
                                   PRIMARY KEY (job, at)) WITHOUT ROWID;
"""
_VERSION = 1
_OF_ENTITIES = (
    "INSERT OR REPLACE INTO entity (kind, id, doc, at) VALUES (?, ?, ?, ?)",
    "INSERT INTO history (kind, id, doc, at) VALUES (?, ?, ?, ?)",
)
_OF_STEPS = "INSERT OR REPLACE INTO step VALUES (?, ?, ?, ?, ?, ?, ?)"
_OF_METERS = "INSERT OR REPLACE INTO step_meter VALUES (?, ?, ?, ?)"
_OF_SUPERSEDED = "INSERT OR REPLACE INTO superseded VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_READ_STEPS = """
SELECT step.step, loss, seconds, tokens, at, generation, mfu, grad_norm
FROM step LEFT JOIN step_meter USING (job, step) WHERE job = ? ORDER BY step.step
"""
_READ_SUPERSEDED = """
SELECT step, loss, seconds, tokens, at, generation, mfu, grad_norm
FROM superseded WHERE job = ? ORDER BY generation, step
"""
_OF_MOMENTS = "INSERT OR REPLACE INTO moment VALUES (?, ?, ?)"
_OF_THE_ROW = (
    sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError,
    ValueError, OverflowError, TypeError, RecursionError,
)  # fmt: skip
"""What a row is refused for, and the next one may not be: a disk that is full is another matter."""


class Journal:
    def __init__(self, path: Path) -> None:
        """Open or create. UsageError in one line when the file is not a journal or cannot be written."""
        self.path = path
        self.damaged: list[str] = []
        """What was read and could not be understood, one line each."""
        private.state_folder(path.parent)
        try:
            # SQLite gives what it makes beside it the same mode.
            for one in (path, *path.parent.glob(f"{path.name}-*")):
                private.make_file(one)
        except OSError as error:
            raise UsageError(f"{path}: cannot be used as the controller's journal: {error.strerror}") from None
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version not in (0, _VERSION):
                raise UsageError(f"{path}: written by another version of holdfast (journal {version}, ours {_VERSION})")
            self._db.executescript(_SCHEMA)
            self._db.execute(f"PRAGMA user_version={_VERSION}")
        except sqlite3.Error as error:
            raise UsageError(f"{path}: cannot be used as the controller's journal: {error}") from None

    def write(self, records: Iterable[Record], at: float) -> list[str]:
        """Commit all of them or none, but for what no file could hold: that is left out and named.

        sqlite3.Error when the disk does not take it.
        """
        rows, left_out = [], []
        for r in records:
            try:
                rows.append((r.kind, r.id, json.dumps(_plain(r.doc)), at))
            except _OF_THE_ROW as error:
                left_out.append(f"{r.kind} {r.id}: {error}")
        return left_out + self._commit(rows, *_OF_ENTITIES) if rows else left_out

    def write_steps(self, job: str, rows: Sequence[StepRow], superseded: Sequence[StepRow] = ()) -> list[str]:
        """The same for steps, and for those that others took the place of."""
        steps = [(job, r.step, _null(r.loss), r.seconds, r.tokens, r.at, r.generation) for r in rows]
        meters = [(job, r.step, _null(r.mfu), _null(r.grad_norm)) for r in rows]
        former = [
            (job, r.generation, r.step, _null(r.loss), r.seconds, r.tokens, r.at, _null(r.mfu), _null(r.grad_norm))
            for r in superseded
        ]
        left_out = self._commit(former, _OF_SUPERSEDED) if former else []
        left_out += self._commit(steps, _OF_STEPS) if steps else []
        return left_out + (self._commit(meters, _OF_METERS) if meters else [])

    def write_moments(self, moments: Iterable[tuple[str, dict[str, Any]]], at: float) -> list[str]:
        """The same for what jobs are now: (id of the job, `shell.moment.moment`)."""
        return self._commit([(job, at, json.dumps(_plain(doc))) for job, doc in moments], _OF_MOMENTS)

    def _commit(self, rows: list[tuple[Any, ...]], *statements: str) -> list[str]:
        try:
            with _Transaction(self._db) as db:
                for statement in statements:
                    db.executemany(statement, rows)
        except _OF_THE_ROW:
            return self._commit_what_fits(rows, statements)
        return []

    def _commit_what_fits(self, rows: list[tuple[Any, ...]], statements: tuple[str, ...]) -> list[str]:
        left_out = []
        with _Transaction(self._db) as db:
            for row in rows:
                db.execute("SAVEPOINT one")
                try:
                    for statement in statements:
                        db.execute(statement, row)
                except _OF_THE_ROW as error:
                    db.execute("ROLLBACK TO one")
                    left_out.append(f"{' '.join(str(value)[:40] for value in row[:2])}: {error}")
                db.execute("RELEASE one")
        return left_out

    def entities(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Every entity's newest document, oldest change first; `damaged` names those that cannot be read.

        UsageError when the newest job is among them: without it a controller would end what runs as orphaned workers.
        """
        found: list[tuple[str, str, dict[str, Any]]] = []
        newest_job: str | None = None
        try:
            for kind, key, raw in self._db.execute("SELECT kind, id, doc FROM entity ORDER BY at, id"):
                try:
                    doc = json.loads(raw)
                    if not isinstance(doc, dict):
                        raise ValueError("not a JSON document")
                except _OF_THE_ROW as error:
                    self.damaged.append(f"{kind} {key}: {error}")
                    if kind == "job":
                        newest_job = f"{key}: {error}"
                        found.append((kind, key, {}))  # that there is one must be known: its workers may run
                    continue
                newest_job = None if kind == "job" else newest_job
                found.append((kind, key, doc))
        except sqlite3.Error as error:
            raise UsageError(f"{self.path}: {error}; {REMEDY}") from None
        if newest_job is not None:
            raise UsageError(f"{self.path}: the document of the newest job is damaged ({newest_job}); {REMEDY}")
        return found

    def steps(self, job: str) -> list[StepRow]:
        """Those that can be read; `damaged` names the others."""
        return self._rows(_READ_STEPS, job)

    def superseded(self, job: str) -> list[StepRow]:
        """Likewise of what earlier generations did that was done again."""
        return self._rows(_READ_SUPERSEDED, job)

    def _rows(self, statement: str, job: str) -> list[StepRow]:
        rows: list[StepRow] = []
        try:
            for step, loss, seconds, *rest in self._db.execute(statement, (job,)):
                try:
                    tokens, at, generation, mfu, grad_norm = rest
                    row = StepRow(
                        _int(step), _float(loss), float(seconds), _int(tokens), float(at), _int(generation),
                        _float(mfu), _float(grad_norm),
                    )  # fmt: skip
                except _OF_THE_ROW as error:
                    self.damaged.append(f"step {step!r:.40} of {job}: {error}")
                    continue
                rows.append(row)
        except sqlite3.Error as error:
            raise UsageError(f"{self.path}: {error}; {REMEDY}") from None
        return rows

    def close(self) -> None:
        self._db.close()


class _Transaction:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> sqlite3.Connection:
        self._db.execute("BEGIN IMMEDIATE")
        return self._db

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._db.execute("COMMIT")
        elif self._db.in_transaction:  # a disk that is full has ended it already
            self._db.execute("ROLLBACK")


def _plain(value: Any) -> Any:
    """JSON has no NaN or infinity; None says the same."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def _null(value: float) -> float | None:
    return None if math.isnan(value) else value


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)


def _int(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r:.40} is not a whole number")
    return value
