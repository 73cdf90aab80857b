"""Operations that ranks have left: what is proved from their kinds, sizes and roots, and what is not."""

from dataclasses import replace

import pytest

from holdfast.diagnostics.hang.facts import OpenAt, Past, RankFacts
from holdfast.diagnostics.hang.group import Group
from holdfast.diagnostics.hang.passed import parent_of
from holdfast.diagnostics.hang.proof import Cause, FactKind
from holdfast.wire.operation_size import pack
from holdfast.wire.standing import ThreadState
from tests.diagnostics.hang.test_closure import dead, proof_of
from tests.diagnostics.support.standing_ranks import LEFT, WORLD, inside, rank, thread

FOUR, FIVE, TWO_DOUBLES = pack(4, 1), pack(5, 1), pack(2, 4)


def left(
    number: int, root: int = -1, kind: str = "broadcast", size: int = 0, group: Group = WORLD, **more: object
) -> RankFacts:
    """It has left number 41 of the group, and waits in the next."""
    return rank(number, inside(group, 42), past={(group, 41): Past(kind, root, size)}, **more)  # type: ignore[arg-type]


def test_who_is_in_an_operation_that_others_have_left_with_other_bytes_is_the_reason() -> None:
    job = [left(number, kind="all_reduce", size=FOUR) for number in (0, 1)]
    proof = proof_of(*job, rank(2, inside(WORLD, 41, size=FIVE)))
    assert (proof.dead, proof.cause, proof.reasons) == ((0, 1, 2), Cause.MISMATCH, (2,))
    assert proof.text.endswith("differs in size between ranks: 5 x float32 (rank 2), 4 x float32 (ranks 0-1)")
    assert [link.rank for link in proof.chain] == [2]
    assert "all_reduce 41 of 5 x float32 of world" in proof.lines[0]
    assert "rank 0 has left that number in one of 4 x float32 [" in proof.lines[0]
    assert {fact.kind for fact in proof.facts} >= {FactKind.PAST, FactKind.COUNT, FactKind.OPERATION}


def test_whoever_left_first_with_other_bytes_is_the_reason() -> None:
    waiting = [rank(number, inside(WORLD, 41, size=FIVE)) for number in (0, 1)]
    assert proof_of(*waiting, left(2, kind="all_reduce", size=FOUR)).reasons == (2,)


def test_without_a_majority_all_sizes_are_the_reason() -> None:
    two = Group("two", 7, (3, 5))
    proof = proof_of(rank(3, inside(two, 41, size=FIVE)), left(5, kind="all_reduce", size=FOUR, group=two))
    assert proof.reasons == (3, 5)
    # Rank 3 has left out what rank 5 did before.
    later = rank(5, inside(two, 42, size=FIVE), past={(two, 41): Past("all_reduce", -1, FOUR)})
    assert proof_of(rank(3, inside(two, 41, size=FIVE)), later).reasons == (3,)


def test_sizes_that_are_too_large_to_name_differ_as_well() -> None:
    large = [pack((1 << 26) + more, 1) for more in (0, 1)]
    proof = proof_of(*[rank(number, inside(WORLD, 41, size=large[number % 2])) for number in range(3)])
    assert proof.reasons == (1,)
    proof = proof_of(rank(0, inside(LEFT, 41, size=large[0])), left(1, -1, "all_reduce", large[1], LEFT))
    assert proof.reasons == (0, 1)


@pytest.mark.parametrize(
    ("kind", "size", "mine"),
    [
        ("all_reduce", FOUR, FOUR),
        ("all_reduce", 0, FIVE),
        ("all_reduce", FIVE, 0),
        ("all_reduce", TWO_DOUBLES, FOUR),  # as many bytes: the messages are the same
        ("", FIVE, FOUR),
    ],
)
def test_what_is_not_known_to_differ_was_left_in_the_same_operation(kind: str, size: int, mine: int) -> None:
    assert dead(left(0, kind=kind, size=size), rank(2, inside(WORLD, 41, size=mine)), left(1, kind="all_reduce")) == ()


def test_a_broadcast_ends_whatever_its_size() -> None:
    receives = rank(2, inside(WORLD, 41, "broadcast", size=FIVE, root=0))
    assert dead(left(0, 0, size=FOUR), left(1, 0, size=FOUR), receives) == ()


