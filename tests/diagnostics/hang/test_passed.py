"""Broadcasts that ranks have left: what is proved from their roots, and what is not."""

from dataclasses import replace

import pytest

from holdfast.diagnostics.hang.facts import RankFacts, Rooted
from holdfast.diagnostics.hang.group import Group
from holdfast.diagnostics.hang.passed import parent_of
from holdfast.diagnostics.hang.proof import Cause, FactKind
from holdfast.wire.standing import ThreadState
from tests.diagnostics.hang.test_closure import dead, proof_of
from tests.diagnostics.support.standing_ranks import LEFT, WORLD, inside, rank, thread


def left(number: int, root: int, kind: str = "broadcast", group: Group = WORLD, **more: object) -> RankFacts:
    """It has left number 41 of the group, and waits in the next."""
    return rank(number, inside(group, 42), past={(group, 41): Rooted(kind, root)}, **more)  # type: ignore[arg-type]


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
        left(1, 2, "reduce"),
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
    free = replace(free, past={(LEFT, 41): Rooted("broadcast", 0)})
    assert dead(rank(0, inside(LEFT, 41, "broadcast", root=1)), free) == ()


def test_ranks_that_have_left_count_where_roots_differ() -> None:
    one, two = inside(WORLD, 41, "reduce", root=0), inside(WORLD, 41, "reduce", root=1)
    proof = proof_of(rank(0, one), rank(1, two), left(2, 0, "reduce"))
    assert (proof.cause, proof.reasons) == (Cause.MISMATCH, (1,))
