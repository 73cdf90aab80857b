"""Spans as bytes: what an agent packs is what a controller unpacks, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import ProtocolError
from holdfast.wire.span_rows import ROW, STEP_AT, pack, unpack


@given(st.binary(max_size=3).map(lambda seed: seed * ROW.size))
def test_what_was_packed_comes_back(rows: bytes) -> None:
    assert unpack(pack(rows), len(rows) // ROW.size) == rows


def test_a_row_has_its_step_where_it_is_said_to_be() -> None:
    row = ROW.pack(1, 2, 3, 4, 77, 6, 7, 8, 9, 10, 11, 12)
    assert int.from_bytes(row[STEP_AT : STEP_AT + 4], "little") == 77


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_rows_is_refused(count: int) -> None:
    with pytest.raises(ProtocolError, match=f"not the {count} rows"):
        unpack(pack(bytes(2 * ROW.size)), count)


def test_what_is_no_packed_row_is_refused() -> None:
    with pytest.raises(ProtocolError, match="spans"):
        unpack(b"nonsense", 1)
    with pytest.raises(ProtocolError, match="not the 2 rows"):
        unpack(pack(bytes(2 * ROW.size))[:-1], 2)
