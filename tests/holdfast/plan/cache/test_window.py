"""A look-ahead as long as its rows fit: never more rows than that, tables and fetches exact all the same."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.cache.lookahead import look_ahead
from holdfast.plan.cache.window import FittedWindow, Window

Batches = list[list[list[int]]]
STREAMS = st.lists(st.lists(st.lists(st.integers(0, 12), max_size=3), max_size=3), max_size=30)


def rows_of(batch: list[list[int]]) -> set[int]:
    return {row for sample in batch for row in sample}


@settings(deadline=None)
@given(STREAMS, st.integers(0, 12), st.integers(1, 8), st.integers(1, 8))
def test_rows_fit_and_tables_are_those_of_a_run_without_a_cache(
    batches: Batches, more: int, first: int, most: int
) -> None:
    """All of it is played through: tables, caches, the queue, and what the rule makes of the window."""
    most = max(first, most)
    rows = 2 * max((len(rows_of(batch)) for batch in batches), default=0) + more
    window = FittedWindow(rows, first, most)
    table: dict[int, list[int]] = defaultdict(list)
    cache: dict[int, list[int]] = {}
    early: dict[int, dict[int, list[int]]] = {}
    last: dict[int, int] = {}
    fetches = expected = halvings = entered = 0
    size, left = first, set[int]()
    for plan in look_ahead(batches, window):
        for number, wanted in plan.fetch.items():
            early[number] = {row: list(table[row]) for row in wanted}
            fetches += len(wanted)
            for row in rows_of(batches[number]):
                # Once more for each use that came into the queue after the one before it was done.
                expected += last.get(row, -1) < plan.number
                last[row] = number
            assert number == entered
            entered += 1
        queue = batches[plan.number : entered]
        held = set().union(*map(rows_of, queue))
        assert len(held) + len(left) <= rows
        assert cache.keys() <= held
        # One more when all fit, half when the next one does not, nothing from a queue of another length.
        following = batches[entered : entered + 1]
        if len(queue) < size and following:
            assert len(held | rows_of(following[0])) + len(left) > rows
            size, halvings = max(1, size // 2), halvings + 1
        elif len(queue) == size:
            size = min(size + 1, most)
        assert (window.size, window.halvings) == (size, halvings)
        cache |= early.pop(plan.number)
        for row in rows_of(batches[plan.number]):
            cache[row] = [*cache[row], plan.number]
        for row in plan.evict:
            table[row] = cache.pop(row)
        left = set(plan.evict)
    assert not cache
    assert entered == len(batches)
    assert fetches == expected
    for row in set().union(*map(rows_of, batches)):
        assert table[row] == [number for number, batch in enumerate(batches) if row in rows_of(batch)]


def test_it_goes_up_by_one_and_down_by_half() -> None:
    """Ten new rows in each batch and ten that the one before leaves: nine batches are the most that 100 rows hold."""
    window = FittedWindow(100, first=2)
    sizes = []
    for _ in look_ahead(([list(range(10 * n, 10 * n + 10))] for n in range(60)), window):
        sizes.append(window.size)
    up = [3, 4, 5, 6, 7, 8, 9, 10]
    # Half of 10, from which 9 batches drain to 5; then one more with each batch.
    assert sizes[:9] == [*up, 5]
    assert max(sizes) == 10
    assert min(sizes[8:]) == 5
    assert window.halvings >= 3
    assert (window.least, window.most) == (2, 10)


def test_where_all_rows_fit_it_goes_up_to_its_limit() -> None:
    window = FittedWindow(10, first=2, most=7)
    plans = list(look_ahead([[[1, 2, 3]]] * 30, window))
    assert (window.size, window.halvings) == (7, 0)
    assert sum(len(rows) for plan in plans for rows in plan.fetch.values()) == 3


def test_a_window_that_stays() -> None:
    window = Window(3)
    assert window.admits(10**12)
    window.filled(3)
    assert (window.size, window.least, window.most, window.halvings) == (3, 3, 3, 0)
    with pytest.raises(ValueError, match="1 or more"):
        FittedWindow(5, first=0)
