"""Members that an operation needs to end, and when two ranks under one number are in different operations. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.diagnostics.hang.facts import OpenAt
from holdfast.diagnostics.hang.group import Group

_ALL = frozenset(
    {"all_gather", "all_reduce", "all_to_all", "barrier", "monitored_barrier", "new_group", "reduce_scatter"}
)
_BY_ROOT = frozenset({"broadcast", "gather", "reduce", "scatter"})
_MESSAGES = frozenset({"recv", "send"})
_ROW_AT_FIRST_USE = _MESSAGES | {"monitored_barrier", "new_group"}


class Role(StrEnum):
    """Whom an operation needs, as seen from one of its ranks."""

    ALL = "all"
    ROOT = "root"
    CHILDREN = "children"
    """The ranks to which the root of a broadcast sends itself. Gloo's sends wait until they are received."""
    PARENT = "parent"
    """The rank that sends to it in a broadcast, which will never send: see `passed`."""
    PEER = "peer"
    """The other end of a channel."""
    NOBODY = "nobody"
    """It may hand something over and go on."""
    UNKNOWN = "unknown"


def role_of(operation: OpenAt, rank: int, members: frozenset[int]) -> Role:
    """Broadcast, scatter and gather need their root only; the root of a broadcast needs those to which it sends, that
    of the others all. A reduce needs all at the root; what its other ranks need depends on its bytes. A message needs
    its other end; the other collectives need all members. Kinds beyond these are unknown.

    Gloo's sends wait until they are received (gloo/transport/tcp/pair.cc).

    `members`: those of its group; looked up for each rank.
    """
    root = operation.root
    if rank not in members:
        return Role.UNKNOWN
    if operation.kind in _ALL:
        return Role.ALL
    if operation.kind in _MESSAGES:
        return Role.PEER if len(members) == 2 else Role.UNKNOWN
    if root not in members:
        return Role.UNKNOWN
    if operation.kind in _BY_ROOT:
        if root == rank:
            return Role.CHILDREN if operation.kind == "broadcast" else Role.ALL
        return Role.NOBODY if operation.kind == "reduce" else Role.ROOT
    return Role.UNKNOWN


def needed(operation: OpenAt, role: Role, rank: int) -> Sequence[int]:
    """The ranks without which it can't end; among them may be `rank` itself."""
    if role is Role.ALL:
        return operation.group.members
    if role is Role.ROOT:
        return (operation.root,)
    if role is Role.CHILDREN:
        return children_of(operation.root, operation.group.members)
    return tuple(member for member in set(operation.group.members) if member != rank) if role is Role.PEER else ()


def children_of(root: int, members: Sequence[int]) -> tuple[int, ...]:
    """To whom the root of a broadcast sends in gloo's binomial tree: the members 1, 2, 4, ... places after it
    (gloo/broadcast.cc)."""
    size, at = len(members), members.index(root)
    return tuple(members[(at + (1 << bit)) % size] for bit in range((size - 1).bit_length()))


def is_listed_when_used(operation: OpenAt) -> bool:
    """Whether the probe itself counts such operations, from the first one on: a rank that has begun none has no row."""
    return operation.kind in _ROW_AT_FIRST_USE


def differ(one: OpenAt, other: OpenAt) -> bool:
    """Whether two operations under the same number can't be the same: another kind, size or root, where both know it.
    The two ends of a message have different kinds."""
    if one.kind and other.kind and one.kind != other.kind and {one.kind, other.kind} != _MESSAGES:
        return True
    if one.size and other.size and one.size != other.size:
        return True
    return one.root >= 0 and other.root >= 0 and one.root != other.root


class Lack(StrEnum):
    """Why a member does not come to an operation."""

    GONE = "gone"
    OTHER = "other"
    """It is in another operation under the same number, and can't leave that one."""
    PASSED = "passed"
    """It has left that number in an operation of another kind or size, or in a broadcast of another root in which no
    message went between the two."""
    STILL = "still"
    """It has not begun the operation, and none of its threads can move."""


Place = tuple[int, int]
"""A rank and an index into its threads; -1 stands for none: an operation that no thread waits for."""


@dataclass(slots=True, eq=False)
class SharedOperation:
    """One operation with all ranks that are in it and need the same members."""

    operation: OpenAt
    """As one of them reports it."""
    role: Role
    inside: list[Place] = field(default_factory=list)
    blocked: dict[int, Lack] = field(default_factory=dict)
    """Members that have not come and can't come, as far as is known. Empty: it may end."""
    is_over: bool = False
    """All who are inside have been let go."""

    @property
    def key(self) -> tuple[Group, int]:
        return self.operation.group, self.operation.number
