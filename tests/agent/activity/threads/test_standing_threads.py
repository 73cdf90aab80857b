"""The agent's report of the threads of real processes that stand still, case by case."""

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.agent.activity.standstill import DISTURBED
from holdfast.wire import types as t
from holdfast.wire.standing import OpenOperation, StallFacts, ThreadState
from tests.agent.support.processes import until
from tests.agent.support.standing import HEARTBEAT_INTERVAL, READY
from tests.agent.support.standing_workers import (
    LOCKED,
    NEW,
    OUTSIDE,
    OWN,
    RUNS,
    STUCK,
    TAKEN,
    TIMED,
    WINDOW,
    holder_of,
    is_known,
    main_of,
    often,
    threads_of,
    working,
)

__all__ = ["often"]

POOL = "threading.Thread(target=lambda: [time.sleep(0.01) for _ in range(10**9)], daemon=True).start()\n"
HOLDS_LOCK = f"{NEW}{TAKEN}{POOL}library = ctypes.PyDLL(None); place = ctypes.create_string_buffer(64)\n"


@dataclass(frozen=True)
class Case:
    code: str
    main: ThreadState
    others: dict[ThreadState, int]
    """Rows besides the main thread's, by state, and how many threads each stands for."""
    words: str = ""
    ends_in: float = 0.0
    """At most; 0: no end is known."""


CASES = {
    "a lock taken twice": Case(f"{LOCKED}{READY}lock.acquire()", OWN, {OWN: 3}, "a lock"),
    "and a thread that reads a socket": Case(
        f"{LOCKED}threading.Thread(target=a.recv, args=(1,), daemon=True).start()\n{READY}lock.acquire()",
        OWN, {OUTSIDE: 1, OWN: 3}, "a lock",
    ),
    "a sleep": Case(f"{LOCKED}{READY}time.sleep(90)", OWN, {OWN: 3}, "a timer", 90.0),
    "a lock with a deadline": Case(f"{LOCKED}{READY}lock.acquire(timeout=90)", OWN, {OWN: 3}, "a lock", 90.0),
    "an epoll with a deadline": Case(
        f"{LOCKED}poll = select.epoll(); poll.register(a, 1)\n{READY}poll.poll(90)", TIMED, {OWN: 3}, "a read", 90.0
    ),
    "an epoll without one": Case(
        f"{LOCKED}poll = select.epoll(); poll.register(a, 1)\n{READY}poll.poll()", OUTSIDE, {OWN: 3}, "a read"
    ),
    "a C call with the interpreter's lock that waits for a lock": Case(
        f"{HOLDS_LOCK}library.sem_init(place, 0, 0)\n{READY}library.sem_wait(place)", OWN, {OWN: 1}, "a lock"
    ),
    "one that reads a socket": Case(
        f"{HOLDS_LOCK}{READY}library.read(a.fileno(), place, 1)", OUTSIDE, {OWN: 1}, "a read from a unix socket"
    ),
    "a lock that other processes share": Case(
        f"import multiprocessing\n{LOCKED}shared = multiprocessing.Lock(); shared.acquire()\n{READY}shared.acquire()",
        OUTSIDE, {OWN: 3}, "a lock",
    ),
    "the end of a thread, in C": Case(
        f"{HOLDS_LOCK.replace('PyDLL', 'CDLL')}pause = ctypes.CFUNCTYPE(None)(lock.acquire)\n"
        f"library.pthread_create(place, None, pause, None)\n"
        f"{READY}library.pthread_join(ctypes.c_ulong.from_buffer(place), None)",
        OWN, {TIMED: 1, OWN: 1}, "a lock",
    ),
    "a lock, and a handler of SIGALRM": Case(
        f"{LOCKED}signal.signal(signal.SIGALRM, lambda *_: 0)\n{READY}lock.acquire()",
        TIMED, {OWN: 3}, "a lock, which the handler of SIGALRM may end",
    ),
    "a signal": Case(f"{LOCKED}{READY}signal.pause()", OUTSIDE, {OWN: 3}, "a signal"),
    "computes": Case(f"{LOCKED}{READY}while True: pass", RUNS, {}, ""),
}  # fmt: skip


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, t.WorkerSample]]:
    with working(tmp_path_factory.mktemp("probes")) as workers:
        for name, case in CASES.items():
            workers.start(name, case.code)

        def as_said(name: str, sample: t.WorkerSample) -> bool:
            rows = threads_of(sample)[1:]
            others = {one.state: one.count for one in rows if one.state is not ThreadState.UNKNOWN}
            return is_known(sample) and main_of(sample).state is CASES[name].main and others == CASES[name].others

        end, found = time.monotonic() + 60, {}
        while time.monotonic() < end:
            found = workers.frame()
            if all(as_said(name, one) for name, one in found.items()):
                break
            time.sleep(HEARTBEAT_INTERVAL)
        yield found


