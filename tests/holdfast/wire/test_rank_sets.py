"""Sets of ranks as text, both ways."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.wire.rank_sets import compact, expand


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], ""),
        ([5], "5"),
        (range(8), "0-7"),
        (range(0, 32, 4), "0-28/4"),
        ([0, 1], "0-1"),
        ([0, 4], "0,4"),
        ([9, 1, 5, 10, 11, 1], "1,5,9-11"),
        (range(3, 12_288, 8), "3-12283/8"),
    ],
)
def test_short_text(ranks: list[int], text: str) -> None:
    assert compact(ranks) == text


@given(st.sets(st.integers(0, 200)))
def test_format_and_parse_are_inverse(ranks: set[int]) -> None:
    assert expand(compact(ranks)) == tuple(sorted(ranks))


@pytest.mark.parametrize("text", ["x", "1-", "-1", "1,,2", "1-4/", "1 2"])
def test_what_is_no_set_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no set of ranks"):
        expand(text)
