"""States of a standing worker's threads, as the kernel shows them: the facts of a proof that nothing can move.

Pure: states, system calls and counters go in, rows of `wire.standing` come out. A thread is taken for one that cannot
move by itself only where the kernel says so; whatever is not understood may do anything.
"""

import math
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from holdfast.agent.activity.waits import FREEZER_CHANNELS, TIMER, Look, ThreadWait
from holdfast.agent.probe_file.layout import STACKS_SIGNAL
from holdfast.agent.processes.proc_files import RUNNING, Call
from holdfast.base import bounds
from holdfast.wire.standing import FROZEN, NAN, OpenOperation, ThreadSight, ThreadState

SERVICES = {
    "gloo_tcp_loop": "moves the bytes of operations, or passes them to a thread that waits for them; wakes every 10 ms",
    "pt_tcpstore": "serves the rendezvous store to all ranks: a thread that waits for an answer waits in a socket",
    "pt_nccl_watchdg": "looks at operations of NCCL, aborts them after torch's timeout",
    "pt_nccl_heartbt": "looks at the watchdog",
    "NCCL ": "all of NCCL's own: move the bytes of operations, make their connections, answer who asks for their state",
}
"""Threads that act for operations or for other processes, by how the kernel's name of them begins, and what they do.
None of them runs code of the script or wakes a thread that waits for anything but an operation. Names as torch 2.13
sets them, and NCCL with NCCL_SET_THREAD_NAME=1, which workers are started with. A name alone proves nothing: another
copy of gloo has it, too. But for NCCL's, such a thread counts only if torch started it, as it made a process group.

Not among them: `pt_gloo_runloop`, which also runs callbacks of futures, `pt_autograd_N`, which runs hooks, threads of
tensorpipe and `pt_dist_engine`, which run functions of peers, CUDA's own (`cuda-EvtHandlr`), which run host functions
of streams, and pools of OpenMP, which sleep in private futexes as any lock."""
RUNS_OPERATIONS = "pt_gloo_runloop"
"""It waits for peers with the timeout of the operation (torch's default: 1800 s), else for its queue without one."""
LONG_S = 600.0
"""A wait of such a thread that ends later than in so many seconds is an operation's with that timeout."""

WORDS = 240
"""Characters of a text that goes over the wire."""
_MOST_BUSY = bounds.MAX_THREADS - 4
"""Threads in operations that have a row of their own: besides the main one, one that is free, and two for the rest."""
_PRIVATE = 0x80
_FUTEX_COMMAND, _FUTEX_REALTIME = 0x7F, 0x100
_FUTEX_WAITS = frozenset({0, 6, 9, 11, 13})  # WAIT, LOCK_PI, WAIT_BITSET, WAIT_REQUEUE_PI, LOCK_PI2
_ALARMS = frozenset({signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF})
_USUAL = frozenset(
    {
        *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),  # they end a worker
        *(signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS),
        *(signal.SIGCHLD, signal.SIGPIPE, signal.SIGCONT, signal.SIGWINCH, signal.SIGTSTP, signal.SIGTTIN),
        *(signal.SIGTTOU, signal.SIGUSR1, STACKS_SIGNAL, 32, 33),  # stacks on request; glibc's own two
    }
)
"""Signals whose handler says nothing about a wait: what ends a worker, faults, a child's end as torch's loader catches
it, and those for which Holdfast itself installs a handler. A handler for any other is there because it may come."""
_LOCK_VALUES = 2
"""The highest value of a lock's word that others share while a thread waits for it."""
TIMERS = ("nanosleep", "clock_nanosleep")
_POLLS = ("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2", "rt_sigtimedwait")
_FREE = (ThreadState.RUNS, ThreadState.OUTSIDE, ThreadState.TIMED, ThreadState.UNKNOWN)
"""In the order in which one of them stands for all."""


def is_service(name: str, is_of_torch: bool) -> bool:
    """`is_of_torch`: torch started it, as it made a process group. NCCL starts its own with its first operations."""
    return name.startswith(tuple(SERVICES)) and (is_of_torch or name.startswith("NCCL "))


