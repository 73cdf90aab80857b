"""States of threads and rows of them, from system calls and counters that are made up."""

import math
import signal
from collections.abc import Collection

import pytest

from holdfast.agent.activity.threads.states import (
    ThreadFact,
    ThreadFacts,
    ThreadTable,
    classify,
    condition_of,
    interrupts,
    is_of_operation,
    is_service,
    joins_thread,
    rows,
)
from holdfast.agent.activity.waits import ThreadWait
from holdfast.agent.probe_file.layout import STACKS_SIGNAL
from holdfast.agent.processes.proc_files import NO_CALL, RUNNING, Call, FdInfo
from holdfast.wire.standing import FROZEN, OpenOperation, ThreadState

GONE, HELD, OUTSIDE, OWN, RUNS, TIMED, UNKNOWN = (
    ThreadState.GONE,
    ThreadState.HELD,
    ThreadState.OUTSIDE,
    ThreadState.OWN,
    ThreadState.RUNS,
    ThreadState.TIMED,
    ThreadState.UNKNOWN,
)
MAIN = 7
LOCK = ThreadWait("a lock")
ENDS = ThreadWait("a lock", 100.0)


def call(name: str, *args: int) -> Call:
    return Call(1, name, (*args, *(0,) * (6 - len(args))))


@pytest.mark.parametrize(
    ("what", "state", "channel", "wait", "means"),
    [
        (call("futex", 64, 0x189), "S", "", LOCK, OWN),
        (call("futex", 64, 0x80), "S", "", LOCK, OWN),
        (call("futex", 64, 0x86), "S", "", LOCK, OWN),  # that inherits priority
        (call("futex", 64, 0x109), "S", "", LOCK, OUTSIDE),  # other processes may wake it
        (call("futex", 64, 0x81), "S", "", LOCK, UNKNOWN),  # which wakes and does not wait
        (call("futex", 64, 0x189, 0, 128), "S", "", ENDS, OWN),  # with its end
        (call("futex", 64, 0x189, 0, 128), "S", "", LOCK, TIMED),  # its end may not be readable
        (call("futex", 64, 0x109, 0, 128), "S", "", ENDS, TIMED),
        (call("futex_wait", 64, 0, 0, 0x82), "S", "", LOCK, OWN),
        (call("futex_wait", 64, 0, 0, 0x02), "S", "", LOCK, OUTSIDE),
        (call("futex_wait", 64, 0, 0, 0x82, 128), "S", "", ENDS, OWN),
        (call("futex_waitv", 64), "S", "", LOCK, UNKNOWN),
        (call("nanosleep"), "S", "", ENDS, OWN),
        (call("clock_nanosleep"), "S", "", LOCK, TIMED),  # its end may not be readable
        (call("poll"), "S", "", ENDS, TIMED),
        (call("poll"), "S", "", LOCK, OUTSIDE),
        (call("epoll_wait"), "S", "", ENDS, TIMED),
        (call("rt_sigtimedwait"), "S", "", LOCK, OUTSIDE),
        *((call(name), "S", "", LOCK, OUTSIDE) for name in ("read", "accept", "wait4", "flock", "ioctl", "pause", "")),
        (NO_CALL, "S", "", LOCK, OUTSIDE),
        (call("futex", 64, 0x189), "D", "", LOCK, OUTSIDE),
        (None, "S", "", LOCK, UNKNOWN),
        (None, "D", "", LOCK, OUTSIDE),
        (None, "", "", LOCK, UNKNOWN),
        (RUNNING, "R", "", LOCK, RUNS),
        (RUNNING, "S", "", LOCK, RUNS),
        (call("futex", 64, 0x189), "R", "", LOCK, RUNS),
        (call("futex", 64, 0x189), "T", "", LOCK, HELD),
        (call("read"), "t", "", LOCK, HELD),
        (call("futex", 64, 0x189), "S", "do_freezer_trap", LOCK, HELD),
        (call("futex", 64, 0x189), "S", "get_signal", ThreadWait(FROZEN), HELD),
        (call("restart_syscall"), "S", "hrtimer_nanosleep", LOCK, TIMED),
        (call("restart_syscall"), "S", "do_poll", LOCK, UNKNOWN),
        (NO_CALL, "Z", "", LOCK, GONE),
    ],
)
def test_what_a_thread_does(what: Call | None, state: str, channel: str, wait: ThreadWait, means: ThreadState) -> None:
    assert classify(what, state, channel, wait) is means


