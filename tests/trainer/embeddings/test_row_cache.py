"""The rows that a trainer holds: which place is whose, and how many there are."""

from __future__ import annotations

import pytest
import torch

from holdfast.trainer.embeddings.cache import LEAST_ROWS, RowCache, spread
from holdfast.trainer.embeddings.servers.keys import Keys, as_keys


def rows_of(keys: Keys) -> torch.Tensor:
    """(keys, 2): a key and its negative."""
    values = torch.tensor(keys.tolist(), dtype=torch.float64)
    return torch.stack([values, -values], dim=1)


class Waiting:
    """Counts how often the cache waits until nobody uses its rows."""

    def __init__(self, most: int = 0) -> None:
        self.count = 0
        self.cache = RowCache(2, torch.float64, self.wait, most)

    def wait(self) -> None:
        self.count += 1

    def put(self, keys: range) -> None:
        self.cache.insert(as_keys(keys), rows_of(as_keys(keys)))

    def check(self, held: list[int]) -> None:
        assert self.cache.keys == sorted(held)
        places = self.cache.places(as_keys(held))
        assert len(set(places.tolist())) == len(held)
        assert torch.equal(self.cache.rows[places], rows_of(as_keys(held)))


def test_rows_stay_what_they_are_while_the_cache_grows() -> None:
    """Twice as many places, or as many more as come in if that is more; nobody is waited for without need."""
    one = Waiting()
    one.put(range(LEAST_ROWS))
    assert (len(one.cache.rows), one.count, one.cache.peak) == (LEAST_ROWS, 0, LEAST_ROWS)
    one.put(range(1000, 1001))
    assert (len(one.cache.rows), one.count, one.cache.peak) == (2 * LEAST_ROWS, 1, LEAST_ROWS + 1)
    one.check([*range(LEAST_ROWS), 1000])
    one.put(range(2000, 2000 + 3 * LEAST_ROWS))
    assert (len(one.cache.rows), one.count) == (2 * LEAST_ROWS + 3 * LEAST_ROWS, 2)
    one.check([*range(LEAST_ROWS), 1000, *range(2000, 2000 + 3 * LEAST_ROWS)])
    assert one.cache.peak == LEAST_ROWS + 1 + 3 * LEAST_ROWS


def test_no_more_places_than_are_expected() -> None:
    one = Waiting(most=LEAST_ROWS + 44)
    one.put(range(LEAST_ROWS))
    one.put(range(1000, 1010))
    assert len(one.cache.rows) == LEAST_ROWS + 44
    # The expectation is no limit.
    one.put(range(2000, 2050))
    assert len(one.cache.rows) == LEAST_ROWS + 44 + 50
    one.check([*range(LEAST_ROWS), *range(1000, 1010), *range(2000, 2050)])


def test_places_are_used_again_once_they_are_released() -> None:
    one = Waiting()
    one.put(range(LEAST_ROWS))
    places = one.cache.drop(as_keys([3, 7, 999]))
    assert len(places) == 2, "999 was not held"
    assert one.cache.keys == [key for key in range(LEAST_ROWS) if key not in (3, 7)]
    with pytest.raises(KeyError):
        one.cache.places(as_keys([3]))
    # They are still being written back, and so count.
    one.put(range(500, 502))
    assert (one.count, one.cache.peak) == (1, LEAST_ROWS + 2)
    one.cache.release(places)
    one.put(range(600, 602))
    assert (one.count, one.cache.peak) == (1, LEAST_ROWS + 2)
    assert sorted(one.cache.places(as_keys([600, 601])).tolist()) == sorted(places)


def test_rows_are_spread_over_what_is_wanted() -> None:
    keys, wanted = as_keys([2, 5, 9]), as_keys([1, 2, 7, 9, 11])
    expected = torch.tensor([[0, 0], [2, -2], [0, 0], [9, -9], [0, 0]], dtype=torch.float64)
    assert torch.equal(spread(keys, rows_of(keys), wanted), expected)
    assert torch.equal(spread(keys, rows_of(keys), as_keys([])), torch.zeros(0, 2, dtype=torch.float64))
