"""Known facts about the ranks of a job that makes no progress: the input of `closure.judge`.

Knowledge only adds up: whatever is missing here counts as able to move. A state of a thread is known when it was seen
without a break for two windows (`standing.KNOWN_AFTER`); an operation is known by its hook, or by torch's own record.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.diagnostics.hang.group import Group
from holdfast.wire.operation_size import words
from holdfast.wire.standing import ThreadSight


@dataclass(frozen=True, slots=True)
class OpenAt:
    """An operation that has begun in a rank and has not ended. Forward, backward, a step are places, no operations."""

    thread: int
    """The kernel's id of the thread that waits for its end. 0: no thread is seen to wait; torch's own record has it."""
    group: Group
    """For a message the channel, one direction between two ranks. The kind tells the side."""
    kind: str
    """As OPERATION_KINDS; empty: not known."""
    number: int
    """Which of the group's operations, from 0. Each side of a channel counts its own."""
    size: int = 0
    """As operation_size packs it; 0: not known, or it may differ between ranks."""
    root: int = -1
    """The rank, in the job, that sends to or receives from all; -1: none, or not known."""
    is_timed: bool = False
    """Its own timeout is shorter than torch's default: it may end by itself."""

    def __str__(self) -> str:
        size = f" of {words(self.size)}" if self.size else ""
        root = f" with root {self.root}" if self.root >= 0 else ""
        return f"{self.kind or 'operation'} {self.number}{size}{root} of {self.group}"


@dataclass(frozen=True, slots=True)
class Past:
    """Kind, root and size with which an operation was begun, as in OpenAt."""

    kind: str
    root: int = -1
    size: int = 0


@dataclass(frozen=True, slots=True)
class RankFacts:
    """One worker. A rank that is not in the input at all, or has no threads here, counts as able to do anything.

    Its counts and operations are read after its threads last moved. Different ranks may be read at different instants:
    the first thread to move after its rank was read would need a peer that came after that peer was read, and so a
    thread of the peer that moved still earlier.
    """

    rank: int
    is_gone: bool = False
    how: str = ""
    """In words how it went: "ended with exit code 0"."""
    threads: tuple[ThreadSight, ...] = ()
    """The main thread first. A row with `count` > 1 stands for several threads in the same state."""
    operations: tuple[OpenAt, ...] = ()
    begun: Mapping[Group, int] = field(default_factory=dict)
    """Operations that it has begun in each group."""
    exact: frozenset[Group] = frozenset()
    """Groups whose count holds all operations, whichever code began them."""
    is_complete: bool = False
    """`operations` are all that this process has under way."""
    holder: str = ""
    lists_all: bool = False
    """A channel or a `new_group` that is missing in `begun` has never been used: the table of groups is not full."""
    lock_held: bool = False
    """The interpreter's lock is held: no thread runs Python code, so none can begin an operation unseen."""
    past: Mapping[tuple[Group, int], Past] = field(default_factory=dict)
    """Collectives that it began last in groups of gloo, by number, also those that are over."""

    @property
    def is_alone(self) -> bool:
        """Whether operations that are not listed are known to be absent."""
        return self.is_complete or (self.lock_held and not self.operations)