class Memory:
    """A process's memory, of which one word is read."""

    def __init__(self, word: int) -> None:
        self.word = word

    def memory(self, address: int, size: int) -> bytes:
        return self.word.to_bytes(size, "little")

    def link(self, fd: int) -> str:
        return ""

    def info(self, fd: int) -> FdInfo:
        return FdInfo()

    def holders(self, link: str, writes: bool) -> str:
        return ""

    def socket(self, inode: str) -> str:
        return ""

    def name(self, pid: int) -> str:
        return ""


def test_who_waits_for_the_end_of_a_thread_waits_for_its_own_process() -> None:
    joins = call("futex", 64, 0x109, 9)
    assert joins_thread(joins, Memory(9), {7, 9})
    assert classify(joins, "S", "", LOCK, joins=True) is OWN
    assert not joins_thread(joins, Memory(9), {7})  # a thread of another process, or none
    assert not joins_thread(joins, Memory(0), {7, 9})
    assert not joins_thread(call("futex", 64, 0x109, 2), Memory(2), {2, 7})  # the value of a lock
    assert not joins_thread(call("futex", 64, 0x189, 9), Memory(9), {7, 9})
    assert not joins_thread(None, Memory(9), {7, 9})


@pytest.mark.parametrize(
    ("caught", "has_timer", "words"),
    [
        ([], False, ""),
        ([signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGUSR1, signal.SIGSEGV, STACKS_SIGNAL, 32], False, ""),
        ([signal.SIGINT, signal.SIGALRM], False, "which the handler of SIGALRM may end"),
        ([signal.SIGUSR2, signal.SIGPROF], False, "which the handler of SIGPROF may end"),
        ([signal.SIGUSR2], True, "which the handler of SIGUSR2 may end"),
        ([40], False, "which the handler of signal 40 may end"),
        ([signal.SIGINT], True, "which a timer of the process may end"),
    ],
)
def test_what_may_raise_out_of_a_wait(caught: list[int], has_timer: bool, words: str) -> None:
    assert interrupts(sum(1 << (number - 1) for number in caught), has_timer) == words


def test_services_are_known_by_name_and_a_thread_that_runs_callbacks_by_how_it_waits() -> None:
    assert all(is_service(name, True) for name in ("gloo_tcp_loop", "pt_tcpstore_uv", "pt_nccl_watchdg"))
    assert not is_service("gloo_tcp_loop", False)  # of another copy of gloo
    assert is_service("NCCL Progress 0", False)
    assert not any(is_service(name, True) for name in ("pt_gloo_runloop", "python", "pt_autograd_0", "cuda-EvtHandlr"))
    by_gloo, by_python = call("futex", 64, 0x189, 0, 128), call("futex", 64, 0x89, 0, 128)
    assert is_of_operation("pt_gloo_runloop", by_gloo, 1790.0)
    assert not is_of_operation("pt_gloo_runloop", by_gloo, 30.0)
    assert not is_of_operation("pt_gloo_runloop", by_python, 1790.0)
    assert not is_of_operation("pt_gloo_runloop", by_gloo, math.nan)
    assert not is_of_operation("python", by_gloo, 1790.0)


def facts(unseen: int = 0, **states: tuple[ThreadState, float, float]) -> ThreadFacts:
    """By name of a thread, "t8": its state, since when, until when it was seen so."""
    by_tid = {
        int(name[1:]): ThreadFact(state, None, since, at, 120.0 if state is TIMED else math.nan, "waits")
        for name, (state, since, at) in states.items()
    }
    return ThreadFacts(by_tid, unseen)


