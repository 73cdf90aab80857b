"""What every trainer does for each batch, from a plan that looks ahead (`holdfast.plan.cache.lookahead`). Pure.

A row is fetched by one trainer, the one with the batch's first sample that needs it. So a row that one sample alone
needs is fetched, trained and written back by one trainer, and is never sent to another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from holdfast.plan.cache.lookahead import look_ahead
from holdfast.plan.cache.window import Window
from holdfast.trainer.embeddings.criteo import Sample


@dataclass(frozen=True, slots=True)
class Iteration:
    """What goes with one batch. All keys are sorted, and the same at every trainer."""

    number: int
    samples: Sequence[Sample]
    fetch: Mapping[int, Sequence[Sequence[int]]]
    """By the batch that needs them, and by trainer: rows whose fetch may begin when the batches before this one are
    done. The batches are in order."""
    arriving: Sequence[Sequence[int]]
    """By trainer: the rows that it fetched for this batch and that others need too."""
    lone: Sequence[Sequence[int]]
    """By trainer: the rows that it fetched for this batch and keeps to itself."""
    sync_now: Sequence[int]
    sync_later: Sequence[int]
    alone: Sequence[Sequence[int]]
    """By trainer: rows of one of its samples that leave the cache; no other trainer has a gradient."""
    evict: Sequence[Sequence[int]]
    """By trainer: the rows that it writes back, `alone` not among them."""
    flush: bool
    """Whether everything in the cache is written back, too, without leaving it: a snapshot follows."""


@dataclass
class FetchFormula:
    """Fetches by the formula: one for each row, and one more for each gap between two uses of which the first was done
    when the second came into the queue. In a window of L batches that is each gap of L or more. It knows nothing of
    caches."""

    total: int = 0

    def __post_init__(self) -> None:
        self._last: dict[int, int] = {}

    def add(self, number: int, keys: Iterable[int], begun: int) -> None:
        """Counts a batch's rows; call it for each batch once, in order. `begun`: the batch that was worked on when this
        one came into the queue, `number` - L + 1 in a window of L batches."""
        for key in set(keys):
            last = self._last.get(key)
            if last is None or last < begun:
                self.total += 1
            self._last[key] = number


def share(size: int, trainers: int, rank: int) -> range:
    """The samples of a batch that a trainer has: contiguous, their numbers differ by one at most."""
    return range(size * rank // trainers, size * (rank + 1) // trainers)


def iterations(
    batches: Iterable[Sequence[Sample]], window: int | Window, trainers: int, first: int = 0, snapshot_every: int = 0
) -> Iterator[Iteration]:
    """An iteration for each batch, in order. `first`: the number of the first batch, above 0 after a restore.

    Holds the batches of the queue, and at most one more, which did not fit. A snapshot comes behind each batch whose
    number + 1 is a multiple of `snapshot_every`.
    """
    queue: dict[int, tuple[Sequence[Sample], dict[int, int]]] = {}
    fetched: dict[int, Sequence[Sequence[int]]] = {}

    def keys() -> Iterator[list[tuple[int, ...]]]:
        for number, batch in enumerate(batches):
            queue[number] = batch, _first_users(batch, trainers)
            yield [sample.keys for sample in batch]

    for plan in look_ahead(keys(), window):
        fetch = {number: _by_trainer(rows, queue[number][1], trainers) for number, rows in sorted(plan.fetch.items())}
        fetched |= fetch
        batch, user = queue.pop(plan.number)
        own = fetched.pop(plan.number)
        number = first + plan.number
        alone = _by_trainer(plan.alone, user, trainers)
        evict = sorted(plan.evict - plan.alone)
        yield Iteration(
            number,
            batch,
            {first + at: rows for at, rows in fetch.items()},
            [[row for row in rows if row not in plan.alone] for rows in own],
            [[row for row in rows if row in plan.alone] for rows in own],
            sorted(plan.sync_now),
            sorted(plan.sync_later),
            alone,
            [evict[rank::trainers] for rank in range(trainers)],
            snapshot_every > 0 and (number + 1) % snapshot_every == 0,
        )


def _first_users(batch: Sequence[Sample], trainers: int) -> dict[int, int]:
    """The trainer with the first sample that needs a row."""
    user: dict[int, int] = {}
    for rank in range(trainers):
        for at in share(len(batch), trainers, rank):
            for key in batch[at].keys:
                user.setdefault(key, rank)
    return user


def _by_trainer(rows: Collection[int], user: Mapping[int, int], trainers: int) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(trainers)]
    for row in sorted(rows):
        found[user[row]].append(row)
    return found
