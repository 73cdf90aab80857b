"""Waits of the other threads of a worker: where its main thread waits for a lock, one of them is why.

This is no movement: a library's polling thread makes one system call after the other without end.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from holdfast.agent.activity.host_flow import is_asked
from holdfast.agent.activity.process_look import channel_of
from holdfast.agent.activity.threads.states import (
    ThreadTable,
    classify,
    condition_of,
    is_of_operation,
    is_service,
    joins_thread,
)
from holdfast.agent.activity.waits import TIMER, Clocks, Look, ThreadWait, describe
from holdfast.agent.processes.proc_files import (
    RUNNING,
    Call,
    Stat,
    parse_call,
    parse_schedstat,
    parse_stat,
    parse_status,
    read,
)
from holdfast.wire.standing import ThreadState

_WAITS = ("S", "D")
_MOST_NAMED = 2
_SAYS_NOTHING = ("", "a lock", TIMER)
_SERVES = ("epoll", "poll", "select")
"""Calls that wait for several descriptors: threads that serve the others make them."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Facts that hold for all threads of one look."""

    clock: Callable[[], float]
    """Monotonic seconds."""
    clocks: Clocks
    """The clocks when the look began."""
    present: Collection[int]
    """All threads there are."""
    valid_from: float = -math.inf
    """Nothing that was seen before this counts."""
    interpreter: int = 0
    """`threads.condition_of` those who wait for the interpreter's lock, while the probe's ticks fail to come."""
    is_frozen: bool = False
    services: Collection[int] = ()
    """Threads that torch started for its process groups."""


class Seen(NamedTuple):
    """A thread between two instants."""

    between: tuple[float, float]
    call: Call | None
    state: str
    channel: str
    ran: object
    """It changes when the thread runs."""
    wait: ThreadWait


def note_thread(table: ThreadTable, tid: int, seen: Seen, look: Look, turn: Turn) -> ThreadState:
    """Note what a thread does, and return it."""
    if turn.interpreter:
        is_seen = condition_of(seen.call) == turn.interpreter
        may_be = is_seen or seen.state == "R" or seen.call == RUNNING
        if may_be and table.note_interpreter(tid, seen.between, is_seen, seen.ran, turn.valid_from):
            return ThreadState.OWN
    joins = joins_thread(seen.call, look, turn.present)
    state = classify(seen.call, seen.state, seen.channel, seen.wait, joins)
    if turn.is_frozen and seen.state == "D":
        state = ThreadState.HELD
    key = seen.call, seen.state, seen.channel, seen.ran
    table.note(tid, seen.between, state, key, seen.wait, turn.valid_from)
    return state


def ran_of(task: str) -> tuple[object, tuple[int, int] | None]:
    """A value that changes when the thread runs; how long it ran (nanoseconds) and how often, where that is known."""
    slices = parse_schedstat(read(f"{task}/schedstat", 128))
    if slices is not None and slices[1]:
        return slices, slices
    status = read(f"{task}/status")  # a kernel that does not count: zeros
    switches = parse_status(status, "voluntary_ctxt_switches"), parse_status(status, "nonvoluntary_ctxt_switches")
    return switches, slices


class Glance(NamedTuple):
    """The first look at a thread, which says whether it has run since."""

    at: float
    """The instant before it."""
    ran: object
    stat: Stat


def glance_at(task: str, at: float, before: Glance | None) -> Glance | None:
    """None where the thread is gone. A thread that has not run since has the same `stat`."""
    ran, _ = ran_of(task)  # before all else: what is read later holds as long as this stays the same
    raw = read(f"{task}/stat", 512)
    if before is not None and before.ran == ran and before.stat.state in _WAITS:
        begin = raw.rfind(b") ") + 2
        if raw[begin : begin + 1] == before.stat.state.encode():
            return Glance(at, ran, before.stat)
    stat = parse_stat(raw)
    return Glance(at, ran, stat) if stat is not None else None


class _Known(NamedTuple):
    call: Call | None
    state: str
    channel: str
    ran: object
    wait: ThreadWait
    is_rough: bool = False
    """When its wait ends is not known, although it has a deadline: it has run since the look before."""


class ThreadWaits:
    """The waits of one worker's threads."""

    def __init__(self, folder: str, table: ThreadTable | None = None) -> None:
        """`folder`: of the process, under /proc. `table`: where what each thread does is noted."""
        self._folder = folder
        self._table = table or ThreadTable()
        self._known: dict[int, _Known] = {}
        self._left_out: set[int] = set()

    def look(self, glances: Mapping[int, Glance], look: Look, turn: Turn) -> None:
        """`glances`: at the threads whose turn it is, the main one and the probe's not among them."""
        there = set(turn.present)
        self._known = {tid: known for tid, known in self._known.items() if tid in there}
        self._left_out &= there
        for tid, glance in glances.items():
            self._left_out.discard(tid)
            if is_service(glance.stat.name, tid in turn.services) and glance.stat.state not in ("T", "t"):
                self._left_out.add(tid)
                self._known.pop(tid, None)
            else:
                self._look_at(tid, glance, look, turn)

    def _look_at(self, tid: int, glance: Glance, look: Look, turn: Turn) -> None:
        known = self._known[tid] = self._seen(tid, glance, look, turn)
        call, wait = known.call, known.wait
        seen = Seen((glance.at, turn.clock()), call, known.state, known.channel, known.ran, wait)
        what = note_thread(self._table, tid, seen, look, turn)
        ends_in = wait.until - turn.clocks.monotonic
        if what in (ThreadState.OWN, ThreadState.TIMED) and is_of_operation(glance.stat.name, call, ends_in):
            self._table.mark_serving(tid)

    def _seen(self, tid: int, glance: Glance, look: Look, turn: Turn) -> _Known:
        state, known = glance.stat.state, self._known.get(tid)
        has_run = known is None or known.ran != glance.ran
        if (
            known is not None
            and not has_run
            and known.state == state in _WAITS
            and known.call is not None
            and not known.is_rough
        ):
            return known  # what it waits for is what it was
        task = f"{self._folder}/task/{tid}"
        call, channel = parse_call(read(f"{task}/syscall", 512)), channel_of(task)
        is_alike = known is not None and (known.call, known.state, known.channel) == (call, state, channel)
        if known is not None and is_alike and has_run:
            # One that wakes between any two looks would be described each time: when it wakes next matters little.
            has_end = not math.isnan(known.wait.until)
            wait = replace(known.wait, until=math.nan) if has_end else known.wait
            return _Known(call, state, channel, glance.ran, wait, known.is_rough or has_end)
        wait = describe(call, state, channel, look, turn.clocks) if state in _WAITS else ThreadWait()
        return _Known(call, state, channel, glance.ran, wait)

    @property
    def left_out(self) -> frozenset[int]:
        """Threads that act for operations and other processes only."""
        return frozenset(self._left_out)

    def forget(self) -> None:
        self._known.clear()
        self._left_out.clear()

    @property
    def asks_host(self) -> bool:
        """Whether what one of them waits for may be bytes of the host."""
        return any(is_asked(known.wait.words, known.channel, "") for known in self._known.values())

    @property
    def words(self) -> str:
        """The rarest waits first: pools of threads all wait for the same. Empty where that shows nothing."""
        counts = Counter(known.wait.words for known in self._known.values())
        reported = [words for words in counts if words not in _SAYS_NOTHING and not words.startswith(_SERVES)]
        rarest = sorted(reported, key=lambda words: counts[words])[:_MOST_NAMED]
        return "; ".join(f"{words}, {counts[words]} times" if counts[words] > 1 else words for words in rarest)
