"""Growth of counters: exact going up, never negative, and the same whether compiled or not."""

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agent.sampling.growth import UINT32_MAX, columns, growth
from holdfast.agent.sampling.sweeps import Sweeps
from tests.agent.support.loops import LOOPS


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**63))
def test_growth_is_exact_going_up_and_never_negative(last: int, more: int) -> None:
    assert growth(last, last + more) == more
    assert growth(last + more, last) >= 0


@given(st.sampled_from([32, 64]), st.integers(1, 2**27), st.integers(0, 2**27))
def test_growth_over_a_wrap(bits: int, before: int, after: int) -> None:
    assert growth(2**bits - before, after) == before + after


def test_growth_of_a_reset_is_zero() -> None:
    assert growth(10**12, 5) == 0
    assert growth(2**31, 5) == 0


def rows_of(begins: list[int], values: list[list[int]]) -> "array[int]":
    return array("Q", [word for began, row in zip(begins, values, strict=True) for word in (began, began, *row)])


def read(column: bytes) -> list[int]:
    return [int.from_bytes(column[at : at + 4], "little") for at in range(0, len(column), 4)]


@pytest.mark.parametrize("compiled", LOOPS)
def test_columns_of_counters_that_go_up_wrap_and_leap(compiled: bool) -> None:
    sweeps = Sweeps(8, 3, compiled=compiled)
    rows = rows_of([999, 3_000, 5_001_999], [[10, 2**32 - 1, 0], [15, 4, 2**33], [15, 5, 2**33 + 1]])
    last = array("Q", [8, 2**32 - 2, 0])
    found = sweeps.columns(rows, 1_000, last, array("Q", [4, 1, 1]))
    assert [read(column) for column in found] == [[0, 2, 5_000], [8, 20, 0], [1, 5, 1], [0, UINT32_MAX, 1]]
    assert list(last) == [15, 5, 2**33 + 1]
    assert sweeps.columns(array("Q"), 0, last, array("Q", [1, 1, 1])) == [b""] * 4


@settings(deadline=None)
@given(st.data())
def test_compiled_or_not_columns_are_the_same(data: st.DataObject) -> None:
    counters, many = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 6))
    word = st.integers(0, 2**64 - 1)
    some = word | st.integers(0, 2**20)
    rows = rows_of(
        data.draw(st.lists(some, min_size=many, max_size=many)),
        data.draw(st.lists(st.lists(some, min_size=counters, max_size=counters), min_size=many, max_size=many)),
    )
    since, last = data.draw(some), data.draw(st.lists(some, min_size=counters, max_size=counters))
    scales = array("Q", data.draw(st.lists(st.sampled_from([1, 4]), min_size=counters, max_size=counters)))
    compiled, plain = array("Q", last), array("Q", last)
    sweeps = Sweeps(4, counters)
    found = sweeps.columns(rows, since, compiled, scales)
    assert found == columns(rows, sweeps.stride, since, plain, scales)
    assert compiled == plain
