"""Stacks merged into a tree with rank sets, and the ranks that stand elsewhere."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from holdfast.diagnostics.hang.stack_tree import Stack, merge, odd_ranks
from holdfast.wire.rank_sets import expand

WAIT, LOOP = ("main", "step", "all_reduce", "wait"), ("main", "step", "load")


def test_a_tree_forks_where_ranks_part() -> None:
    rows = merge([
        Stack((0, 1, 3), "main", WAIT), Stack((2,), "main", LOOP), Stack((0, 1, 2, 3), "other", ("run",)),
    ])  # fmt: skip
    assert rows == [
        (0, "0-3", "[main thread]"),
        (0, "0-3", "main"),
        (0, "0-3", "step"),
        (1, "0-1,3", "all_reduce"),
        (1, "0-1,3", "wait"),
        (1, "2", "load"),
        (0, "0-3", "[other thread]"),
        (0, "0-3", "run"),
    ]
    assert merge([]) == []


STACKS = st.lists(
    st.builds(
        Stack,
        st.frozensets(st.integers(0, 5), min_size=1).map(lambda ranks: tuple(sorted(ranks))),
        st.sampled_from(["main", "other"]),
        st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(tuple),
    ),
    max_size=6,
)


@given(STACKS)
def test_every_frame_is_in_the_tree_with_its_ranks(stacks: list[Stack]) -> None:
    rows = merge(stacks)
    for stack in stacks:
        for frame in stack.frames:
            assert any(set(stack.ranks) <= set(expand(ranks)) for _, ranks, name in rows if name == frame)
    assert all(later[0] <= row[0] + 1 for row, later in itertools.pairwise(rows))


def test_the_odd_one_stands_elsewhere_than_the_majority() -> None:
    stacks = [Stack((0, 1, 3), "main", WAIT), Stack((2,), "main", LOOP), Stack((2,), "other", WAIT)]
    assert odd_ranks(stacks, range(4)) == (2,)
    assert odd_ranks(stacks, (0, 1)) == ()
    assert odd_ranks([Stack((0, 1), "main", WAIT), Stack((2, 3), "main", LOOP)], range(4)) == ()
    assert odd_ranks([], range(4)) == ()
