"""One server's share of the tables, what it counted, and which requests it may serve now. Pure: no socket, no lock.

Each trainer writes back once in each iteration, also when it has nothing. So `done` says which iterations are complete,
and serves three rules:

- a fetch that may not overtake the write-backs of iteration k waits until every trainer has done k;
- a write-back that is repeated after a reconnect has a number that is done, and changes nothing;
- a snapshot is taken between two iterations: the next one waits until all trainers have written back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import xxhash

from holdfast.base.errors import ProtocolError
from holdfast.trainer.embeddings.servers.keys import Keys, Rows, dtype_of, first_values
from holdfast.trainer.embeddings.servers.rows import MemoryRows, RowStore

OPTIMIZERS = {"sgd": 0, "rowwise-adagrad": 1}
"""What changes rows (`holdfast.trainer.embeddings.update`), and how many columns of state it adds to each."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What must be the same in all processes of a run."""

    trainers: int
    dim: int
    dtype: str
    seed: int
    first: int
    """Number of the first iteration: above 0 after a restore."""
    optimizer: str = "sgd"

    @property
    def width(self) -> int:
        """Numbers in a row: `dim`, and behind them the optimizer's state, which begins at 0."""
        return self.dim + OPTIMIZERS[self.optimizer]


class Tables:
    def __init__(self, spec: Spec, rows: RowStore | None = None) -> None:
        """`rows`: where they are, none of them at first; in memory if not given."""
        self.spec = spec
        self.dtype = dtype_of(spec.dtype)
        self._rows = MemoryRows(spec.width, spec.dtype) if rows is None else rows
        self._fetched = [spec.first - 1] * spec.trainers
        self.done = [spec.first - 1] * spec.trainers
        """By trainer, the last iteration that it has written back."""
        self._cut: int | None = None
        self.fetches = self.fetched_bytes = self.write_backs = self.written_bytes = self.repeats = 0

    def __len__(self) -> int:
        return len(self._rows)

    def may_fetch(self, after: int) -> bool:
        """Whether all write-backs of iteration `after` and those before it are here."""
        return min(self.done) >= after

    def fetch(self, trainer: int, batch: int, keys: Keys) -> Rows:
        """The rows, which begin to exist with their first fetch. One that is repeated is counted once.

        Raises ProtocolError for a trainer that is none.
        """
        self._check(trainer)
        found = self.rows_of(keys)
        if batch > self._fetched[trainer]:
            self._fetched[trainer] = batch
            self.fetches += len(keys)
            self.fetched_bytes += found.nbytes
        else:
            self.repeats += 1
        return found

    def may_write(self, number: int) -> bool:
        """Whether a write-back of this iteration may be applied: no snapshot of an earlier one is incomplete."""
        return self._cut is None or number <= self._cut

    def write(self, trainer: int, number: int, keys: Keys, rows: Rows, *, cut: bool = False) -> bool:
        """Apply a trainer's write-back of an iteration; whether it is the last one before a snapshot is taken.

        `cut`: a snapshot follows this iteration. One that was applied before changes nothing. Raises ProtocolError for
        one out of order: write-backs in between are lost.
        """
        self._check(trainer)
        if number <= self.done[trainer]:
            self.repeats += 1
            return False
        if number != self.done[trainer] + 1:
            raise ProtocolError(
                f"trainer {trainer} writes back iteration {number}, the last one here is {self.done[trainer]}: the"
                " server lost what came between; start again from a snapshot"
            )
        if rows.shape != (len(keys), self.spec.width) and len(keys):
            raise ProtocolError(f"rows of shape {rows.shape} for {len(keys)} keys of {self.spec.width} columns")
        self.set_rows(keys, rows)
        self.write_backs += len(keys)
        self.written_bytes += rows.nbytes if len(keys) else 0
        self.done[trainer] = number
        if cut:
            self._cut = number
        if self._cut is None or min(self.done) < self._cut:
            return False
        self._cut = None
        return True

    def rows_of(self, keys: Keys) -> Rows:
        """(keys, width): a copy. Counts nothing."""
        rows, there = self._rows.read(keys)
        if not there.all():
            made = keys[~there]
            fresh = np.zeros((len(made), self.spec.width), self.dtype)
            fresh[:, : self.spec.dim] = first_values(made, self.spec.dim, self.spec.seed, self.dtype)
            rows[~there] = fresh
            self.set_rows(made, fresh)
        return rows

    def set_rows(self, keys: Keys, rows: Rows) -> None:
        if len(keys):
            self._rows.write(keys, rows)

    def copy(self) -> tuple[Keys, Rows]:
        """All keys, sorted, and their rows."""
        keys = self._rows.keys()
        return keys, self._rows.read(keys)[0]

    def digest(self) -> int:
        """Sum of the rows' hashes modulo 2**64: the same however rows are shared out over servers, which add up."""
        keys, rows = self.copy()
        return sum(
            xxhash.xxh3_64_intdigest(key.tobytes() + row.tobytes()) for key, row in zip(keys, rows, strict=True)
        ) % (1 << 64)

    def figures(self) -> Mapping[str, int]:
        """Counted since the tables were opened, and their state."""
        return {
            "rows": len(self),
            "fetches": self.fetches,
            "fetched_bytes": self.fetched_bytes,
            "write_backs": self.write_backs,
            "written_bytes": self.written_bytes,
            "repeats": self.repeats,
            "digest": self.digest(),
        }

    def _check(self, trainer: int) -> None:
        if not 0 <= trainer < self.spec.trainers:
            raise ProtocolError(f"trainer {trainer}: this run has {self.spec.trainers}")
