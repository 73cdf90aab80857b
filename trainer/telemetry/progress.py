"""How far a long job has come: a bar for people at a terminal, else a line for every twentieth."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, TextIO

_QUIET_S = 1.0
"""Shorter work prints nothing."""


class ProgressBar:
    """Counts bytes up to `total`, and says so on `out`. A context manager."""

    def __init__(self, title: str, total: int, out: TextIO | None = None) -> None:
        self.title, self.total, self.out = title, max(total, 1), out or sys.stderr
        self.done, self._said = 0, 0
        self._begun = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def add(self, count: int) -> None:
        """So many bytes more are done."""
        self.done += count
        seconds = time.monotonic() - self._begun
        if seconds < _QUIET_S:
            return
        if self.out.isatty():
            self._draw()
            return
        twentieths = min(20 * self.done // self.total, 20)
        if twentieths > self._said:
            self._said = twentieths
            rate = self.done / seconds / 1e6
            print(
                f"{self.title}: {5 * twentieths}% of {self.total / 1e6:.1f} MB, {rate:.1f} MB/s",
                file=self.out,
                flush=True,
            )

    def _draw(self) -> None:
        if self._bar is None:
            from rich.console import Console  # here: only a terminal needs it
            from rich.progress import Progress as Bar

            self._bar = Bar(console=Console(file=self.out), transient=True)
            self._task = self._bar.add_task(self.title, total=self.total)
            self._bar.start()
        self._bar.update(self._task, completed=self.done)
