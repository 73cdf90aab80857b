"""Slots and jobs from a file. Pure: the text comes in, both or one clear line go out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from holdfast.base.files import parse_toml
from holdfast.base.settings import nearest, parse_bytes
from holdfast.planner.sharing.errors import SharingError
from holdfast.planner.sharing.jobs import SharedJob
from holdfast.planner.sharing.scheduler import CoScheduler

MOST_SLOTS = 4096
MOST_JOBS = 1000
MOST_TASKS = 200_000
"""Roles of all iterations of all jobs together: a few seconds."""
_MOST_ITERATIONS = 10**9
_MOST_S = 1e9
_TOP = ("slots", "memory", "job")
_JOB = ("name", "k", "forward_s", "backward_s", "sync_s", "iterations", "states", "activations", "submitted_s",
        "partial")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shared:
    """What a file describes."""

    slots: int
    memory_bytes: float
    """Of a slot; infinite where the file says nothing."""
    jobs: tuple[SharedJob, ...]


def parse(text: str, name: str = "jobs file") -> Shared:
    """SharingError says what is wrong, where, and what would be right."""
    found = parse_toml(text, name)
    try:
        return _shared(found)
    except SharingError as error:
        raise SharingError(f"{name}: {error}") from None


def _shared(top: Mapping[str, Any]) -> Shared:
    _known(top, _TOP, "the file")
    tables = top.get("job", [])
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        raise SharingError("no jobs: write a table [[job]] for each")
    if len(tables) > MOST_JOBS:
        raise SharingError(f"{len(tables):,} jobs: {MOST_JOBS:,} at most")
    slots = _count(top, "slots", "the file", MOST_SLOTS)
    jobs = tuple(_job(table, f"job {number}") for number, table in enumerate(tables, 1))
    tasks = sum(job.roles * job.iterations for job in jobs)
    if tasks > MOST_TASKS:
        raise SharingError(
            f"the jobs have {tasks:,} roles in all iterations, {MOST_TASKS:,} at most: "
            "divide all iterations by one number"
        )
    memory = _size(top, "memory", "the file", inf)
    checked = CoScheduler(slots, memory)
    for job in jobs:
        checked.submit(job)
    return Shared(slots, memory, jobs)


def _job(table: Mapping[str, Any], where: str) -> SharedJob:
    _known(table, _JOB, where)
    name = table.get("name", where.replace(" ", ""))
    if not isinstance(name, str) or not 0 < len(name) <= 100:
        raise SharingError(f"{where} name is {str(name)[:40]!r}: must be 1 to 100 characters in quotes")
    partial = table.get("partial", True)
    if not isinstance(partial, bool):
        raise SharingError(f"{where} partial is {str(partial)[:40]}: write true or false")
    forward = _seconds(table, "forward_s", where)
    if not forward:
        raise SharingError(f"{where} forward_s is 0: must be above 0")
    return SharedJob(
        name,
        _count(table, "k", where, MOST_SLOTS),
        forward,
        _seconds(table, "backward_s", where),
        _count(table, "iterations", where, _MOST_ITERATIONS),
        _seconds(table, "sync_s", where, 0.0),
        _size(table, "states", where, 0.0),
        _size(table, "activations", where, 0.0),
        _seconds(table, "submitted_s", where, 0.0),
        partial,
    )


def _known(entry: Mapping[str, Any], names: Collection[str], where: str) -> None:
    for key in entry:
        if key not in names:
            raise SharingError(f"{where} has {key[:40]!r}, which is no key of it{nearest(key[:40], names)}")


def _value(entry: Mapping[str, Any], key: str, where: str, default: object) -> Any:
    value = entry.get(key, default)
    if value is None:
        raise SharingError(f"{where} lacks {key}")
    return value


def _count(entry: Mapping[str, Any], key: str, where: str, most: int) -> int:
    value = _value(entry, key, where, None)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise SharingError(f"{where} {key} is {str(value)[:40]}: must be a whole number from 1 to {most:,}")
    return value


def _seconds(entry: Mapping[str, Any], key: str, where: str, default: float | None = None) -> float:
    value = _value(entry, key, where, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST_S:
        raise SharingError(f"{where} {key} is {str(value)[:40]}: must be seconds from 0 to {_MOST_S:g}")
    return float(value)


def _size(entry: Mapping[str, Any], key: str, where: str, default: float) -> float:
    value = entry.get(key)
    if value is None:
        return default
    try:
        size = parse_bytes(value) if isinstance(value, str) else None
    except (ValueError, OverflowError):
        size = None
    if size is None:
        raise SharingError(f'{where} {key} is {str(value)[:40]!r}: must be a size in quotes, such as "80GB"')
    return float(size)
