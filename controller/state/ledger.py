"""The steps that a job finished, each once whatever was repeated."""

import math
from collections import deque
from dataclasses import dataclass, field

from holdfast.wire import types as t

_KEPT = 200_000  # newest steps in memory; the journal has them all


@dataclass(slots=True)
class StepRow:
    step: int
    loss: float
    seconds: float
    tokens: int
    at: float
    generation: int


@dataclass(slots=True)
class Ledger:
    """Rows by step. A step done again after a fault replaces what was lost."""

    rows: dict[int, StepRow] = field(default_factory=dict)
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=64))
    dirty: set[int] = field(default_factory=set)

    def add(self, record: t.StepRecord) -> bool:
        """Take one rank's record of a step; True when the step is new in its generation.

        A step lasts as long as its slowest rank and has the tokens of all; the loss is from any rank that reports one.
        The caller sees to it that no rank's record comes twice.
        """
        row = self.rows.get(record.step)
        if row is None or record.generation > row.generation:
            self.rows[record.step] = StepRow(
                record.step, record.loss, record.seconds, record.tokens, record.end_wall_ns / 1e9, record.generation
            )
            self.recent.append(record.seconds)
            self.dirty.add(record.step)
            if len(self.rows) > _KEPT:
                self.rows.pop(next(iter(self.rows)))
            return True
        if record.generation < row.generation:
            return False  # a late record of an earlier attempt
        if math.isnan(row.loss) and not math.isnan(record.loss):
            row.loss = record.loss
            self.dirty.add(record.step)
        if record.seconds > row.seconds:
            row.seconds = record.seconds
            self.dirty.add(record.step)
        row.tokens += record.tokens
        row.at = max(row.at, record.end_wall_ns / 1e9)
        return False

    def has(self, record: t.StepRecord) -> bool:
        """Is there a row of this step and this generation?"""
        row = self.rows.get(record.step)
        return row is not None and row.generation == record.generation

    def complete(self, record: t.StepRecord) -> None:
        """A record that may have been counted: take from it only what its step still lacks."""
        row = self.rows.get(record.step)
        if row is None or row.generation != record.generation or math.isnan(record.loss):
            return
        if math.isnan(row.loss):
            row.loss = record.loss
            self.dirty.add(record.step)

    def restore(self, rows: list[StepRow]) -> None:
        for row in rows:
            self.rows[row.step] = row
            self.recent.append(row.seconds)

    def take_dirty(self) -> list[StepRow]:
        """Rows changed since the last call, for the journal."""
        rows = [self.rows[step] for step in sorted(self.dirty) if step in self.rows]
        self.dirty.clear()
        return rows

    @property
    def last(self) -> StepRow | None:
        return self.rows[max(self.rows)] if self.rows else None

    @property
    def loss(self) -> float:
        """Of the newest step that has one: the rank with the last step's may not have reported it yet."""
        newest = max(self.rows, default=-1)
        rows = (self.rows.get(step) for step in range(newest, newest - 3, -1))
        return next((row.loss for row in rows if row is not None and not math.isnan(row.loss)), math.nan)

    def sorted_rows(self, since: int = -1) -> list[StepRow]:
        return [self.rows[s] for s in sorted(self.rows) if s > since]

    def tokens_per_second(self) -> float | None:
        """Over the newest steps that are whole: the last one may still miss some ranks' share."""
        rows = self.sorted_rows(max(self.rows, default=0) - 22)[:-1]
        seconds = sum(r.seconds for r in rows)
        tokens = sum(r.tokens for r in rows)
        return tokens / seconds if seconds and tokens else None