def is_of_operation(name: str, call: Call | None, ends_in: float) -> bool:
    """Whether a thread that runs operations waits for peers. A callback in Python that waits in the same thread does so
    by the monotonic clock."""
    return name.startswith(RUNS_OPERATIONS) and waits_for_peers(call, ends_in)


def waits_for_peers(call: Call | None, ends_in: float) -> bool:
    """Whether a wait with a deadline has torch's default timeout or a longer one: gloo waits by the wall clock, Python
    by the monotonic one, and between processes at words that are not private."""
    if call is None or call.name != "futex" or not call.args[1] & _PRIVATE:
        return False
    return bool(call.args[1] & _FUTEX_REALTIME) and ends_in > LONG_S


def lock_address(call: Call | None) -> int:
    """The address of the futex that a thread waits for with a deadline; 0: it waits for none."""
    if call is None or call.name != "futex" or not call.args[3] or call.args[1] & _FUTEX_COMMAND not in _FUTEX_WAITS:
        return 0
    return call.args[0]


def condition_of(call: Call | None) -> int:
    """A number that is the same for all who wait for one condition with a deadline: they are in one of two words beside
    each other. 0: it waits for none."""
    address = lock_address(call)
    return address | 4 if address else 0


def joins_thread(call: Call | None, look: Look, present: Collection[int]) -> bool:
    """Whether it waits for the end of a thread of its process: the C library does so without the private flag, at a
    word that holds the thread's id until the kernel clears it."""
    if call is None or call.name != "futex" or call.args[1] & _PRIVATE or call.args[3]:
        return False
    tid = int.from_bytes(look.memory(call.args[0], 4), "little")
    return tid > _LOCK_VALUES and tid == call.args[2] & 0xFFFFFFFF and tid in present


def interrupts(caught: int, has_timer: bool, handlers: int = 0, blocked: int = 0) -> str:
    """The handler or timer that may raise out of a wait of the main thread, in words; empty: none.

    `caught`, `blocked`: SigCgt and SigBlk of its status. `has_timer`: it has a POSIX timer. `handlers`: signals that
    the script handles in Python, which the main thread alone does: one that it blocks ends no wait of it. A handler in
    C may wake it from another thread. Python by itself, torch and gloo catch SIGINT only.
    """
    caught &= ~(blocked & handlers)
    unusual = [number for number in range(1, 65) if caught >> (number - 1) & 1 and number not in _USUAL]
    numbers = [*unusual, *(number for number in range(1, 64) if caught & handlers & 1 << (number - 1))]
    if numbers:
        return f"which the handler of {_signal_name(min(numbers, key=lambda n: (n not in _ALARMS, n)))} may end"
    return "which a timer of the process may end" if has_timer else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def classify(call: Call | None, state: str, channel: str, wait: ThreadWait, joins: bool = False) -> ThreadState:
    """`wait`: what `waits.describe` says of the call. `joins`: its futex is the end of a thread of its process."""
    if state in ("T", "t") or channel in FREEZER_CHANNELS or wait.words == FROZEN:  # which is never one's own doing
        return ThreadState.HELD
    if state in ("Z", "X"):
        return ThreadState.GONE
    if state == "R" or (call == RUNNING and state == "S"):
        return ThreadState.RUNS
    if state == "D":
        return ThreadState.OUTSIDE
    if state != "S" or call is None:
        return ThreadState.UNKNOWN
    if call.name == "restart_syscall":
        return ThreadState.TIMED if "nanosleep" in channel or "futex" in channel else ThreadState.UNKNOWN
    if call.name == "futex":
        return _futex(call.args[1] & _FUTEX_COMMAND, bool(call.args[1] & _PRIVATE) or joins, bool(call.args[3]), wait)
    if call.name == "futex_wait":
        return _futex(0, bool(call.args[3] & _PRIVATE) or joins, bool(call.args[4]), wait)
    if call.name == "futex_waitv":
        return ThreadState.TIMED if call.args[3] else ThreadState.UNKNOWN
    if call.name in TIMERS:
        return ThreadState.TIMED if math.isnan(wait.until) else ThreadState.OWN
    if call.name in _POLLS and not math.isnan(wait.until):
        return ThreadState.TIMED
    return ThreadState.OUTSIDE


