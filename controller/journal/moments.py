"""What jobs were in the past, read from the journal by whoever looks back. Each call has a connection of its own and
may be made in any thread; the controller writes meanwhile.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple


class Moment(NamedTuple):
    at: float
    """Unix seconds."""
    doc: dict[str, Any]
    """`shell.moment.moment`."""


def between(journal: Path, job: str, since: float, until: float) -> list[Moment]:
    """Moments of a job from `since` to `until`, oldest first. sqlite3.Error when the file cannot be read."""
    with _reading(journal) as db:
        found = db.execute(
            "SELECT at, doc FROM moment WHERE job = ? AND at >= ? AND at <= ? ORDER BY at", (job, since, until)
        )
        return [moment for row in found if (moment := _moment(*row)) is not None]


def newest(journal: Path, job: str, at: float) -> Moment | None:
    """The last one up to `at`; None where there is none. sqlite3.Error when the file cannot be read."""
    with _reading(journal) as db:
        found = db.execute("SELECT at, doc FROM moment WHERE job = ? AND at <= ? ORDER BY at DESC", (job, at))
        return next((moment for row in found if (moment := _moment(*row)) is not None), None)


def _moment(at: object, doc: object) -> Moment | None:
    """None for a damaged row: the others say enough."""
    try:
        read = json.loads(doc) if isinstance(doc, str) else None
    except ValueError:
        return None
    return Moment(at, read) if isinstance(read, dict) and isinstance(at, float) else None


@contextmanager
def _reading(journal: Path) -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(f"{journal.absolute().as_uri()}?mode=ro", uri=True)
    try:
        yield db
    finally:
        db.close()
