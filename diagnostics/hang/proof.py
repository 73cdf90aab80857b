"""A proof that ranks are dead: the chain of what waits for what, which a person can check line by line.

A proof without a chain can't be built: it is the only thing for which processes are ended at once.
"""

from dataclasses import dataclass
from enum import StrEnum

from holdfast.diagnostics.hang.group import Group


class Cause(StrEnum):
    """In what a chain ends."""

    GONE = "gone"
    """A rank that has ended."""
    LOCK = "lock"
    """A wait of a process for itself."""
    DEADLINE = "deadline"
    """The same, with a deadline after the pause limit."""
    MISMATCH = "mismatch"
    """Different operations under the same number."""
    ORDER = "order"
    """Operations that wait for each other in a cycle."""


class FactKind(StrEnum):
    THREAD = "thread"
    """The state of a thread, seen for long enough."""
    OPERATION = "operation"
    """The kind, size and root of an open operation."""
    COUNT = "count"
    """How many operations a rank has begun in a group."""
    PAST = "past"
    """A rank has left an operation whose kind, size or root is known."""
    COMPLETE = "complete"
    """A process has no operation besides those listed."""
    GONE = "gone"
    """A rank has ended."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that is known of a rank, and that a proof needs."""

    kind: FactKind
    rank: int
    thread: int = -1
    """THREAD: index into the rank's threads. OPERATION: the kernel's id of the thread, as in OpenAt."""
    group: Group | None = None
    number: int = -1


@dataclass(frozen=True, slots=True)
class Link:
    """One thread that can't move, or an operation that can't end, or a rank that is gone."""

    rank: int
    thread: str
    """"main thread"; empty: the whole process, or an operation that no thread is seen to wait for."""
    what: str
    needs: tuple[int, ...]
    """Ranks without which it can't go on: its own, where it waits for its process. Empty: it is gone."""
    why: str
    """Why what it needs does not come."""
    known_from: str
    seconds: float
    """Since when. 0: no time belongs to it."""
    facts: tuple[Fact, ...]
    """All that the link rests on: without any one of them it does not hold."""

    def __str__(self) -> str:
        where = f"rank {self.rank}" + (f", {self.thread}" if self.thread else "")
        since = f", for {self.seconds:.1f} s" if self.seconds else ""
        return f"{where}: {self.what}{since}; {self.why} [{self.known_from}]"


@dataclass(frozen=True, slots=True)
class End:
    """Where chains end."""

    cause: Cause
    ranks: tuple[int, ...]
    """The ranks at fault, in ascending order; empty: the job."""
    text: str


_MOST_ENDS = 4
"""Reasons that the text of a proof names."""
Chain = tuple[Link, *tuple[Link, ...]]


@dataclass(frozen=True, slots=True)
class Proof:
    """`dead` ranks never end by themselves, whatever the threads that can still move do."""

    dead: tuple[int, ...]
    """In ascending order, without those that are gone."""
    ends: tuple[End, *tuple[End, ...]]
    """In the order of Cause."""
    chain: Chain
    """That the first link's rank is dead: each link's needs are links as well, or gone, or in the cycle."""

    def __post_init__(self) -> None:
        if not self.chain or not self.ends or not self.dead:
            raise ValueError("a proof needs dead ranks, a chain, and what it ends in")
        if self.chain[0].rank not in self.dead:
            raise ValueError(f"the chain is about rank {self.chain[0].rank}, which is not among the dead")

    @property
    def cause(self) -> Cause:
        return self.ends[0].cause

    @property
    def reasons(self) -> tuple[int, ...]:
        """The ranks that are the reason, in ascending order; empty: the job."""
        return tuple(sorted({rank for end in self.ends for rank in end.ranks}))

    @property
    def text(self) -> str:
        more = f"; and {len(self.ends) - _MOST_ENDS} more reasons" if len(self.ends) > _MOST_ENDS else ""
        return "; ".join(end.text for end in self.ends[:_MOST_ENDS]) + more

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(str(link) for link in self.chain)

    @property
    def facts(self) -> tuple[Fact, ...]:
        """All facts that the chain rests on, each once."""
        return tuple(dict.fromkeys(fact for link in self.chain for fact in link.facts))