@pytest.mark.parametrize("name", CASES)
def test_threads_of_a_worker_that_stands(name: str, seen: dict[str, t.WorkerSample]) -> None:
    case, rows = CASES[name], threads_of(seen[name])
    assert (rows[0].tid, rows[0].state) == (seen[name].pid, case.main)
    assert {one.state: one.count for one in rows[1:] if one.state is not ThreadState.UNKNOWN} == case.others
    assert rows[0].words.startswith(case.words)
    assert rows[0].ends_in <= case.ends_in if case.ends_in else rows[0].ends_in != rows[0].ends_in
    if case.main is not RUNS:
        assert all(one.seconds >= WINDOW for one in rows if one.state in (OWN, OUTSIDE))
    assert not seen[name].left
    assert holder_of(seen[name]) == ""


def test_more_threads_than_one_look_takes_count_once_all_were_seen_twice(tmp_path: Path) -> None:
    with working(tmp_path) as workers:
        workers.start("many", f"{LOCKED.replace('range(3)', 'range(100)')}{READY}lock.acquire()")
        seen = workers.one(lambda sample: len(threads_of(sample)) == 2 and threads_of(sample)[1].seconds >= WINDOW)
        assert [(one.state, one.count) for one in threads_of(seen)] == [(OWN, 1), (OWN, 100)]


def test_operations_are_kept_and_their_threads_have_rows_of_their_own(tmp_path: Path) -> None:
    code = CASES["a lock, and a handler of SIGALRM"].code
    with working(tmp_path) as workers:
        pid = workers.start("stuck", code).pid
        other = max(int(name) for name in os.listdir(f"/proc/{pid}/task"))
        operations = tuple(OpenOperation(thread, "all_reduce", 0, 3) for thread in (pid, other))
        workers.known["stuck"] = StallFacts((), operations, is_complete=True)
        seen = workers.one(lambda sample: is_known(sample) and len(threads_of(sample)) == 3)
        assert seen.standing is not None
        assert (seen.standing.operations, seen.standing.is_complete) == (operations, True)
        # No handler runs while an operation lasts.
        assert [(one.tid, one.state) for one in threads_of(seen)] == [(pid, OWN), (other, OWN), (0, OWN)]


GLOO = f"""{NEW}
import torch.distributed as dist
from holdfast.agent.hooks import torch_hooks
torch_hooks.install()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
names = set()
while not {{"gloo_tcp_loop", "pt_gloo_runloop"}} <= names:  # threads name themselves, once they run
    names = {{open(f"/proc/self/task/{{tid}}/comm").read().strip() for tid in os.listdir("/proc/self/task")}}
lock = threading.Lock(); lock.acquire()
{READY}lock.acquire()
"""


OTHER_GLOO = f"""{LOCKED}
def loop():
    ctypes.CDLL(None).prctl(15, b"gloo_tcp_loop", 0, 0, 0)
    select.epoll().poll()
threading.Thread(target=loop, daemon=True).start()
while not any("gloo" in open(f"/proc/self/task/{{tid}}/comm").read() for tid in os.listdir("/proc/self/task")): pass
{READY}lock.acquire()
"""
BLOCKED = f"""{LOCKED}
signal.signal(signal.SIGUSR2, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGUSR2}})
"""
RING = """
ring = ctypes.CDLL(None).syscall(425, 8, ctypes.create_string_buffer(120))
"""


SAME_MEMORY = """
libc = ctypes.CDLL(None); stack = ctypes.create_string_buffer(1 << 16)
top = ctypes.c_void_p((ctypes.addressof(stack) + (1 << 16)) & ~63)
assert libc.clone(ctypes.cast(libc.sleep, ctypes.c_void_p), top, 0x100 | signal.SIGCHLD, 60) > 0  # CLONE_VM
"""


def test_a_process_with_the_same_memory_may_let_a_worker_go_on(tmp_path: Path) -> None:
    with working(tmp_path) as workers:
        workers.start("alone", STUCK)
        workers.start("shares", f"{LOCKED}{SAME_MEMORY}{READY}lock.acquire()")
        seen = workers.when(is_known)
    words = {name: [one.words for one in threads_of(one) if "memory" in one.words] for name, one in seen.items()}
    assert (words["alone"], len(words["shares"])) == ([], 1)
    assert words["shares"][0].endswith(", which shares its memory")


