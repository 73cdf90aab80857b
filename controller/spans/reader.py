"""Reads spans: of the running job from memory, what is no longer there and earlier jobs from disk."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from holdfast.base.errors import Conflict, NotFound
from holdfast.controller.spans.window import SpanWindow, decoded
from holdfast.diagnostics.blame.report import MOST_SPANS
from holdfast.diagnostics.files import span_files
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.span_table import SpanTable

Read = Callable[[], tuple[SpanTable, JobShape]]
"""Takes a while; in any thread."""

_NEWEST = 256
"""Steps that are read by default."""


def read(
    window: SpanWindow, shape: JobShape, folder: Path | None, job: str, is_over: bool, first: int, last: int
) -> Read:
    """Steps `first` to `last` of a job, of all generations; -1: the newest that are whole, of one that is over all.

    `folder`: of all kept spans. Conflict before the first step, NotFound where there are none of these.
    """
    if window.is_empty and is_over:
        return read_kept(folder, job, first, last)
    whole = window.whole_steps()
    if whole is not None and 0 <= last < whole[0] and folder is not None and (folder / job).is_dir():
        return read_kept(folder, job, first, last)  # memory has let go of them
    return _read_newest(window, shape, first, last)


def _read_newest(window: SpanWindow, shape: JobShape, first: int, last: int) -> Read:
    """Of what is in memory."""
    whole = window.whole_steps()
    if whole is None:
        raise Conflict("no spans of a complete step yet")
    last = whole[1] if last < 0 else last
    first = max(whole[0], last - _NEWEST + 1) if first < 0 else first
    first = window.first_within(first, last, MOST_SPANS)
    parts = window.parts_of(first, last)
    if not parts:
        raise NotFound(f"no spans of steps {first} to {last} in memory, only of {whole[0]} to {whole[1]}")
    return lambda: (decoded(parts).of_steps(first, last), shape)


def read_kept(folder: Path | None, job: str, first: int, last: int) -> Read:
    """The same from the files of a job; -1: all. NotFound where there are none, also when they are read."""
    if folder is None or not re.fullmatch(r"[\w-]+", job) or not (folder / job).is_dir():
        raise NotFound(f"no spans of a job {job!r} are kept")
    high = 1 << 30 if last < 0 else last

    def found() -> tuple[SpanTable, JobShape]:
        table, shape = span_files.read(folder / job, max(first, 0), high)
        if not len(table):
            raise NotFound(f"no spans of steps {first} to {last} of job {job!r} are kept")
        return table, shape

    return found