def busy(*threads: int, kind: str = "all_reduce") -> list[OpenOperation]:
    return [OpenOperation(thread, kind, 0, 0) for thread in threads]


def seen(
    found: ThreadFacts, operations: Collection[OpenOperation] = (), interrupts: str = "", valid_from: float = -math.inf
) -> list[tuple[int, ThreadState, float, int]]:
    made = rows(found, MAIN, 101.0, operations, interrupts, valid_from)
    return [(one.tid, one.state, round(one.seconds, 3), one.count) for one in made]


def test_the_main_thread_those_in_operations_one_that_is_free_and_the_rest() -> None:
    found = facts(
        t7=(OWN, 90.0, 100.0), t8=(OWN, 91.0, 100.0), t9=(TIMED, 90.0, 100.0), t10=(OUTSIDE, 95.0, 100.0),
        t11=(OUTSIDE, 93.0, 100.0), t12=(OWN, 92.0, 100.0), t13=(GONE, 92.0, 100.0), t14=(HELD, 97.0, 100.0),
    )  # fmt: skip
    held = (0, HELD, 3.0, 1)
    assert seen(found) == [(7, OWN, 10.0, 1), (11, OUTSIDE, 7.0, 1), (0, OWN, 8.0, 2), held]
    in_operation = [(7, OWN, 10.0, 1), (9, TIMED, 10.0, 1), (12, OWN, 8.0, 1)]
    assert seen(found, busy(9, 12, 99)) == [*in_operation, (11, OUTSIDE, 7.0, 1), (0, OWN, 9.0, 1), held]
    assert seen(facts(t8=(OWN, 90.0, 100.0))) == []  # without the main one nothing is said
    assert seen(facts(t7=(GONE, 90.0, 100.0))) == [(7, GONE, 10.0, 1)]


def test_a_thread_that_was_not_looked_at_may_be_free() -> None:
    found = facts(3, t7=(OWN, 90.0, 100.0), t8=(OWN, 90.0, 100.0))
    assert seen(found) == [(7, OWN, 10.0, 1), (0, UNKNOWN, 0.0, 3), (0, OWN, 10.0, 1)]


def test_threads_that_are_looked_at_in_turns_count_for_as_long_as_all_were_seen_so_at_once() -> None:
    """One that ran between the looks at two others could have woken either."""
    found = facts(t7=(OWN, 90.0, 100.0), t8=(OWN, 91.0, 95.0), t9=(OWN, 94.0, 98.0))
    assert seen(found)[1:] == [(0, OWN, 1.0, 2)]
    found = facts(t7=(OWN, 96.0, 100.0), t8=(OWN, 91.0, 95.0), t9=(OWN, 94.0, 98.0))  # the main one ran since
    assert seen(found)[1:] == [(0, OWN, 0.0, 2)]


def test_a_disturbance_unmakes_what_was_seen_before_its_end() -> None:
    found = facts(t7=(OWN, 90.0, 100.0), t8=(OWN, 90.0, 100.0), t9=(OUTSIDE, 99.5, 100.0))
    assert [one[2] for one in seen(found, valid_from=99.0)] == [0.0, 0.5, 0.0]


def test_a_handler_frees_the_main_thread_from_a_lock_but_from_no_operation() -> None:
    found = facts(t7=(OWN, 90.0, 100.0))
    assert seen(found, interrupts="which a timer of the process may end") == [(7, TIMED, 10.0, 1)]
    assert seen(found, busy(MAIN), interrupts="which a timer of the process may end") == [(7, OWN, 10.0, 1)]
    [row] = rows(found, MAIN, 101.0, (), "which a timer of the process may end")
    assert (row.words, math.isnan(row.ends_in)) == ("waits, which a timer of the process may end", True)
    [row] = rows(facts(t7=(TIMED, 90.0, 100.0)), MAIN, 101.0)
    assert row.ends_in == pytest.approx(19.0)


