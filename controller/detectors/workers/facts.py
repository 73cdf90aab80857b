"""Facts about each rank's threads and operations, from the table of ranks, for the judge of dead ranks. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from holdfast.base import bounds
from holdfast.controller.state.ranks import RankState, RankTable
from holdfast.diagnostics.hang.facts import OpenAt, Past, RankFacts
from holdfast.diagnostics.hang.group import Group
from holdfast.wire import types as t
from holdfast.wire.rank_sets import expand
from holdfast.wire.standing import OpenOperation

_ENDING = t.PHASES.index(t.Phase.DONE)
_GONE = (RankState.EXITED, RankState.DONE, RankState.ENDED)

Key = tuple[str, int, str]
"""Label, ident and members of a group: the same at all of its ranks."""


@dataclass(slots=True)
class Groups:
    """One object for each group, however many ranks report it."""

    known: dict[Key, Group | None] = field(default_factory=dict)
    ranks: dict[int, set[int]] = field(default_factory=dict)
    """Ident -> ranks that have made the group, or use a message channel of it."""

    def of(self, rank: int, counts: Sequence[t.GroupCount]) -> list[Group | None]:
        for count in counts:
            self.ranks.setdefault(count.ident, set()).add(rank)
        return [self.get(count) for count in counts]

    def get(self, count: t.GroupCount) -> Group | None:
        """None where its members are too many to name."""
        key = count.label, count.ident, count.members
        if key not in self.known:
            try:
                members = expand(count.members)
            except ValueError:
                members = ()
            self.known[key] = Group(count.label, count.ident, members) if members else None
        return self.known[key]


def facts_of(ranks: RankTable, running: np.ndarray, silent: np.ndarray, known_s: float = math.inf) -> list[RankFacts]:
    """`running`: ranks that are expected to run. `silent`: those whose interpreter has not run although it is watched.
    `known_s`: seconds since a rank ended; what was seen before that may have been changed by it.

    Ranks that make progress are left out: nothing is known of their threads, so they are free.
    """
    groups = Groups()
    own: dict[int, list[Group | None]] = {}
    gone = np.zeros(ranks.world, np.bool_)
    for state in _GONE:
        gone |= ranks.is_in(state)
    for rank in map(int, np.flatnonzero(running | gone)):
        if (pending := ranks.pending[rank]) is not None:
            own[rank] = groups.of(rank, pending.groups)
    found = [_gone(ranks, rank, own.get(rank, ())) for rank in map(int, np.flatnonzero(gone))]
    for rank in map(int, np.flatnonzero(running & ~ranks.left)):
        standing, pending = ranks.standing[rank], ranks.pending[rank]
        if standing is None or ranks.phase[rank] == _ENDING:
            continue  # what is torn down may hold any lock until its process ends
        mine = own.get(rank, [])
        named, counts = _named(pending, mine), pending.groups if pending is not None else ()
        operations = tuple(_open(one, mine, groups.ranks, gone, own) for one in standing.operations)
        found.append(
            RankFacts(
                rank,
                threads=tuple(
                    replace(one, seconds=known_s) if one.seconds > known_s else one for one in standing.threads
                ),
                operations=tuple(one for one in operations if one is not None),
                begun={group: count.begun for group, count in named},
                exact=frozenset(group for group, count in named if count.is_exact),
                is_complete=standing.is_complete and None not in operations,
                holder=standing.holder,
                lists_all=len(counts) < bounds.MAX_GROUPS - 1,
                lock_held=bool(silent[rank]) and not operations,
                past={
                    (group, one.number): Past(one.kind, one.root, one.size)
                    for one in standing.past
                    if one.group < len(mine) and (group := mine[one.group]) is not None
                },
            )
        )
    return found


def _open(
    one: OpenOperation,
    own: Sequence[Group | None],
    made_by: Mapping[int, set[int]],
    gone: np.ndarray,
    seen: Mapping[int, object],
) -> OpenAt | None:
    """None where nothing is known of when it ends: its group is not known, or a member of the group does not know it.
    Such a group is of another world, whose numbers are not those of this job's ranks."""
    group = own[one.group] if one.group < len(own) else None
    if group is None:
        return None
    knows, is_new = made_by.get(group.ident, set()), one.kind == "new_group"  # which nobody has made yet
    for member in group.members:
        if member >= len(gone) or not (is_new or member not in seen or member in knows or gone[member]):
            return None
    return OpenAt(one.thread, group, one.kind, one.number, one.size, one.root, one.is_timed)


def _named(pending: t.PendingCollective | None, own: Sequence[Group | None]) -> list[tuple[Group, t.GroupCount]]:
    counts = pending.groups if pending is not None else ()
    return [(group, count) for group, count in zip(own, counts, strict=True) if group is not None]


def _gone(ranks: RankTable, rank: int, own: Sequence[Group | None]) -> RankFacts:
    """Its counts are those of its last report; without one it is not known how far it has come."""
    named = _named(ranks.pending[rank], own) if own else []
    return RankFacts(
        rank,
        is_gone=True,
        how="has ended with exit code 0" if ranks.is_in(RankState.DONE)[rank] else "has ended",
        begun={group: count.begun for group, count in named},
        exact=frozenset(group for group, count in named if count.is_exact),
    )
