"""A proof lists exactly the facts that it rests on, and knowing less never makes a rank dead."""

import random
from functools import cache

from holdfast.diagnostics.hang.can_move import CanMove
from holdfast.diagnostics.hang.closure import judge
from holdfast.diagnostics.hang.facts import RankFacts
from holdfast.diagnostics.hang.forgetting import facts_of, without
from holdfast.diagnostics.hang.proof import FactKind, Proof
from tests.diagnostics.support.standing_ranks import LEFT, OTHER, WORLD, gone, inside, rank, thread
from tests.diagnostics.support.standing_space import LONGEST, drawn

PROOFS = 150
Job = tuple[RankFacts, ...]


def dead_of(job: Job | list[RankFacts]) -> set[int]:
    """Without a proof: that takes as long as ten of these."""
    return {number for number, process in CanMove(job, LONGEST).ranks.items() if process.is_dead}


@cache
def proofs() -> tuple[tuple[Job, Proof], ...]:
    rng = random.Random(2)
    found: list[tuple[Job, Proof]] = []
    while len(found) < PROOFS:
        job = drawn(rng)
        proof = judge(job, longest_s=LONGEST)
        if proof is not None:
            found.append((job, proof))
    return tuple(found)


def test_the_facts_of_the_chain_are_enough() -> None:
    for job, proof in proofs():
        others = [fact for fact in facts_of(job) if fact not in proof.facts]
        assert proof.chain[0].rank in dead_of(without(job, *others)), proof.lines


def test_each_fact_of_the_chain_is_needed() -> None:
    for job, proof in proofs():
        others = [fact for fact in facts_of(job) if fact not in proof.facts]
        for fact in proof.facts:
            assert proof.chain[0].rank not in dead_of(without(job, *others, fact)), (fact, proof.lines)


def test_whoever_forgets_a_fact_of_the_chain_needs_another_proof() -> None:
    for job, proof in proofs():
        for fact in proof.facts:
            other = judge(without(job, fact), longest_s=LONGEST)
            assert other is None or fact not in other.facts


def test_forgetting_makes_no_rank_dead() -> None:
    for job, proof in proofs():
        for fact in facts_of(job):
            assert dead_of(without(job, fact)) <= set(proof.dead), (fact, job)


def test_forgetting_much_makes_no_rank_dead() -> None:
    rng = random.Random(3)
    for job, _ in proofs():
        every = facts_of(job)
        rng.shuffle(every)
        dead = dead_of(job)
        while every:
            job = tuple(without(job, *(every.pop() for _ in range(min(3, len(every))))))
            less = dead_of(job)
            assert less <= dead
            dead = less


def test_the_axiom_is_in_the_proof_where_it_is_used_and_only_there() -> None:
    waits, away = rank(0, inside(LEFT, 3)), gone(2, {WORLD: 41})
    saves = inside(WORLD, 41)
    alone = judge([waits, rank(1, saves, begun={LEFT: 3}), away], longest_s=LONGEST)
    assert alone is not None
    free = thread(tid=OTHER, seconds=0.0)
    beside = judge([waits, rank(1, begun={LEFT: 3}, threads=(thread(), free)), away], longest_s=LONGEST)
    assert beside is None
    job = [waits, rank(1, saves, begun={LEFT: 3}, threads=(thread(), free)), away]
    proof = judge(job, longest_s=LONGEST)
    assert proof is not None
    assert proof.dead == (0, 1)
    # The chain is that of the rank nearest to the reason, which needs no axiom; that of rank 0 would.
    assert [link.rank for link in proof.chain] == [1, 2]
    assert FactKind.ISSUER not in {fact.kind for fact in proof.facts}
    issuer = next(
        fact for fact in facts_of(job) if fact.kind is FactKind.ISSUER and fact.rank == 1 and fact.group is LEFT
    )
    assert dead_of(without(job, issuer)) == {1}