def test_a_thread_that_waits_for_peers_counts_unless_all_that_do_so_are_of_known_operations() -> None:
    table = ThreadTable()
    for tid, state in ((MAIN, OWN), (8, TIMED), (9, TIMED), (10, OWN)):
        table.note(tid, (90.0, 90.0), state, "wait", LOCK)
    table.mark_serving(8)
    own = (0, OWN, 0.0, 1)
    table.mark_serving(9)
    for operations in ([], busy(MAIN), busy(MAIN, 0, kind="recv"), busy(MAIN, 0, kind="")):
        assert seen(table.facts(), operations) == [(7, OWN, 0.0, 1), (8, OUTSIDE, 0.0, 1), own]
    assert seen(table.facts(), busy(MAIN, 0)) == [(7, OWN, 0.0, 1), own]


def test_a_thread_has_been_seen_so_since_the_end_of_the_first_look_until_the_begin_of_the_last() -> None:
    table = ThreadTable()

    def note(at: float, key: object = "wait", state: ThreadState = OWN, valid_from: float = -math.inf) -> float:
        table.note(MAIN, (at, at + 0.25), state, key, LOCK, valid_from)
        [(_, _, seconds, _)] = seen(table.facts())
        return seconds

    assert [note(at) for at in (10.0, 11.0, 12.0)] == [0.0, 0.75, 1.75]
    assert note(13.0, key="it has run") == 0.0
    assert note(14.0, key="it has run") == 0.75
    assert note(15.0, key="it has run", state=TIMED) == 0.0
    assert [note(at, "disturbed", valid_from=17.5) for at in (16.0, 17.0, 18.0, 19.0)] == [0.0, 0.0, 0.0, 0.75]


def test_threads_that_end_are_forgotten_and_those_that_come_are_not_yet_seen() -> None:
    table = ThreadTable()
    for tid in (MAIN, 8):
        table.note(tid, (10.0, 10.0), OWN, "wait", LOCK)
    table.keep({MAIN, 9, 10})
    assert seen(table.facts()) == [(7, OWN, 0.0, 1), (0, UNKNOWN, 0.0, 2)]
    table.keep({MAIN}, 5)  # more than are listed
    assert seen(table.facts()) == [(7, OWN, 0.0, 1), (0, UNKNOWN, 0.0, 5)]


def test_who_waits_for_the_interpreters_lock_does_so_while_it_only_looks_at_it() -> None:
    """Every 5 ms: it is seen on a processor now and then. One that has had the lock has run for longer."""
    waits, other = call("futex", 64, 0x189, 0, 128), call("futex", 68, 0x189, 0, 128)
    assert condition_of(waits) == condition_of(other) != condition_of(call("futex", 72, 0x189, 0, 128))
    assert condition_of(call("futex", 64, 0x189)) == condition_of(call("read", 64)) == condition_of(None) == 0
    table = ThreadTable()

    def note(at: float, is_seen: bool, ran_s: float) -> float | None:
        if not table.note_interpreter(MAIN, (at, at), is_seen, (round(ran_s * 1e9), 1)):
            return None
        return seen(table.facts())[0][2]

    assert note(10.0, False, 0.0) is None  # not seen in that wait yet
    assert note(11.0, True, 0.0) == 0.0
    assert note(12.0, False, 0.01) == 1.0
    assert note(13.0, True, 0.02) == 2.0
    assert note(14.0, True, 0.2) == 0.0
    assert note(15.0, False, 0.4) is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1, signal.SIGQUIT])
def test_a_handler_of_the_script_may_end_a_wait(number: int) -> None:
    """A sibling, a child's end or an operator may send it."""
    bit = 1 << (number - 1)
    assert interrupts(bit, False) == ""
    assert interrupts(bit, False, bit) == f"which the handler of {signal.Signals(number).name} may end"
    assert interrupts(0, False, bit) == ""  # the kernel knows of none
    assert interrupts(bit, False, bit, bit) == ""  # the main thread blocks it


def test_a_handler_in_c_may_end_a_wait_of_a_thread_that_blocks_its_signal() -> None:
    """It runs in another thread, and may post a semaphore."""
    bit = 1 << (signal.SIGUSR2 - 1)
    assert interrupts(bit, False, 0, bit) == "which the handler of SIGUSR2 may end"
