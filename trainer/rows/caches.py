"""Caches whose future is known, against counts that were made without them. Pure."""

from __future__ import annotations

import functools
import itertools
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence

from holdfast.trainer.rows.row import Row

SLOTS, CHUNK = 3, 64
"""Chunks that fit, and their bytes."""
BATCHES, SAMPLES, ROWS_OF_SAMPLE, TABLE = 120, 16, 4, 600


def chunks() -> Iterator[Row]:
    """Bytes moved by the plan's own future; the least over all choices is found by trying them all."""
    from holdfast.plan.cache.cache import moved
    from holdfast.plan.cache.chunks import lay_out
    from holdfast.plan.cache.policy import POLICIES
    from holdfast.plan.cache.uses import Trace

    rng = random.Random(6)
    forward_and_back = [*range(6), *reversed(range(6))]
    for name, accesses in (
        ("6 chunks forward and back, twice", forward_and_back * 2),
        ("20 accesses at random", [rng.randrange(6) for _ in range(20)]),
    ):
        trace = Trace([[chunk] for chunk in accesses])
        sizes = dict.fromkeys(range(6), CHUNK)
        least = (2 * _fewest(accesses, SLOTS) - SLOTS) * CHUNK
        found = {policy: moved(trace, sizes, SLOTS * CHUNK, make(trace)) for policy, make in POLICIES.items()}
        yield Row(f"bytes moved, {name}, {SLOTS} fit", least, found["belady"])
        others = min(found["lru"], found["fifo"])
        yield Row(f"no more than LRU and FIFO (1), {name}", 1, found["belady"] <= others)
    for replicas in (2, 4):
        layout = lay_out({f"t{i}": 50 + i for i in range(40)}, 256, replicas)
        expected = 6 * layout.num_chunks * 256 * (replicas - 1) / replicas
        yield Row(f"bytes that a replica receives in a step, d {replicas}", expected, layout.wire_bytes)


def tables() -> Iterator[Row]:
    """Fetches: one for each row, and one more for each gap of the window or more between two of its uses."""
    from holdfast.plan.cache.lookahead import look_ahead

    batches = _clicks()
    uses: dict[int, list[int]] = defaultdict(list)
    for number, samples in enumerate(batches):
        for row in {row for sample in samples for row in sample}:
            uses[row].append(number)
    for window in (1, 2, 4, 10, 50):
        expected = sum(1 + sum(b - a >= window for a, b in itertools.pairwise(at)) for at in uses.values())
        fetched = sum(len(rows) for plan in look_ahead(batches, window) for rows in plan.fetch.values())
        yield Row(f"rows fetched in {BATCHES} batches, window {window}", expected, fetched)
    plain: dict[int, float] = defaultdict(float)
    for number, samples in enumerate(batches):
        _change(plain, samples, number)
    table: dict[int, float] = defaultdict(float)
    cache: dict[int, float] = {}
    early: dict[int, dict[int, float]] = {}
    for plan in look_ahead(batches, 10):
        early |= {number: {row: table[row] for row in rows} for number, rows in plan.fetch.items()}
        cache |= early.pop(plan.number)
        _change(cache, batches[plan.number], plan.number)
        table |= {row: cache.pop(row) for row in plan.evict}
    apart = max(abs(table[row] - plain[row]) for row in plain)
    yield Row("largest difference of the tables after all batches, window 10", 0.0, apart, 1e-12)


def _change(table: dict[int, float], samples: Sequence[Sequence[int]], number: int) -> None:
    for row in {row for sample in samples for row in sample}:
        table[row] = 0.5 * table[row] + row + number


def _clicks() -> list[list[list[int]]]:
    """Few rows are in most samples, as in logs of clicks."""
    rng = random.Random(7)
    weights = [1 / (rank + 1) for rank in range(TABLE)]
    return [[rng.choices(range(TABLE), weights, k=ROWS_OF_SAMPLE) for _ in range(SAMPLES)] for _ in range(BATCHES)]


def _fewest(accesses: Sequence[int], slots: int) -> int:
    """Fetches of the best of all choices of who leaves."""

    @functools.cache
    def rest(at: int, held: frozenset[int]) -> int:
        if at == len(accesses):
            return 0
        wanted = accesses[at]
        if wanted in held:
            return rest(at + 1, held)
        leaving = held if len(held) == slots else {None}
        return 1 + min(rest(at + 1, held - {one} | {wanted}) for one in leaving)

    return rest(0, frozenset())