def test_gloos_threads_do_not_free_a_worker_from_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with working(tmp_path) as workers:
        workers.start("stuck", GLOO)
        seen = workers.one(is_known)
        assert {one.state for one in threads_of(seen)} == {OWN}


def test_a_thread_that_only_has_the_name_of_gloos_may_let_the_others_go_on(tmp_path: Path) -> None:
    with working(tmp_path) as workers:
        workers.start("stuck", OTHER_GLOO)
        seen = workers.one(is_known)
        assert {one.state for one in threads_of(seen)} == {OWN, OUTSIDE}


def test_a_signal_that_the_main_thread_alone_blocks_may_end_what_another_waits_for(tmp_path: Path) -> None:
    """Threads that were started before do not block it."""
    with working(tmp_path) as workers:
        workers.start("one", f"{BLOCKED}{READY}lock.acquire()")
        workers.start("all", f"{NEW}{BLOCKED.replace(LOCKED, TAKEN)}{READY}lock.acquire()")
        seen = workers.when(lambda sample: is_known(sample) and sample.standing is not None)
    words = {name: [one.words for one in threads_of(one) if one.state is OUTSIDE] for name, one in seen.items()}
    assert words["all"] == []
    (said,) = words["one"]
    assert said.startswith("a signal that the script handles, which thread ")


def test_an_io_uring_may_wake_a_thread(tmp_path: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    ring = libc.syscall(425, 8, ctypes.create_string_buffer(120))
    if ring < 0:
        pytest.skip(f"no io_uring here: {os.strerror(ctypes.get_errno())}")
    os.close(ring)
    with working(tmp_path) as workers:
        workers.start("ring", f"{LOCKED}{RING}{READY}lock.acquire()")
        seen = workers.one(is_known)
    assert [one.words for one in threads_of(seen) if one.state is OUTSIDE] == [
        "an io_uring of the process, which may wake its threads"
    ]


def test_a_disturbance_starts_all_windows_again_and_no_time_of_it_counts_as_quiet(tmp_path: Path) -> None:
    with working(tmp_path) as workers:
        workers.start("stuck", STUCK)
        workers.start("computes", f"{NEW}{READY}while True: pass")
        workers.when(is_known)
        began = time.monotonic()
        before = {name: _activity(sample) for name, sample in workers.frame().items()}
        disturbed = time.monotonic()
        workers.activities.disturb()
        seen = workers.frame()
        while any(one.seconds < WINDOW for one in threads_of(seen["stuck"])):
            time.sleep(HEARTBEAT_INTERVAL)
            seen, now = workers.frame(), time.monotonic()
            undisturbed = max(now - disturbed - DISTURBED, 0.0)
            assert all(one.seconds <= undisturbed for sample in seen.values() for one in threads_of(sample))
            most = before["computes"].quiet + disturbed - began + undisturbed
            assert _activity(seen["computes"]).quiet <= most
        stuck, was = _activity(seen["stuck"]), before["stuck"]
        assert stuck.quiet == pytest.approx(was.quiet + stuck.watched - was.watched - DISTURBED)


def _activity(sample: t.WorkerSample) -> t.Activity:
    assert sample.activity is not None
    return sample.activity


BECOMES = f"{NEW}{READY}os.execv(sys.executable, [sys.executable, '-c', 'import time; time.sleep(90)'])"
ENDS = f"{NEW}library = ctypes.CDLL(None)\n{READY}library.on_exit(ctypes.cast(library.pause, ctypes.c_void_p), None)"


def test_who_has_become_another_program_has_left(tmp_path: Path) -> None:
    with working(tmp_path) as workers:
        workers.start("becomes", BECOMES)
        seen = workers.one(lambda sample: sample.left)
        assert seen.tick_age != seen.tick_age
        assert not seen.stopped
        seen = workers.one(lambda sample: main_of(sample).state is OWN and sample.left)
        os.kill(seen.pid, signal.SIGSTOP)
        assert workers.one(lambda sample: sample.stopped).left
        os.kill(seen.pid, signal.SIGKILL)
        until(lambda: Path(f"/proc/{seen.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
        assert not workers.frame()["becomes"].left


def test_who_ends_without_the_thread_that_ticks_has_not_left(tmp_path: Path) -> None:
    """The interpreter has ended and the process has not: the C library waits in a handler of its end."""
    with working(tmp_path) as workers:
        workers.start("ends", ENDS)
        seen = workers.one(lambda sample: sample.tick_age != sample.tick_age and main_of(sample).state is OUTSIDE)
        assert not seen.left
