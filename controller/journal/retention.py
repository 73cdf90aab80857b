"""What of the journal is dropped at an instant: rows beyond an age or a count. Pure; `journal.pruning` deletes them.

The decision needs no documents. What must stay is given by name, from what the controller has in memory.
Rows of diagnoses are not named here: the journal has a fixed number of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.base.errors import UsageError
from holdfast.controller.detectors.base.table import Response, Tuning
from holdfast.wire import types as t

_DAY = 86400.0
HISTORY_ROWS = 1_000_000
"""Newest rows of the table of all former documents that are kept at most."""
STEP_NUMBERS = 1_000_000
"""How far the oldest step of a job may be behind its newest."""
MOMENTS_S = 15 * _DAY
"""Age at which moments of jobs are dropped, or `JournalRetention.age` where that is less: they are one a minute."""
_OF_JOBS = ("job", "time", "plan", "extras", "exit")
"""Kinds of entities that go with their job."""


@dataclass(frozen=True, slots=True)
class JournalRetention:
    """The bounds. `age`: seconds since the last change; `incidents`, `jobs`: how many are kept, the newest."""

    age: float = 90 * _DAY
    incidents: int = 10_000
    jobs: int = 1_000

    def check(self, tuning: Tuning) -> None:
        """UsageError where evictions would be forgotten that the rule for lemon nodes still counts."""
        kind = t.FindingKind.NODE_LEMON
        days = tuning.limit(kind, "days")
        if tuning.response(kind) is not Response.OFF and self.age < days * _DAY:
            raise UsageError(
                f"retention_age is {self.age / _DAY:g} days, but {kind.value} counts evictions over {days:g} days: "
                f"raise retention_age, or lower detectors {kind.value}.days"
            )


@dataclass(frozen=True, slots=True)
class Needed:
    """What stays whatever its age: ids of incidents, ids of jobs, names of nodes."""

    incidents: frozenset[str] = frozenset()
    jobs: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()


class EntityRow(NamedTuple):
    kind: str
    id: str
    at: float
    """Wall time of the last change."""


class HistoryRow(NamedTuple):
    seq: int
    at: float
    kind: str
    id: str


class StepMark(NamedTuple):
    step: int
    at: float


def entities_to_drop(
    rows: Iterable[EntityRow], needed: Needed, bounds: JournalRetention, now: float
) -> list[EntityRow]:
    """Of all entities, in any order. The newest incident stays as well: ids of later ones go on from its number."""
    rows = sorted(rows, key=lambda row: row.at, reverse=True)
    oldest = now - bounds.age
    of_jobs, incidents, jobs = [], 0, 0
    kept_jobs, known_jobs, drop = set(needed.jobs), set(needed.jobs), []
    last = max((row for row in rows if row.kind == "incident"), key=lambda row: _number(row.id), default=None)
    for row in rows:
        if row.kind == "incident":
            is_needed = row is last or row.id in needed.incidents
            incidents += 1
            if not is_needed and (row.at < oldest or incidents > bounds.incidents):
                drop.append(row)
        elif row.kind == "node":
            if row.at < oldest and row.id not in needed.nodes:
                drop.append(row)
        elif row.kind == "notice":
            if row.at < oldest and row.id != "mark":
                drop.append(row)
        elif row.kind == "job" and row.id not in needed.jobs:
            jobs += 1
            known_jobs.add(row.id)
            if row.at >= oldest and jobs <= bounds.jobs:
                kept_jobs.add(row.id)
        if row.kind in _OF_JOBS:
            of_jobs.append(row)
    for row in of_jobs:
        job = _job_of(row)
        if job not in kept_jobs and (job in known_jobs or row.at < oldest):
            drop.append(row)
    return drop


def history_to_drop(
    rows: Sequence[HistoryRow], newest: int, needed: Needed, bounds: JournalRetention, now: float
) -> list[HistoryRow]:
    """Of a stretch of the table of former documents. Those of jobs that are not over stay until there are too many:
    a damaged document is mended from them. `newest`: the highest number of all."""
    oldest, first = now - bounds.age, newest - HISTORY_ROWS
    return [
        row for row in rows
        if row.seq <= first or (row.at < oldest and not (row.kind == "job" and row.id in needed.jobs))
    ]  # fmt: skip


def steps_to_drop(rows: Sequence[StepMark], newest: int, bounds: JournalRetention, now: float) -> list[StepMark]:
    """Of the oldest steps of a job that stays, in order: those before the first that is kept. `newest`: its last
    step, which stays."""
    oldest, first = now - bounds.age, newest - STEP_NUMBERS
    drop = []
    for row in rows:
        if row.step == newest or (row.at >= oldest and row.step > first):
            break
        drop.append(row)
    return drop


def moments_from(bounds: JournalRetention, now: float) -> float:
    """The time from which moments of jobs that stay are kept."""
    return now - min(bounds.age, MOMENTS_S)


def _number(incident: str) -> int:
    digits = incident.removeprefix("i")
    return int(digits) if digits.isdecimal() and len(digits) < 19 else 0


def _job_of(row: EntityRow) -> str:
    return row.id.rpartition(":")[0] if row.kind == "exit" else row.id
