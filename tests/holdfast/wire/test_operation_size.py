"""Sizes of operations, packed into one number."""

import pytest

from holdfast.wire.operation_size import _BYTES, EXACT, TYPES, other_bytes, pack

FLOAT, HALF, DOUBLE, INT = (TYPES.index(name) for name in ("float32", "float16", "float64", "int32"))
MANY = EXACT + 5


@pytest.mark.parametrize(
    ("one", "two", "are_other"),
    [
        (pack(4, FLOAT), pack(5, FLOAT), True),
        (pack(4, FLOAT), pack(4, FLOAT), False),
        (pack(0, FLOAT), pack(4, FLOAT), True),
        (pack(4, FLOAT), pack(4, DOUBLE), True),
        (pack(4, FLOAT), pack(2, DOUBLE), False),
        (0, pack(4, FLOAT), False),
        (pack(4, 0), pack(4, FLOAT), False),
        (pack(4, 31), pack(4, FLOAT), False),
        (pack(4, 31), pack(5, 31), True),
        (pack(MANY, FLOAT), pack(MANY + 1, FLOAT), True),
        (pack(MANY, FLOAT), pack(MANY + 1, INT), True),
        (pack(MANY, FLOAT), pack(MANY, INT), False),
        (pack(MANY, FLOAT), pack(2 * MANY, HALF), False),
        (pack(MANY, FLOAT), pack(EXACT - 1, INT), True),
        (pack(MANY, FLOAT), pack(EXACT - 1, DOUBLE), False),
    ],
)
def test_sizes_that_are_certain_to_differ_in_bytes(one: int, two: int, are_other: bool) -> None:
    assert other_bytes(one, two) == other_bytes(two, one) == are_other


def test_each_type_has_a_width() -> None:
    assert len(_BYTES) == len(TYPES)
    assert all(_BYTES[1:])
