"""Removes facts from what is known, and finds the fewest by which a rank is dead. Pure.

A proof lists nothing that it does not need, so that each line of it is worth checking.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from holdfast.diagnostics.hang.can_move import CanMove
from holdfast.diagnostics.hang.facts import OpenAt, RankFacts
from holdfast.diagnostics.hang.proof import Fact, FactKind
from holdfast.wire.standing import ThreadState

MOST_FACTS = 80
"""Proofs of more facts are not made shorter: that takes as many closures."""


def fewest(job: Iterable[RankFacts], facts: Mapping[Fact, object], rank: int, longest_s: float) -> list[RankFacts]:
    """Drop the facts that are not needed for this rank to be dead, and return the rest.

    `facts`: all that a proof rests on, as the keys. Ranks that they are not about are not known at all.
    """
    about = {fact.rank for fact in facts}
    known = [one for one in job if one.rank in about]
    known = without(known, *(fact for fact in facts_of(known) if fact not in facts))
    for fact in facts:
        fewer = without(known, fact)
        if CanMove(fewer, longest_s, by_error=False).ranks[rank].is_dead:
            known = fewer
    return known


def facts_of(job: Iterable[RankFacts]) -> list[Fact]:
    """All that is known, one by one."""
    found = []
    for one in job:
        found += [Fact(FactKind.THREAD, one.rank, index) for index in range(len(one.threads))]
        found += [Fact(FactKind.OPERATION, one.rank, op.thread, op.group, op.number) for op in one.operations]
        found += [Fact(FactKind.COUNT, one.rank, -1, group) for group in one.begun if group in one.exact]
        found += [Fact(FactKind.PAST, one.rank, -1, group, number) for group, number in one.past]
        found += [Fact(FactKind.COMPLETE, one.rank)] * (one.is_complete or one.lock_held)
        found += [Fact(FactKind.GONE, one.rank)] * one.is_gone
    return found


def without(job: Iterable[RankFacts], *facts: Fact) -> list[RankFacts]:
    known = {one.rank: one for one in job}
    for fact in facts:
        known[fact.rank] = _without(known[fact.rank], fact)
    return list(known.values())


def _without(facts: RankFacts, fact: Fact) -> RankFacts:
    if fact.kind is FactKind.THREAD:
        threads = list(facts.threads)
        threads[fact.thread] = replace(threads[fact.thread], state=ThreadState.UNKNOWN)
        return replace(facts, threads=tuple(threads))
    if fact.kind is FactKind.OPERATION:
        return replace(facts, operations=tuple(_blurred(one, fact) for one in facts.operations))
    if fact.kind is FactKind.COMPLETE:
        return replace(facts, is_complete=False, lock_held=False)
    if fact.kind is FactKind.GONE:
        return replace(facts, is_gone=False)
    assert fact.group is not None
    if fact.kind is FactKind.PAST:
        key = fact.group, fact.number
        return replace(facts, past={other: done for other, done in facts.past.items() if other != key})
    # With a row, so that `lists_all` does not stand for it.
    return replace(facts, exact=facts.exact - {fact.group}, begun={fact.group: 0, **facts.begun})


def _blurred(operation: OpenAt, fact: Fact) -> OpenAt:
    if (operation.thread, operation.group, operation.number) != (fact.thread, fact.group, fact.number):
        return operation
    return replace(operation, kind="", size=0, root=-1)
