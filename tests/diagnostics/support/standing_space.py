"""All ways in which three ranks with two threads and three groups may stand, by number: what the model explores.

Rank 0 is in WORLD and LEFT, rank 1 in all three groups, rank 2 in WORLD and RIGHT. Each thread is free, waits for its
own process, was seen for one window only, or is in one of two kinds of operation under one of two numbers of a group. A
second number (`twist`) changes what is known of each rank: counts, completeness, what else is under way.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from holdfast.diagnostics.hang.facts import OpenAt, Past, RankFacts
from holdfast.diagnostics.hang.group import Group
from holdfast.wire.operation_size import pack
from holdfast.wire.standing import ThreadSight, ThreadState
from tests.diagnostics.support.standing_ranks import LEFT, MAIN, OTHER, RIGHT, WORLD, inside, thread

LONGEST = 1800.0
GROUPS = ((WORLD, LEFT), (WORLD, LEFT, RIGHT), (WORLD, RIGHT))
KINDS = ("all_reduce", "barrier")
NUMBERS = (1, 2)
_Thread = tuple[ThreadSight | None, OpenAt | None]


def _threads(rank: int, tid: int) -> list[_Thread]:
    """All that one thread may do."""
    found: list[_Thread] = [
        (ThreadSight(tid, ThreadState.RUNS, 0.0), None),
        (ThreadSight(tid, ThreadState.OWN, 1.0), None),
        (ThreadSight(tid, ThreadState.OWN, 0.4) if tid == MAIN else None, None),
    ]
    still = ThreadSight(tid, ThreadState.OWN, 1.0)
    for group in GROUPS[rank]:
        found += [(still, inside(group, number, kind, tid)) for kind in KINDS for number in NUMBERS]
    return found


@cache
def ways(rank: int) -> tuple[RankFacts, ...]:
    """All that one rank may do, all of it known. Under one number of a group it is in one operation only."""
    found = []
    for main, first in _threads(rank, MAIN):
        for other, second in _threads(rank, OTHER):
            operations = tuple(one for one in (first, second) if one is not None)
            if len({(one.group, one.number) for one in operations}) == len(operations):
                threads = tuple(one for one in (main, other) if one is not None)
                begun = {group: 1 for group in GROUPS[rank]}
                for one in operations:
                    begun[one.group] = max(begun[one.group], one.number + 1)
                found.append(RankFacts(rank, False, "", threads, operations, begun, frozenset(begun), True))
    return tuple(found)


SIZE = len(ways(0)) * len(ways(1)) * len(ways(2))


def _first(facts: RankFacts, **changes: object) -> RankFacts:
    """With the first operation changed."""
    held = facts.operations
    return replace(facts, operations=(replace(held[0], **changes), *held[1:])) if held else facts  # type: ignore[arg-type]


def _counts(facts: RankFacts, group: Group, count: int) -> RankFacts:
    lowest = max((one.number + 1 for one in facts.operations if one.group is group), default=0)
    return replace(facts, begun={**facts.begun, group: max(count, lowest)})


def _main(facts: RankFacts, **changes: object) -> RankFacts:
    return replace(facts, threads=(replace(facts.threads[0], **changes), *facts.threads[1:]))  # type: ignore[arg-type]


def _gone(facts: RankFacts) -> RankFacts:
    return replace(facts, is_gone=True, threads=(), operations=())


def _left(facts: RankFacts, root: int = -1, kind: str = "broadcast", size: int = 0) -> RankFacts:
    """Number 1 was this in each of its groups, unless it is in another operation there."""
    facts = replace(facts, past={(group, 1): Past(kind, root, size) for group in GROUPS[facts.rank]})
    for group in GROUPS[facts.rank]:
        facts = _counts(facts, group, 2)
    return facts


TWISTS: tuple[Callable[[RankFacts], RankFacts], ...] = (
    lambda facts: facts,
    lambda facts: facts,
    lambda facts: facts,
    _gone,
    lambda facts: replace(facts, exact=frozenset({WORLD})),
    lambda facts: replace(facts, exact=facts.exact - {WORLD}),
    lambda facts: replace(facts, is_complete=False),
    lambda facts: replace(facts, is_complete=False, lock_held=True),
    lambda facts: _first(facts, thread=0),
    lambda facts: _first(facts, thread=99),
    lambda facts: _first(facts, is_timed=True),
    lambda facts: _first(facts, kind="reduce", root=facts.rank),
    lambda facts: _first(facts, size=7),
    lambda facts: _first(facts, size=8 - facts.rank % 2),
    lambda facts: _first(facts, kind=""),
    lambda facts: _counts(facts, WORLD, 0),
    lambda facts: _counts(facts, WORLD, 2),
    lambda facts: _counts(facts, WORLD, 3),
    lambda facts: _counts(facts, GROUPS[facts.rank][-1], 0),
    lambda facts: _counts(facts, GROUPS[facts.rank][-1], 2),
    lambda facts: replace(facts, threads=()),
    lambda facts: _main(facts, state=ThreadState.TIMED, ends_in=30.0),
    lambda facts: _main(facts, state=ThreadState.TIMED, ends_in=90000.0),
    lambda facts: _main(facts, state=ThreadState.OWN, ends_in=30.0),
    lambda facts: _main(facts, state=ThreadState.OWN, ends_in=90000.0),
    lambda facts: replace(_main(facts, state=ThreadState.OWN, ends_in=90000.0), is_complete=False, lock_held=True),
    lambda facts: _main(facts, state=ThreadState.GONE),
    lambda facts: _main(facts, state=ThreadState.HELD),
    lambda facts: _left(facts, kind="all_reduce", size=7),
    lambda facts: _left(facts, kind="all_reduce", size=8),
    lambda facts: _left(facts, kind="reduce", root=0),
    lambda facts: _left(facts, kind="gather", root=1),
    lambda facts: _first(facts, kind="gather", root=1),
    lambda facts: _first(facts, kind="scatter", root=1),
    lambda facts: _first(facts, kind="broadcast", root=1),
    lambda facts: _first(facts, kind="broadcast", root=2),
    lambda facts: _left(facts, 0),
    lambda facts: _left(facts, 1),
    lambda facts: _left(facts, 2),
    lambda facts: replace(_left(facts, 0), exact=frozenset({LEFT})),
)
BROADCASTS = (0, *range(len(TWISTS) - 6, len(TWISTS)))
"""Twists about these."""


def standing(index: int, twist: int = 0) -> tuple[RankFacts, RankFacts, RankFacts]:
    index, first = divmod(index, len(ways(0)))
    third, second = divmod(index, len(ways(1)))
    changes = []
    for _ in range(3):
        twist, change = divmod(twist, len(TWISTS))
        changes.append(TWISTS[change])
    return changes[0](ways(0)[first]), changes[1](ways(1)[second]), changes[2](ways(2)[third])


def broadcasting(rng: random.Random) -> tuple[RankFacts, ...]:
    """Four or five ranks of one group, each in number 1, a broadcast with any root, or after it, or before it."""
    size = rng.choice((4, 5))
    group = Group("group", 1, tuple(range(size)))
    usual, found = rng.randrange(size), []
    for rank in range(size):
        root = rng.choice((usual, usual, rng.randrange(size)))
        cast, state = inside(group, 1, "broadcast", root=root), rng.choice(("in it", "in it", "after it", "later", ""))
        later = inside(group, 2)
        held = {"in it": (cast,), "later": (later,)}.get(state, ())
        count = {"in it": 2, "after it": 2, "later": 3}.get(state, 1)
        is_known = rng.random() < 0.8
        past = {(group, 1): Past(rng.choice(("broadcast", "broadcast", "reduce")), root)} if is_known else {}
        alone, exact = (thread(),), frozenset({group} if rng.random() < 0.95 else ())
        found.append(RankFacts(rank, False, "", alone, held, {group: count}, exact=exact, is_complete=True, past=past))
    return tuple(found)


SIZES = (0, pack(4, 1), pack(4, 1), pack(2, 4), pack(5, 1))
"""Two of them are as many bytes."""


def sized(rng: random.Random) -> tuple[RankFacts, ...]:
    """Three or four ranks of one group, each in number 1, of some kind and size, or after it, or before it."""
    group = Group("group", 1, tuple(range(rng.choice((3, 4)))))
    usual, found = rng.choice(("all_reduce", "all_reduce", "reduce", "broadcast", "all_gather")), []
    for number in group.members:
        kind = usual if rng.random() < 0.85 else rng.choice(("barrier", "reduce", "broadcast", ""))
        size, root = rng.choice(SIZES), 0 if kind in ("reduce", "broadcast") else -1
        state = rng.choice(("in it", "after it", "later"))
        later = inside(group, 2, rng.choice(("all_reduce", "barrier")))
        held = {"in it": (inside(group, 1, kind, size=size, root=root),), "later": (later,)}.get(state, ())
        count = 1 if state == "after it" and rng.random() < 0.3 else 2 + (state == "later")
        exact = frozenset({group} if rng.random() < 0.95 else ())
        past = {(group, 1): Past(kind, rng.choice((root, -1)), size)} if rng.random() < 0.85 else {}
        facts = RankFacts(number, False, "", (thread(),), held, {group: count}, exact, is_complete=True, past=past)
        found.append(_gone(facts) if rng.random() < 0.05 else facts)
    return tuple(found)


def drawn(rng: random.Random) -> tuple[RankFacts, RankFacts, RankFacts]:
    """Half of them meet: ranks are in operations under the same number. Of three, two are twisted: alike, or each."""
    first = rng.randrange(len(ways(0)))
    second, third = (_near(rng, rank, ways(0)[first]) for rank in (1, 2))
    size = len(TWISTS)
    alike, cast = rng.randrange(size) * (1 + size + size**2), [rng.choice(BROADCASTS) for _ in range(3)]
    twist = rng.choice((0, rng.randrange(size**3), alike, cast[0] + size * (cast[1] + size * cast[2])))
    return standing(first + len(ways(0)) * (second + len(ways(1)) * third), twist)


def _near(rng: random.Random, rank: int, other: RankFacts) -> int:
    near = [way for one in other.operations for way in _by_number(rank).get((one.group, one.number), ())]
    return rng.choice(near if near and rng.random() < 0.5 else range(len(ways(rank))))


@cache
def _by_number(rank: int) -> dict[tuple[Group, int], list[int]]:
    found: dict[tuple[Group, int], list[int]] = {}
    for way, facts in enumerate(ways(rank)):
        for one in facts.operations:
            found.setdefault((one.group, one.number), []).append(way)
    return found