def _futex(command: int, is_own: bool, has_deadline: bool, wait: ThreadWait) -> ThreadState:
    """A deadline of a wait for its own process goes with the state: nobody outside can end the wait sooner."""
    if command not in _FUTEX_WAITS:
        return ThreadState.UNKNOWN
    if has_deadline:
        return ThreadState.OWN if is_own and not math.isnan(wait.until) else ThreadState.TIMED
    return ThreadState.OWN if is_own else ThreadState.OUTSIDE


SPENT, SPENT_S = 0.02, 0.001
"""Share of a core, and seconds, up to which a thread may have run that has waited for the interpreter's lock all the
time: it takes 0.004 of a core. One that gets the lock keeps it for 5 ms while others wait for it."""
_INTERPRETER = "interpreter"


@dataclass(frozen=True, slots=True)
class ThreadFact:
    """One thread, as of the last look at it. Instants in monotonic seconds."""

    state: ThreadState
    key: object
    """It stays the same as long as the thread neither runs nor waits for anything else."""
    since: float
    """The end of the first look at it in this state."""
    at: float
    """The beginning of the last one."""
    until: float = NAN
    words: str = ""
    ran: object = None
    """It changes when the thread runs; nanoseconds first."""
    serves: bool = False
    """It waits for peers in an operation, for whoever waits for the operation."""


class ThreadTable:
    """For how long each thread of one worker has been seen in the same state."""

    def __init__(self) -> None:
        self._facts: dict[int, ThreadFact] = {}
        self._missing = 0

    def note(
        self,
        tid: int,
        seen: tuple[float, float],
        state: ThreadState,
        key: object,
        wait: ThreadWait,
        valid_from: float = -math.inf,
    ) -> None:
        """`seen`: the instants before and after it was looked at. `valid_from`: what was seen before counts no more,
        since the worker was disturbed or the agent away."""
        before = self._facts.get(tid)
        is_same = before is not None and before.state is state and before.key == key and before.since >= valid_from
        since = before.since if before is not None and is_same else seen[1]
        self._facts[tid] = ThreadFact(state, key, since, seen[0], wait.until, wait.words)

    def note_interpreter(
        self, tid: int, seen: tuple[float, float], is_seen: bool, ran: object, valid_from: float = -math.inf
    ) -> bool:
        """Note that it waits for the interpreter's lock, unless it may have had it meanwhile. `is_seen`: it was seen in
        that wait; else it was seen on a processor, as it is every 5 ms to look at the lock. Whether that was noted."""
        before = self._facts.get(tid)
        is_known = before is not None and before.key == _INTERPRETER
        if before is not None and is_known and isinstance(ran, tuple) and isinstance(before.ran, tuple):
            is_known = ran[0] - before.ran[0] <= 1e9 * (SPENT_S + SPENT * (seen[1] - before.at))
        else:
            is_known = False
        if not is_seen and not is_known:
            return False
        since = before.since if before is not None and is_known and before.since >= valid_from else seen[1]
        words = "the interpreter's lock"
        self._facts[tid] = ThreadFact(ThreadState.OWN, _INTERPRETER, since, seen[0], NAN, words, ran)
        return True

    def mark_serving(self, tid: int) -> None:
        """It waits for peers in an operation of a process group."""
        self._facts[tid] = replace(self._facts[tid], serves=True)

    def keep(self, present: Collection[int], missing: int = 0) -> None:
        """`present`: all threads that count; `missing`: how many there are of which not even the id was read."""
        self._facts = {tid: fact for tid, fact in self._facts.items() if tid in present}
        self._missing = missing + len(present) - len(self._facts)

    def sleeps_until(self, main: int) -> float:
        """When the last sleep of a thread besides the main one ends; NaN: none sleeps."""
        ends = [one.until for tid, one in self._facts.items() if tid != main and one.words == TIMER]
        return max((end for end in ends if end == end), default=NAN)

    def state(self, tid: int) -> ThreadState:
        return fact.state if (fact := self._facts.get(tid)) is not None else ThreadState.UNKNOWN

    def facts(self) -> "ThreadFacts":
        return ThreadFacts(dict(self._facts), self._missing)


