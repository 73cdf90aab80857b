"""What must survive the controller: SQLite in WAL mode, written before anything is acted upon.

`synchronous=NORMAL`: a commit survives the death of the process at any instant; the last ones may be lost when the
whole machine loses power, and then the agents' own reports say what really runs.
"""

import json
import math
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from holdfast.controller.events import Record
from holdfast.controller.ledger import StepRow
from holdfast.errors import UsageError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entity (kind TEXT NOT NULL, id TEXT NOT NULL, doc TEXT NOT NULL, at REAL NOT NULL,
                                   PRIMARY KEY (kind, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS history (seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, id TEXT NOT NULL,
                                    doc TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS step (job TEXT NOT NULL, step INTEGER NOT NULL, loss REAL, seconds REAL NOT NULL,
                                 tokens INTEGER NOT NULL, at REAL NOT NULL, generation INTEGER NOT NULL,
                                 PRIMARY KEY (job, step)) WITHOUT ROWID;
"""
_VERSION = 1


class Journal:
    def __init__(self, path: Path) -> None:
        """Open or create. UsageError in one line when the file is not ours or cannot be written."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"state_dir {path.parent}: {error.strerror}; give another --state-dir") from None
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

    def write(self, records: Iterable[Record], at: float) -> None:
        """Commit all of them or none. sqlite3.Error when the disk does not take it."""
        rows = [(r.kind, r.id, json.dumps(_plain(r.doc)), at) for r in records]
        if not rows:
            return
        with _Transaction(self._db) as db:
            db.executemany("INSERT OR REPLACE INTO entity (kind, id, doc, at) VALUES (?, ?, ?, ?)", rows)
            db.executemany("INSERT INTO history (kind, id, doc, at) VALUES (?, ?, ?, ?)", rows)

    def write_steps(self, job: str, rows: Iterable[StepRow]) -> None:
        values = [
            (job, r.step, None if math.isnan(r.loss) else r.loss, r.seconds, r.tokens, r.at, r.generation) for r in rows
        ]
        if not values:
            return
        with _Transaction(self._db) as db:
            db.executemany("INSERT OR REPLACE INTO step VALUES (?, ?, ?, ?, ?, ?, ?)", values)

    def entities(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Every entity's newest document, oldest change first."""
        rows = self._db.execute("SELECT kind, id, doc FROM entity ORDER BY at, id")
        return [(kind, key, json.loads(doc)) for kind, key, doc in rows]

    def steps(self, job: str) -> list[StepRow]:
        rows = self._db.execute(
            "SELECT step, loss, seconds, tokens, at, generation FROM step WHERE job = ? ORDER BY step", (job,)
        )
        return [StepRow(s, math.nan if loss is None else loss, *rest) for s, loss, *rest in rows]

    def close(self) -> None:
        self._db.close()


class _Transaction:
    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> sqlite3.Connection:
        self._db.execute("BEGIN IMMEDIATE")
        return self._db

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._db.execute("COMMIT" if kind is None else "ROLLBACK")


def _plain(value: Any) -> Any:
    """JSON has no NaN or infinity; None says the same."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
