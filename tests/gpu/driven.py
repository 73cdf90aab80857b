"""Runs of jobs of several ranks, of which none hides another: one that fails or stands is ended, and those behind it go
on in new processes. No torch.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tests.gpu.conftest import Child, Start
from tests.gpu.jobs import Row, rows, started

_GRACE_S = 1.5
"""For the peers of a rank that has failed: they may have something to say, too."""


def driven(
    start: Start, folder: Path, jobs: Sequence[tuple[int, Sequence[Row]]], deadline_s: float, silent_s: float = 30.0
) -> Iterator[Row]:
    """The row of each run as it ends. `jobs`: (ranks, runs one after the other), all at once.

    A row with "error" says what each rank did. `silent_s`: how long a run may last; a first one starts processes, too.
    """
    give_up = time.monotonic() + deadline_s
    at_work = [_Job(start, folder, world, list(runs), silent_s) for world, runs in jobs if runs]
    while at_work:
        for job in list(at_work):
            yield from job.news(is_late=time.monotonic() > give_up)
            if job.is_over:
                at_work.remove(job)
        time.sleep(0.05)


class _Job:
    def __init__(self, start: Start, folder: Path, world: int, runs: list[Row], silent_s: float) -> None:
        self._start, self._folder, self._world, self._silent_s = start, folder, world, silent_s
        self._runs = runs
        """Those whose end is not known."""
        self._ranks: list[Child] = []
        self._begin()

    @property
    def is_over(self) -> bool:
        return not self._runs

    def _begin(self) -> None:
        self._ranks = started(self._start, self._folder, self._runs, self._world)
        self._heard = time.monotonic()
        self._failed: float | None = None

    def news(self, is_late: bool) -> Iterator[Row]:
        now = time.monotonic()
        codes = [rank.process.poll() for rank in self._ranks]  # first: a process may say something and end
        said = {row["name"]: row for row in rows(self._ranks[0]) if "name" in row}
        while self._runs and (row := said.get(self._runs[0]["name"])) is not None and self._goes_on(row):
            self._heard = now
            del self._runs[0]
            yield row
        if not self._runs:
            return
        if self._failed is None and (any(codes) or all(code is not None for code in codes)):
            self._failed = now
        has_failed = self._failed is not None and (
            now > self._failed + _GRACE_S or all(code is not None for code in codes)
        )
        is_silent = now > self._heard + self._silent_s
        if not (has_failed or is_silent or is_late):
            return
        yield self._ended("" if has_failed else f"not done after {now - self._heard:.0f} s")
        del self._runs[0]
        if is_late:
            yield from ({"name": run["name"], "error": "not begun: there was no time left"} for run in self._runs)
            self._runs.clear()
        elif self._runs:
            self._begin()

    def _goes_on(self, row: Row) -> bool:
        return "error" not in row or bool(row.get("goes_on"))

    def _ended(self, why: str) -> Row:
        """End all ranks of the run that is going on; what each of them did."""
        name = self._runs[0]["name"]
        living = [rank for rank in self._ranks if rank.process.poll() is None]
        for rank in living:
            with suppress(ProcessLookupError):
                os.kill(rank.pid, signal.SIGUSR2)
        give_up = time.monotonic() + 2
        while not all("-- end of stacks" in rank.output for rank in living) and time.monotonic() < give_up:
            time.sleep(0.05)
        texts = []
        for number, rank in enumerate(self._ranks):
            code = rank.process.poll()
            rank.end()
            errors = [row["error"] for row in rows(rank) if row.get("name") == name and "error" in row]
            end = "was still there" if code is None else f"ended with {code}"
            texts.append(f"rank {number}: {errors[-1] if errors else 'no error'}; {end}\n{rank.output[-4000:]}")
        return {"name": name, "error": "\n".join([why, *texts]).strip()}
