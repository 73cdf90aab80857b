"""A proof lists exactly the facts that it rests on, and knowing less never makes a rank dead."""

import random
from functools import cache

from holdfast.diagnostics.hang.can_move import CanMove
from holdfast.diagnostics.hang.closure import judge
from holdfast.diagnostics.hang.facts import RankFacts
from holdfast.diagnostics.hang.forgetting import facts_of, without
from holdfast.diagnostics.hang.proof import Proof
from tests.diagnostics.support.standing_space import LONGEST, broadcasting, drawn, sized

PROOFS = 150
Job = tuple[RankFacts, ...]


def dead_of(job: Job | list[RankFacts]) -> set[int]:
    """Without a proof: that takes as long as ten of these."""
    return {number for number, process in CanMove(job, LONGEST).ranks.items() if process.is_dead}


def dead_in_words(job: list[RankFacts]) -> set[int]:
    """As the chain says it: that nobody else may end an operation with an error is known of all members alike."""
    return {number for number, process in CanMove(job, LONGEST, by_error=False).ranks.items() if process.is_dead}


@cache
def proofs() -> tuple[tuple[Job, Proof], ...]:
    rng = random.Random(2)
    found: list[tuple[Job, Proof]] = []
    while len(found) < PROOFS:
        job = (broadcasting, sized, drawn, drawn)[len(found) % 4](rng)
        proof = judge(job, longest_s=LONGEST)
        if proof is not None:
            found.append((job, proof))
    return tuple(found)


def test_the_facts_of_the_chain_are_enough() -> None:
    for job, proof in proofs():
        others = [fact for fact in facts_of(job) if fact not in proof.facts]
        assert proof.chain[0].rank in dead_in_words(without(job, *others)), proof.lines


def test_each_fact_of_the_chain_is_needed() -> None:
    for job, proof in proofs():
        others = [fact for fact in facts_of(job) if fact not in proof.facts]
        for fact in proof.facts:
            assert proof.chain[0].rank not in dead_in_words(without(job, *others, fact)), (fact, proof.lines)


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
