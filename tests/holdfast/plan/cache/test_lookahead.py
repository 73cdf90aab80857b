"""A cache that sees the next batches: as few fetches as the formula says, and tables as without a cache."""

import random
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.cache.lookahead import look_ahead

Batches = list[list[list[int]]]
STREAMS = st.lists(st.lists(st.lists(st.integers(0, 7), max_size=3), max_size=3), max_size=12)


def uses_of(batches: Batches) -> dict[int, list[int]]:
    """By row, the batches that need it."""
    found: dict[int, list[int]] = defaultdict(list)
    for number, samples in enumerate(batches):
        for row in {row for sample in samples for row in sample}:
            found[row].append(number)
    return found


def fetches_by_formula(batches: Batches, window: int) -> int:
    """Once for each row, and once more for each gap of the window or more."""
    return sum(1 + sum(b - a >= window for a, b in pairwise(uses)) for uses in uses_of(batches).values())


def changed(row: int, number: int, value: float) -> float:
    """What a batch makes of a row: not commutative, so that order and every single use matter."""
    return value * 1.5 + row + number


def alone(batches: Batches) -> dict[int, float]:
    table: dict[int, float] = defaultdict(float)
    for number, samples in enumerate(batches):
        for row in {row for sample in samples for row in sample}:
            table[row] = changed(row, number, table[row])
    return table


@settings(deadline=None)
@given(STREAMS, st.integers(1, 6))
def test_tables_are_those_of_a_run_without_a_cache(batches: Batches, window: int) -> None:
    table: dict[int, float] = defaultdict(float)
    cache: dict[int, float] = {}
    early: dict[int, dict[int, float]] = {}
    fetches = 0

    for plan in look_ahead(batches, window):
        # As early as it is allowed.
        for number, rows in plan.fetch.items():
            assert plan.number <= number < plan.number + window
            early[number] = {row: table[row] for row in rows}
            fetches += len(rows)
        for row, value in early.pop(plan.number).items():
            assert row not in cache
            cache[row] = value
        needed = {row for sample in batches[plan.number] for row in sample}
        assert needed <= cache.keys()
        for row in needed:
            cache[row] = changed(row, plan.number, cache[row])
        for row in plan.evict:
            table[row] = cache.pop(row)

    assert not cache
    assert not early
    assert table == alone(batches)
    assert fetches == fetches_by_formula(batches, window)


@settings(deadline=None)
@given(STREAMS, st.integers(2, 6))
def test_only_what_the_next_batch_needs_is_summed_before_it(batches: Batches, window: int) -> None:
    plans = list(look_ahead(batches, window))
    assert [plan.number for plan in plans] == list(range(len(batches)))
    for plan in plans:
        samples = batches[plan.number]
        rows = {row for sample in samples for row in sample}
        following = {row for sample in batches[plan.number + 1 : plan.number + 2] for one in sample for row in one}
        assert plan.sync_now == rows & following
        assert plan.sync_now | plan.sync_later | plan.alone == rows
        assert len(plan.sync_now) + len(plan.sync_later) + len(plan.alone) == len(rows)
        for row in plan.alone:
            assert sum(row in sample for sample in samples) == 1
            assert row in plan.evict


def test_fetches_of_a_stream_as_skewed_as_clicks_are() -> None:
    rng = random.Random(7)
    weights = [1 / (rank + 1) ** 1.2 for rank in range(400)]
    batches = [[rng.choices(range(400), weights, k=4) for _ in range(8)] for _ in range(150)]

    counts = {}
    for window in (1, 2, 4, 10, 50):
        counts[window] = sum(len(rows) for plan in look_ahead(batches, window) for rows in plan.fetch.values())
        assert counts[window] == fetches_by_formula(batches, window)

    assert list(counts.values()) == sorted(counts.values(), reverse=True)
    assert counts[1] == sum(len(uses) for uses in uses_of(batches).values())


def test_a_batch_is_planned_when_its_window_is_full_and_not_later() -> None:
    seen: list[int] = []

    def stream() -> Iterator[list[list[int]]]:
        for number in range(6):
            seen.append(number)
            yield [[number]]

    plans = look_ahead(stream(), 3)
    next(plans)
    assert seen == [0, 1, 2]
    next(plans)
    assert seen == [0, 1, 2, 3]


@pytest.mark.parametrize("window", [0, -1])
def test_a_window_has_room_for_a_batch(window: int) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        next(look_ahead([[[1]]], window))
