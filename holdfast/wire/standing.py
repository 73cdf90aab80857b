"""What a worker's threads do while it makes no progress, and which operations they have open: the facts of a proof.

A state is a fact of the kernel about one thread; an operation is a fact of the probe, or of torch's own record, about
one process. `diagnostics.hang.closure` draws the conclusions.
"""

from dataclasses import dataclass
from enum import StrEnum

NAN = float("nan")


class ThreadState(StrEnum):
    """What one thread does, as the kernel shows it."""

    UNKNOWN = "unknown"
    """Not readable, or not seen for long enough: it may do anything."""
    RUNS = "runs"
    """It is on a processor or wants one."""
    TIMED = "timed"
    """It waits for the outside with a deadline, or something is armed that may interrupt it."""
    OUTSIDE = "outside"
    """It waits for what other processes, a disk, a terminal or a driver may give."""
    OWN = "own"
    """It waits for a thread of its own process (a private futex), or for a timer; a deadline is in `ends_in`."""
    HELD = "held"
    """It is stopped, traced or frozen: its holder decides."""
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class ThreadSight:
    """One thread of a worker, or several alike (`count`). Service threads of the probe and of torch are not among them:
    they act for others only (`agent.activity.threads`)."""

    tid: int
    """The kernel's id; 0 where the row stands for several."""
    state: ThreadState = ThreadState.UNKNOWN
    seconds: float = 0.0
    """For how long it has been seen so without a break, without having run, and without being disturbed."""
    ends_in: float = NAN
    """Seconds until its wait ends by itself; NaN: no deadline."""
    words: str = ""
    """What it waits for."""
    count: int = 1


@dataclass(frozen=True, slots=True)
class OpenOperation:
    """An operation of a process group that has begun and has not ended."""

    thread: int
    """The kernel's id of the thread that waits for its end. 0: none is seen to wait; torch's own record has it."""
    kind: str
    """As OPERATION_KINDS; empty where it is not known."""
    group: int
    """Index into the groups of the worker's PendingCollective."""
    number: int
    """Which of that group's operations it is, from 0: of a collective torch's own sequence number less 1."""
    size: int = 0
    """As operation_size packs it, where it must be the same on all ranks; 0: not known."""
    root: int = -1
    """The rank, in the job, that sends to or receives from all (broadcast, gather, ...); -1: none, or not known."""
    is_timed: bool = False
    """Its own timeout is shorter than torch's default: it may end by itself."""


@dataclass(frozen=True, slots=True)
class StallFacts:
    """A worker that has made no progress for a while."""

    threads: tuple[ThreadSight, ...] = ()
    """The main thread first (its `tid` is the process's id), then those in operations, one that is free if there is
    any, and all others as one row."""
    operations: tuple[OpenOperation, ...] = ()
    is_complete: bool = False
    """Whether `operations` are all that torch has under way, as its own record says, read while the worker stood."""
    holder: str = ""
    """In words what holds the process: "gdb (pid 7) traces it", "the cgroup freezer". Empty: nothing that is known."""

    @property
    def main(self) -> ThreadSight | None:
        return self.threads[0] if self.threads else None
