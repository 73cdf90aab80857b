"""Spans on disk: `STATE_DIR/spans/JOB/TIME.parquet`, written as they come, bounded by size and age.

Everything that takes time happens in one thread; while it is busy, parts wait, and beyond a bound the oldest go and
are counted. Without pyarrow nothing is kept, and the log says so once.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.base import log, private
from holdfast.controller.spans.window import Part, decoded, memory_of
from holdfast.diagnostics.files import span_files
from holdfast.diagnostics.steps.job_shape import JobShape

_EVERY = 30.0  # seconds of spans in a file ...
_QUIET = 5.0  # ... or as many as there are when no more have come for so long
_ENOUGH = 16 << 20  # ... or so many packed bytes, whichever comes first
_WAITING = 64 << 20
_SWEEP_EVERY = 60.0


@dataclass(slots=True)
class _Waiting:
    """Parts of one job that are not written yet."""

    since: float
    added: float = 0.0
    held: int = 0
    parts: deque[Part] = field(default_factory=deque)

    def is_due(self, now: float) -> bool:
        return now - self.since >= _EVERY or now - self.added >= _QUIET or self.held >= _ENOUGH


class SpanStore:
    def __init__(self, folder: Path, budget_bytes: int, max_age: float, shape: Callable[[str], JobShape]) -> None:
        """`budget_bytes` 0: keep nothing. `max_age` in seconds. `shape`: of a job by its id."""
        self.folder, self._budget, self._max_age, self._shape = folder, budget_bytes, max_age, shape
        self._waiting: dict[str, _Waiting] = {}
        self._held = 0
        self._cut: deque[tuple[list[Part], JobShape]] = deque()
        self._swept = 0.0
        self.written = self.dropped = 0
        self._is_wanted = budget_bytes > 0
        self._is_on = self._is_wanted and span_files.is_available()

    def add(self, part: Part) -> None:
        if not self._is_on:
            return
        now = time.monotonic()
        waiting = self._waiting.setdefault(part[1].job, _Waiting(now))
        waiting.added = now
        waiting.parts.append(part)
        waiting.held += memory_of(part)
        self._held += memory_of(part)
        while self._held > _WAITING:
            largest = max(self._waiting.values(), key=lambda one: one.held)
            oldest = largest.parts.popleft()
            largest.held -= memory_of(oldest)
            self._held -= memory_of(oldest)
            self.dropped += oldest[1].count

    async def run(self) -> None:
        """Writes until cancelled."""
        if self._is_wanted and not self._is_on:
            log.event("spans.not-kept", reason="no pyarrow: pip install 'holdfast[spans]'; the newest stay in memory")
        while True:
            await asyncio.sleep(1.0)
            now = time.monotonic()
            for job in [job for job, waiting in self._waiting.items() if waiting.is_due(now)]:
                self._take(job)
            while self._cut:
                await asyncio.to_thread(self._write, *self._cut.popleft())

    def _take(self, job: str) -> None:
        """What waits of this job is to be written."""
        waiting = self._waiting.pop(job)
        self._held -= waiting.held
        if waiting.parts:
            self._cut.append((list(waiting.parts), self._shape(job)))

    def _write(self, parts: list[Part], shape: JobShape) -> None:
        """Write a file and remove what is too old or too much. Errors of the disk are logged, not raised."""
        try:
            table = decoded(parts)
            folder = self.folder / (shape.job or "unknown")
            private.make_folder(self.folder)
            private.make_folder(folder)
            span_files.write(table, shape, folder / f"{time.time_ns() // 1_000_000}.parquet")
            self.written += len(table)
            if time.monotonic() - self._swept > _SWEEP_EVERY or not self._swept:
                self._swept = time.monotonic()
                sweep(self.folder, self._budget, time.time() - self._max_age)
        except OSError as error:
            log.error("spans.failed", error=str(error))
        except Exception as error:
            # Spans are made by other people's programs: what they break here must not end the watcher of the job.
            log.exception("spans.failed", error=repr(error))

    def close(self) -> None:
        """Write what waits."""
        for job in list(self._waiting):
            self._take(job)
        while self._cut:
            self._write(*self._cut.popleft())


def sweep(folder: Path, budget_bytes: int, oldest: float) -> int:
    """Remove files from before `oldest` (Unix seconds), then the oldest ones beyond the budget; how many."""
    files = sorted((file.stat().st_mtime, file.stat().st_size, file) for file in folder.glob("*/*.parquet"))
    total = sum(size for _, size, _ in files)
    for part in folder.glob("*/*.part"):  # of a controller that was killed: this one's are complete by now
        part.unlink(missing_ok=True)
    removed = 0
    for at, size, file in files:
        if at >= oldest and total <= budget_bytes:
            break
        file.unlink(missing_ok=True)
        total -= size
        removed += 1
    for job in folder.iterdir():
        if job.is_dir() and not any(job.iterdir()):
            job.rmdir()
    return removed
