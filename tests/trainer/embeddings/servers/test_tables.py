"""One share of the tables: order of requests, repeats, what is counted."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.base.errors import ProtocolError
from holdfast.trainer.embeddings.servers.keys import as_keys, dtype_of, first_values, key, server_of
from holdfast.trainer.embeddings.servers.rows import LEAST_ROWS
from holdfast.trainer.embeddings.servers.tables import Spec, Tables

KEYS = as_keys([key(0, 5), key(25, 1 << 32), key(3, 7)])


def tables(trainers: int = 2, first: int = 0) -> Tables:
    return Tables(Spec(trainers, 4, "float64", 1, first))


def full(count: int, value: float) -> np.ndarray:
    return np.full((count, 4), value)


def test_first_values_are_of_key_and_seed_alone_and_uniform() -> None:
    many = as_keys(range(20_000))
    rows = first_values(many, 4, 1, dtype_of("float64"))
    assert np.array_equal(first_values(many[7:8], 4, 1, dtype_of("float64"))[0], rows[7])
    assert not np.any(first_values(many, 4, 2, dtype_of("float64")) == rows)
    assert len(np.unique(rows)) == rows.size
    # Uniform in ±1/2 for 4 columns: mean 0, standard deviation 1 / sqrt(12).
    assert abs(rows).max() <= 0.5
    assert rows.mean() == pytest.approx(0, abs=0.005)
    assert rows.std(axis=0) == pytest.approx(12**-0.5, abs=0.005)
    assert abs(np.corrcoef(rows.T) - np.eye(4)).max() < 0.05


def test_servers_get_about_equal_shares_of_values_that_end_alike() -> None:
    counts = np.bincount(server_of(as_keys(key(n % 26, n << 12) for n in range(9000)), 3))
    assert abs(counts - 3000).max() < 200


def test_rows_begin_with_their_first_values_and_keep_what_is_written() -> None:
    one = tables()
    assert np.array_equal(one.fetch(0, 0, KEYS), first_values(KEYS, 4, 1, dtype_of("float64")))
    assert one.write(0, 0, KEYS[:1], full(1, 9.0)) is False
    found = one.rows_of(KEYS)
    assert np.array_equal(found[0], full(1, 9.0)[0])
    assert np.array_equal(found[1:], first_values(KEYS[1:], 4, 1, dtype_of("float64")))
    assert len(one) == 3


def test_tables_grow_and_keep_their_rows() -> None:
    one = tables()
    keys = as_keys(range(3 * LEAST_ROWS))
    for part in np.split(keys, 3):
        one.rows_of(part)
    assert np.array_equal(one.rows_of(keys), first_values(keys, 4, 1, dtype_of("float64")))


def test_a_repeat_changes_and_counts_nothing() -> None:
    one = tables()
    one.fetch(0, 0, KEYS)
    one.fetch(0, 0, KEYS)
    one.write(0, 0, KEYS, full(3, 1.0))
    one.write(0, 0, KEYS, full(3, 2.0))
    assert np.array_equal(one.rows_of(KEYS), full(3, 1.0))
    figures = one.figures()
    assert (figures["fetches"], figures["fetched_bytes"]) == (3, 3 * 4 * 8)
    assert (figures["write_backs"], figures["written_bytes"]) == (3, 3 * 4 * 8)
    assert figures["repeats"] == 2
    one.fetch(1, 0, KEYS[:1])
    assert one.fetches == 4, "another trainer's is none"


def test_a_write_back_that_is_missing_is_noticed() -> None:
    one = tables(first=5)
    one.write(0, 5, KEYS[:0], full(0, 0))
    with pytest.raises(ProtocolError, match="trainer 0 writes back iteration 7, the last one here is 5"):
        one.write(0, 7, KEYS, full(3, 1.0))
    with pytest.raises(ProtocolError, match="trainer 2: this run has 2"):
        one.write(2, 5, KEYS, full(3, 1.0))
    with pytest.raises(ProtocolError, match="rows of shape"):
        one.write(1, 5, KEYS, full(2, 1.0))
    assert one.write_backs == 0


def test_a_fetch_waits_for_all_trainers() -> None:
    one = tables()
    assert one.may_fetch(-1)
    one.write(0, 0, KEYS[:0], full(0, 0))
    assert not one.may_fetch(0)
    one.write(1, 0, KEYS, full(3, 1.0))
    assert one.may_fetch(0)
    assert not one.may_fetch(1)


def test_a_snapshot_lies_between_two_iterations() -> None:
    one = tables()
    assert one.write(0, 0, KEYS[:0], full(0, 0), cut=True) is False
    assert not one.may_write(1), "iteration 1 of one trainer would be in a snapshot of iteration 0"
    assert one.may_write(0)
    assert one.write(1, 0, KEYS, full(3, 1.0), cut=True) is True
    assert one.may_write(1)
    assert one.write(1, 0, KEYS, full(3, 1.0), cut=True) is False, "a repeat takes no second one"


def test_shares_hashes_add_up_to_that_of_the_whole() -> None:
    whole, parts = tables(), [tables(), tables()]
    whole.set_rows(KEYS, full(3, 2.0))
    parts[0].set_rows(KEYS[:1], full(1, 2.0))
    parts[1].set_rows(KEYS[:0:-1], full(2, 2.0))
    assert whole.digest() == sum(part.digest() for part in parts) % (1 << 64)
    changed = whole.digest()
    whole.set_rows(KEYS[:1], full(1, 2.0 + 1e-15))
    assert whole.digest() != changed
