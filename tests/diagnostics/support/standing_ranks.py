"""Short forms for the facts of ranks that stand still."""

from collections.abc import Iterable
from dataclasses import replace

from holdfast.diagnostics.hang.facts import OpenAt, RankFacts
from holdfast.diagnostics.hang.group import Group
from holdfast.wire.standing import ThreadSight, ThreadState

WORLD = Group("world", 1, (0, 1, 2))
LEFT, RIGHT = Group("left", 2, (0, 1)), Group("right", 3, (1, 2))
MAIN, OTHER = 7, 8
"""Threads' ids: the main one's, another one's."""


def thread(state: ThreadState = ThreadState.OWN, tid: int = MAIN, seconds: float = 1.0, **more: object) -> ThreadSight:
    return ThreadSight(tid, state, seconds, **more)  # type: ignore[arg-type]


def channel(source: int, target: int) -> Group:
    return Group(f"world:{source}>{target}", 1, (source, target))


def inside(group: Group, number: int, kind: str = "all_reduce", tid: int = MAIN, **more: object) -> OpenAt:
    return OpenAt(tid, group, kind, number, **more)  # type: ignore[arg-type]


def rank(
    number: int,
    *operations: OpenAt,
    threads: Iterable[ThreadSight] = (thread(),),
    begun: dict[Group, int] | None = None,
    **more: object,
) -> RankFacts:
    """In these operations, all that is known is known: counts are exact and as the operations say, unless given."""
    counts = {one.group: one.number + 1 for one in operations} | (begun or {})
    known: dict[str, object] = {"is_complete": True, "lists_all": True, "exact": frozenset(counts)}
    return RankFacts(number, threads=tuple(threads), operations=operations, begun=counts, **(known | more))  # type: ignore[arg-type]


def gone(number: int, begun: dict[Group, int], how: str = "ended with exit code 0") -> RankFacts:
    return RankFacts(number, is_gone=True, how=how, begun=begun, exact=frozenset(begun), lists_all=True)


def without(facts: list[RankFacts], number: int, **changes: object) -> list[RankFacts]:
    """With some of one rank's facts replaced."""
    return [replace(one, **changes) if one.rank == number else one for one in facts]  # type: ignore[arg-type]