@dataclass(frozen=True, slots=True)
class ThreadFacts:
    """All threads of a worker after one look, but for services."""

    by_tid: Mapping[int, ThreadFact]
    unseen: int = 0
    """Threads that were not looked at: each may be free."""
    outsider: str = ""
    """A process that may wake its threads as they wake each other, in words; empty: none."""


def rows(
    facts: ThreadFacts,
    main: int,
    now: float,
    operations: Collection[OpenOperation] = (),
    interrupts: str = "",
    valid_from: float = -math.inf,
) -> tuple[ThreadSight, ...]:
    """`operations`: those that are known to be open. `interrupts`: what may raise out of a wait of the main thread, in
    words; empty: nothing. Operations wait below the interpreter: no handler runs before their end."""
    if main not in facts.by_tid:
        return ()
    busy = {one.thread for one in operations}
    first = _sight(main, facts.by_tid[main], now, valid_from)
    if first.state is ThreadState.OWN and interrupts and main not in busy:
        first = replace(first, state=ThreadState.TIMED, words=f"{first.words[: WORDS // 2]}, {interrupts}")
    found = [first]
    others = _without_servants(facts, main, operations)
    found += [_sight(tid, others.pop(tid), now, valid_from) for tid in sorted(busy & others.keys())[:_MOST_BUSY]]
    if facts.outsider:
        found.append(ThreadSight(0, ThreadState.OUTSIDE, first.seconds, words=facts.outsider[:WORDS]))
    free = [(tid, fact) for tid, fact in others.items() if fact.state in _FREE]
    if free:
        tid, fact = min(free, key=lambda one: (_FREE.index(one[1].state), one[1].since, one[0]))
        found.append(_sight(tid, fact, now, valid_from))
    elif facts.unseen:
        found.append(ThreadSight(0, words="threads that were not looked at", count=facts.unseen))
    for state in (ThreadState.OWN, ThreadState.HELD):
        alike = [fact for fact in others.values() if fact.state is state]
        if alike:
            found.append(_together(state, alike, facts.by_tid[main], now, valid_from))
    return tuple(found)


def _without_servants(facts: ThreadFacts, main: int, operations: Collection[OpenOperation]) -> dict[int, ThreadFact]:
    """Threads besides the main one. Those that wait for peers in an operation are not among them where all of these
    operations are known. Else one of them is of an operation that no hook has seen: its peers may come."""
    others = {tid: fact for tid, fact in facts.by_tid.items() if tid != main and fact.state is not ThreadState.GONE}
    serving = [tid for tid, fact in others.items() if fact.serves]
    known = sum(one.kind not in ("", "send", "recv") for one in operations)  # two kinds for which no thread is needed
    for tid in serving:
        if len(serving) <= known:
            del others[tid]
        else:
            others[tid] = replace(others[tid], state=ThreadState.OUTSIDE, words="its peers, in an operation")
    return others


def _sight(tid: int, fact: ThreadFact, now: float, valid_from: float) -> ThreadSight:
    seconds = max(fact.at - fact.since, 0.0) if fact.since >= valid_from else 0.0
    ends_in = max(fact.until - now, 0.0) if fact.until == fact.until else NAN
    return ThreadSight(tid, fact.state, seconds, ends_in, fact.words[:WORDS])


def _together(
    state: ThreadState, alike: list[ThreadFact], main: ThreadFact, now: float, valid_from: float
) -> ThreadSight:
    """Many threads are looked at in turns: what counts is for how long all of them, and the main one, were seen so at
    once. Else one could have woken the other between the looks at both."""
    since = max(main.since, *(fact.since for fact in alike))
    seconds = max(min(fact.at for fact in alike) - since, 0.0) if since >= valid_from else 0.0
    words = {fact.words for fact in alike}
    ends_in = min((max(fact.until - now, 0.0) for fact in alike if fact.until == fact.until), default=NAN)
    return ThreadSight(0, state, seconds, ends_in, words.pop()[:WORDS] if len(words) == 1 else "", len(alike))
