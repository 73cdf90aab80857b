"""The steps that a job finished, each once whatever was repeated."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from holdfast.wire import types as t

_KEPT = 200_000  # newest steps in memory; the journal has them all
_KEPT_SUPERSEDED = 50_000


@dataclass(slots=True)
class StepRow:
    step: int
    loss: float
    seconds: float
    tokens: int
    at: float
    generation: int
    mfu: float = math.nan
    grad_norm: float = math.nan


@dataclass(slots=True)
class Ledger:
    """Rows by step. A step done again after a fault replaces what was lost, which is kept as superseded."""

    rows: dict[int, StepRow] = field(default_factory=dict)
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=64))
    dirty: set[int] = field(default_factory=set)
    newest: int = -1
    """The last step of the newest generation that did one: rows after it will be done again."""
    generation: int = 0
    superseded: dict[tuple[int, int], StepRow] = field(default_factory=dict)
    """(generation, step): what an earlier generation had done and a later one did again."""
    _dirty_superseded: list[StepRow] = field(default_factory=list)
    _early: tuple[int, int, t.Meters] | None = None
    """(generation, step, meters) that came before their step's record."""

    def add(self, record: t.StepRecord) -> bool:
        """Take one rank's record of a step; True when the step is new in its generation.

        A step lasts as long as its slowest rank and has the tokens of all; the loss is from any rank that reports one.
        The caller sees to it that no rank's record comes twice.
        """
        row = self.rows.get(record.step)
        if row is None or record.generation > row.generation:
            if row is not None:
                self._supersede(row)
            self.rows[record.step] = StepRow(
                record.step, record.loss, record.seconds, record.tokens, record.end_wall_ns / 1e9, record.generation
            )
            self._take_newest(self.rows[record.step])
            if self._early is not None and self._early[:2] == (record.generation, record.step):
                self.measure(*self._early)
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

    def measure(self, generation: int, step: int, meters: t.Meters) -> None:
        """What a rank says that this step was worth, or will be said of the next one."""
        row = self.rows.get(step)
        if row is None or row.generation != generation:
            self._early = generation, step, meters
            return
        if math.isnan(row.mfu) and math.isnan(row.grad_norm):  # all ranks say the same of a step
            row.mfu, row.grad_norm = meters.mfu, meters.grad_norm
            self.dirty.add(step)

    def _take_newest(self, row: StepRow) -> None:
        if row.generation > self.generation:
            self.generation, self.newest = row.generation, row.step
        elif row.generation == self.generation:
            self.newest = max(self.newest, row.step)

    def _supersede(self, row: StepRow) -> None:
        self.superseded[row.generation, row.step] = row
        self._dirty_superseded.append(row)
        if len(self.superseded) > _KEPT_SUPERSEDED:
            self.superseded.pop(next(iter(self.superseded)))

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
            self._take_newest(row)
            self.recent.append(row.seconds)

    def restore_superseded(self, rows: Iterable[StepRow]) -> None:
        """The newest that fit, by generation and step."""
        self.superseded = {(row.generation, row.step): row for row in [*rows][-_KEPT_SUPERSEDED:]}

    def take_dirty(self) -> list[StepRow]:
        """Rows changed since the last call, for the journal."""
        rows = [self.rows[step] for step in sorted(self.dirty) if step in self.rows]
        self.dirty.clear()
        return rows

    def take_superseded(self) -> list[StepRow]:
        """Likewise of those that were superseded since."""
        rows, self._dirty_superseded = self._dirty_superseded, []
        return rows

    def not_written(self, rows: Iterable[StepRow], superseded: Iterable[StepRow]) -> None:
        """The journal did not take them: they are dirty as before."""
        self.dirty.update(row.step for row in rows)
        self._dirty_superseded[:0] = superseded

    @property
    def last(self) -> StepRow | None:
        return self.rows.get(self.newest)

    @property
    def loss(self) -> float:
        """Of the newest step that has one: the rank with the last step's may not have reported it yet."""
        rows = (self.rows.get(step) for step in range(self.newest, self.newest - 3, -1))
        return next((row.loss for row in rows if row is not None and not math.isnan(row.loss)), math.nan)

    def sorted_rows(self, since: int = -1) -> list[StepRow]:
        """Up to the newest step: what comes after it belongs to an earlier generation."""
        return [self.rows[s] for s in sorted(self.rows) if since < s <= self.newest]

    def earlier_rows(self) -> list[StepRow]:
        """What earlier generations did that was done again, or will be: by generation and step."""
        ahead = [row for row in self.rows.values() if row.step > self.newest]
        return sorted([*self.superseded.values(), *ahead], key=lambda row: (row.generation, row.step))

    def tokens_per_second(self) -> float | None:
        """Over the newest steps that are whole: the last one may still miss some ranks' share."""
        newest = range(max(0, self.newest - 21), self.newest)
        rows = [self.rows[step] for step in newest if step in self.rows]
        seconds = sum(r.seconds for r in rows)
        tokens = sum(r.tokens for r in rows)
        return tokens / seconds if seconds and tokens else None