@pytest.mark.parametrize("mine", [inside(WORLD, 41), inside(WORLD, 41, "broadcast", root=0)])
def test_messages_of_another_kind_never_come(mine: OpenAt) -> None:
    proof = proof_of(rank(2, mine), left(0, 2, "reduce"), left(1, 2, "reduce"))
    assert (proof.dead, proof.cause, proof.reasons) == ((0, 1, 2), Cause.MISMATCH, (2,))
    assert "rank 0 has left that number in another one, reduce [" in proof.lines[0]
    assert dead(rank(2, mine), left(0, 2, "reduce", exact=frozenset()), left(1, exact=frozenset())) == ()


def test_a_rank_that_is_in_its_operation_may_leave_it() -> None:
    free = rank(1, inside(LEFT, 41), threads=(thread(ThreadState.OUTSIDE),), past={(LEFT, 41): Past("barrier")})
    assert dead(rank(0, inside(LEFT, 41, size=FIVE)), free) == ()


def test_who_waits_for_a_root_that_has_left_in_a_broadcast_of_another_one_is_the_reason() -> None:
    """Rank 0 alone means root 2. Rank 1 sends to both, and rank 2 has received that."""
    job = [rank(number, inside(WORLD, 41, "broadcast", root=2 - number)) for number in (0, 1)]
    proof = proof_of(*job, left(2, 1))
    assert (proof.dead, proof.cause, proof.reasons) == ((0, 1, 2), Cause.MISMATCH, (0,))
    assert proof.text.endswith("differs in its root between ranks: root 2 (rank 0), root 1 (ranks 1-2)")
    assert [link.rank for link in proof.chain] == [0]
    assert "rank 2 has left that number in a broadcast with root 1" in proof.lines[0]
    assert FactKind.PAST in {fact.kind for fact in proof.facts}


@pytest.mark.parametrize(
    "other",
    [
        left(1, 0, begun={WORLD: 43}),  # the same root: the message was sent
        left(1, 0, ""),
        rank(1, inside(WORLD, 42)),
        left(1, 2, exact=frozenset()),
        left(1, 77),
    ],
)
def test_what_is_not_known_of_a_broadcast_that_was_left_proves_nothing(other: RankFacts) -> None:
    root, locked_later = rank(0, inside(WORLD, 41, "broadcast", root=0)), rank(2, begun={WORLD: 43})
    assert dead(root, left(1, 2), locked_later) == (0, 1, 2)
    assert 0 not in dead(root, other, locked_later)


def test_the_root_of_a_broadcast_waits_for_a_child_that_has_left_in_another_one() -> None:
    root = rank(0, inside(WORLD, 41, "broadcast", root=0))
    proof = proof_of(root, left(1, 2), left(2, 2))
    assert (proof.dead, proof.cause, proof.reasons) == ((0, 1, 2), Cause.MISMATCH, (0,))
    assert dead(root, left(1, 0), left(2, 0)) == ()


def test_a_broadcast_comes_from_the_parent_in_the_tree_not_from_the_root() -> None:
    """Rank 3 receives from rank 1, whatever rank 0 did; and from rank 1 as a root as well."""
    four = Group("four", 4, (0, 1, 2, 3))
    waits = rank(3, inside(four, 41, "broadcast", root=0))

    def job(*roots: int) -> tuple[RankFacts, ...]:
        return (*(left(number, root, group=four) for number, root in enumerate(roots)), waits)

    assert [parent_of(place, 0, 8) for place in range(1, 8)] == [0, 0, 1, 0, 1, 2, 3]
    assert 3 in dead(*job(0, 2, 2))
    assert dead(*job(0, 1, 1)) == ()  # 1 sends to 2 and 3
    assert dead(*job(2, 0, 2)) == ()  # rank 1 has received and sent, which only rank 0 can explain


def test_a_rank_that_is_still_in_its_broadcast_may_leave_it() -> None:
    free = rank(1, inside(LEFT, 41, "broadcast", root=0), threads=(thread(ThreadState.OUTSIDE),))
    free = replace(free, past={(LEFT, 41): Past("broadcast", 0)})
    assert dead(rank(0, inside(LEFT, 41, "broadcast", root=1)), free) == ()


def test_ranks_that_have_left_count_where_roots_differ() -> None:
    one, two = inside(WORLD, 41, "reduce", root=0), inside(WORLD, 41, "reduce", root=1)
    proof = proof_of(rank(0, one), rank(1, two), left(2, 0, "reduce"))
    assert (proof.cause, proof.reasons) == (Cause.MISMATCH, (1,))
