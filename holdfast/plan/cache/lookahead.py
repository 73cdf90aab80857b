"""A cache that sees the next batches: exact fetches and evictions, results as without it (Bagpipe, SOSP 2023). Pure.

Rows of a table lie on servers. A queue holds the batch that is worked on and those behind it, `window` in all. A row
stays in the cache from a use to the next one if that is in the queue, and is written back otherwise. So a row is
fetched once, and once more for each gap of `window` batches or more between two of its uses. No fetch overtakes a
write-back: the one that could, of a row used `window` batches earlier, is allowed only when that batch is done.

The window may change while the queue is worked off. Then a row is fetched once more for each gap whose end came into
the queue after its beginning was done, which is the same where the window stays.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic

from holdfast.plan.cache.uses import K
from holdfast.plan.cache.window import Window


@dataclass(frozen=True, slots=True)
class BatchPlan(Generic[K]):
    """What goes with one batch."""

    number: int
    fetch: Mapping[int, frozenset[K]]
    """By number of the batch that needs them: rows whose fetch may begin now, when all batches before this one are done
    and what they evicted is written back. Of the batch that has come into the queue; for the first, of all in it."""
    evict: frozenset[K]
    """Rows to write back when the batch is done: nothing in the queue needs them."""
    sync_now: frozenset[K]
    """Rows that the next batch needs: their gradients are summed over trainers before it begins."""
    sync_later: frozenset[K]
    """Rows whose gradients may be summed beside the next batch."""
    alone: frozenset[K]
    """Rows of one sample that are evicted: only the trainer with that sample has a gradient, and writes it back."""


def look_ahead(batches: Iterable[Collection[Collection[K]]], window: int | Window) -> Iterator[BatchPlan[K]]:
    """A plan for each batch, in order, as soon as the queue behind it is full or the stream has ended.

    A batch is a collection of samples, a sample one of the rows that it needs. ValueError for a window without room for
    the batch that is worked on.
    """
    limit = Window(window) if isinstance(window, int) else window
    source = enumerate(batches)
    queue: deque[tuple[int, Counter[K]]] = deque()
    last: dict[K, int] = {}
    """Of each row in the queue or the cache, the newest batch that needs it."""
    fetch: dict[int, frozenset[K]] = {}
    refused: tuple[int, Counter[K]] | None = None
    leaving = 0
    """Rows that the batch before leaves: they are being written back."""
    while True:
        while len(queue) < limit.size and (entered := refused or _counted(next(source, None))) is not None:
            number, uses = refused = entered
            new = frozenset(row for row in uses if row not in last)
            if queue and not limit.admits(len(last) + len(new) + leaving):
                break
            refused = None
            fetch[number] = new
            last |= dict.fromkeys(uses, number)
            queue.append((number, uses))
        limit.filled(len(queue))
        if not queue:
            return
        number, uses = queue.popleft()
        following = queue[0][1] if queue else Counter[K]()
        evict = frozenset(row for row in uses if last[row] == number)
        for row in evict:
            del last[row]
        leaving = len(evict)
        now = frozenset(row for row in uses if row in following)
        alone = frozenset(row for row in evict if uses[row] == 1)
        yield BatchPlan(number, fetch, evict, now, frozenset(uses) - now - alone, alone)
        fetch = {}


def _counted(entered: tuple[int, Collection[Collection[K]]] | None) -> tuple[int, Counter[K]] | None:
    """A batch's number, and how many of its samples need each row."""
    if entered is None:
        return None
    number, samples = entered
    return number, Counter(row for sample in samples for row in set(sample))
