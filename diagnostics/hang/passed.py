"""Operations that ranks have left: of another kind or size, and to whom a broadcast's messages went. Pure.

Gloo's messages carry kind and number (gloo/types.h): a rank that began this number as another kind never sends or
receives what its peers wait for. One that has left it with other bytes sends no more. What it has sent may still come,
but a valid program never has two sizes under one number.

Gloo's broadcast is a binomial tree over the places after the root (gloo/broadcast.cc): a rank receives from its parent,
then sends to its children, and each send ends when it is received. A message belongs to one number of one group, so a
rank that has left that number under another root sends and receives no more there than its own tree says.
"""

from collections.abc import Collection, Iterable, Mapping

from holdfast.diagnostics.hang.facts import OpenAt, Past, RankFacts
from holdfast.diagnostics.hang.group import Group
from holdfast.wire.operation_size import other_bytes

Key = tuple[Group, int]


def parent_of(place: int, root: int, size: int) -> int:
    """From which place a broadcast comes to this one, which is not the root's: without the highest bit of its distance
    from the root."""
    distance = (place - root) % size
    return (root + distance - (1 << distance.bit_length() - 1)) % size


class Passed:
    """Remembers what ranks began under a number and have left: they are in nothing under that number any more."""

    def __init__(self, ranks: Iterable[RankFacts], under: Mapping[Key, Collection[int]]) -> None:
        """`under`: the numbers of interest, and which ranks are in an operation there."""
        self.at: dict[Key, dict[int, Past]] = {}
        self._places: dict[Group, dict[int, int]] = {}
        for one in ranks:
            for key, done in one.past.items():
                is_left = one.begun.get(key[0], 0) > key[1] and one.rank not in under.get(key, (one.rank,))
                if is_left and key[0] in one.exact:
                    self.at.setdefault(key, {})[one.rank] = done

    def parent(self, operation: OpenAt, rank: int) -> int:
        """From whom a broadcast's message comes to a rank that is not its root."""
        group, places = operation.group, self._places_of(operation.group)
        return group.members[parent_of(places[rank], places[operation.root], len(group.members))]

    def is_another(self, operation: OpenAt, member: int) -> bool:
        """Whether a member has left the number in an operation of another kind or, except in a broadcast, with other
        bytes. A broadcast ends wherever its message has come, whatever the buffer's size."""
        done = self.at.get((operation.group, operation.number), {}).get(member)
        if done is None or not done.kind:
            return False
        if done.kind != operation.kind:
            return bool(operation.kind)
        return done.kind != "broadcast" and other_bytes(operation.size, done.size)

    def leads(self, group: Group, kind: str, root: int, source: int, target: int) -> bool:
        """Whether an operation may send a message of a broadcast from one rank to the other, for all that is known of
        it (empty or below 0: nothing)."""
        places = self._places_of(group)
        if kind not in ("", "broadcast") or root == target:
            return False
        if not kind or root not in places:
            return True
        return parent_of(places[target], places[root], len(group.members)) == places[source]

    def lost_sender(self, operation: OpenAt, rank: int) -> int | None:
        """For a rank in an operation whose root it is not: the rank that should send to it in a broadcast, if that has
        left the number in a broadcast of another root and sent nothing there to this rank."""
        if operation.kind != "broadcast" or (operation.group, operation.number) not in self.at:
            return None
        parent = self.parent(operation, rank)
        return parent if self._is_lost(operation, parent, parent, rank) else None

    def is_lost(self, operation: OpenAt, child: int) -> bool:
        """Whether a child of the root has left the number in a broadcast of another root, and received nothing there
        from this root."""
        return self._is_lost(operation, child, operation.root, child)

    def _is_lost(self, operation: OpenAt, passed: int, source: int, target: int) -> bool:
        """By what `passed` did, no message went from `source` to `target`."""
        group = operation.group
        done = self.at.get((group, operation.number), {}).get(passed)
        if done is None or done.kind != "broadcast" or done.root == operation.root:
            return False
        places = self._places_of(group)
        if passed not in places or done.root not in places:
            return False
        root = places[done.root]
        return done.root == target or parent_of(places[target], root, len(group.members)) != places[source]

    def _places_of(self, group: Group) -> dict[int, int]:
        if group not in self._places:
            self._places[group] = {member: place for place, member in enumerate(group.members)}
        return self._places[group]
