"""Facts about a worker that makes no progress: its activity, the states of its threads, its open operations.

Activity is measured from outside; `diagnostics.hang.stillness` tells from it whether the worker is busy. A state is a
fact of the kernel about one thread; an operation is a fact of the probe, or of torch's own record, about one process.
They are the facts of a proof, and `diagnostics.hang.closure` draws the conclusions.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

NAN = math.nan
WINDOW = 0.3
"""Seconds of one undisturbed look at a thread."""
KNOWN_AFTER = 2 * WINDOW
"""Seconds from which on its state is a fact. One window is noise: a timer thread moves now and then."""


class ThreadState(StrEnum):
    """State of one thread, as the kernel shows it."""

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
    """Its wait in words."""
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
class PastOperation:
    """A collective that a process began lately. One with a root may not have ended: see the open ones."""

    kind: str
    """As OPERATION_KINDS."""
    group: int
    """As of an OpenOperation, like the rest."""
    number: int
    root: int = -1
    """The rank, in the job; -1: none, or not known."""
    size: int = 0


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
    past: tuple[PastOperation, ...] = ()
    """Collectives of gloo that it began last, each (group, number) once. One that is not among them is not known."""

    @property
    def main(self) -> ThreadSight | None:
        return self.threads[0] if self.threads else None


class GpuUse(StrEnum):
    """Use that a worker makes of its GPU, as far as it can be seen from outside."""

    UNKNOWN = ""
    WORKS = "works"
    WAITS = "waits"
    """It draws idle power and moves no bytes: a kernel that only waits for a peer reads as full utilization."""


SPINS_CORES = 0.04
"""Cores from which a thread uses its processor: less is noise."""
FROZEN = "a frozen cgroup"
"""Text of `Activity.waits_for` for a process that the kernel's cgroup freezer holds."""


@dataclass(frozen=True, slots=True)
class Activity:
    """The agent's measurement, from outside, of a worker that entered and left no operation for a while.

    It covers the worker's process and all its descendants. Rates are of the newest window of about half a second.
    """

    watched: float = 0.0
    """Seconds since the watch of this standstill began."""
    quiet: float = 0.0
    """Seconds since anything moved: processor time, bytes read, written or sent, new descriptors, children that come
    and go, events of its timers on a GPU, operations of NCCL that it begins. As long as `watched` if nothing did.
    Processor time of a process that has a GPU does not count by itself. Seconds in which the worker was disturbed
    (asked for its stacks) are left out."""
    state: str = ""
    """The main thread's letter in /proc/PID/stat; T: stopped, t: traced by a process that is no debugger at a
    prompt, Z: zombie. Empty: not readable."""
    cpu: float = 0.0
    """Cores that its own threads use, without the probe's."""
    children_cpu: float = 0.0
    """Cores that its descendants use, and the process at the other end of the socket or pipe that it waits on."""
    read: float = 0.0
    """Bytes a second."""
    written: float = 0.0
    network: float = 0.0
    """Bytes a second over its sockets, both directions, as far as the kernel reports them."""
    waits_for: str = ""
    """In words what the main thread waits for: "a lock", "its child tar (pid 123)", "a read from a pipe"."""
    ends_in: float = NAN
    """Seconds until the main thread's system call ends by itself, where it has a deadline."""
    is_prompt: bool = False
    """It waits at a terminal, or is held by a debugger that does."""
    has_gpu: bool = False
    gpu: GpuUse = GpuUse.UNKNOWN
    thread: str = ""
    """Another thread of the process that moves while the main one waits: its name."""
    events_pending: int = 0
    """Events that timers of the process recorded on its GPU and that have not come; 0 where none are asked for."""
    behind: str = ""
    """In words which operations of NCCL it has not begun that its peers have: "by NCCL's count it has begun ..."."""

    @property
    def waits_for_gpu(self) -> bool:
        """Its GPU has work of it that does not end, and draws idle power: it waits for peers, as NCCL's kernels do."""
        return self.has_gpu and self.gpu is GpuUse.WAITS and self.events_pending > 0

    @property
    def spins(self) -> bool:
        """Its main thread runs, its GPU is not seen to work: where nothing of it moves, it spins in a wait of CUDA."""
        return self.has_gpu and self.state == "R" and self.cpu >= SPINS_CORES and self.gpu is not GpuUse.WORKS
