"""A worker that tries again, itself or by a child, goes on; and a wait that ends by itself says when."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.activity.threads.attempts import Attempts
from holdfast.agent.activity.threads.child_waits import awaited
from tests.agent.support.standing import READY, standing

MS, US = 1_000_000, 1_000


def story(*looks: tuple[float, bool, int, int]) -> list[bool]:
    attempts = Attempts()
    return [attempts.look(*look) for look in looks]


def test_one_long_wait_and_a_connection_after_it_are_an_attempt() -> None:
    """A connection takes several turns on a processor: their average pause is short."""
    assert story((0.0, True, 0, 1), (1.0, True, 0, 1), (2.0, True, 0, 1), (2.5, True, 900 * US, 10)) == [
        False, False, False, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("last", "why"),
    [
        ((2.5, False, 900 * US, 10), "it waits for something else"),
        ((2.5, True, 60 * US, 2), "it looked for a file"),
        ((2.5, True, 0, 1), "it has not run"),
    ],
)
def test_what_is_none(last: tuple[float, bool, int, int], why: str) -> None:
    assert not story((0.0, True, 0, 1), (1.0, True, 0, 1), (2.0, True, 0, 1), last)[-1], why


def test_a_loop_that_polls_is_none_however_much_it_runs() -> None:
    looks = [(turn * 0.1, True, turn * 5 * MS, turn * 10) for turn in range(20)]
    assert not any(story(*looks))


def backoff(*waits: float) -> list[bool]:
    """One look in the middle of each wait, in between nothing is done."""
    begins = [sum(waits[:turn]) for turn in range(len(waits))]
    attempts = Attempts()
    return [
        attempts.look(at + 0.5 * long, True, turn * 10 * US, turn, at + long)
        for turn, (at, long) in enumerate(zip(begins, waits, strict=True))
    ]


def test_waits_that_grow_are_a_backoff_whatever_lies_between_them() -> None:
    assert backoff(2.0, 4.0, 8.0, 16.0, 32.0) == [False, False, False, True, True]
    assert not any(backoff(8.0, 8.0, 8.0))
    assert not any(backoff(0.5, 1.0, 2.0, 4.0, 5.0))


@given(st.floats(0.5, 60.0), st.lists(st.floats(0.0, 0.99), min_size=2, max_size=8))
def test_waits_of_one_length_are_none_however_late_each_is_seen(long: float, late: list[float]) -> None:
    attempts = Attempts()
    for turn, seen in enumerate(late):
        at = turn * long
        assert not attempts.look(at + min(seen, 0.9 * long), True, turn * 10 * US, turn, at + long)


def test_which_children_are_waited_for() -> None:
    assert awaited("its child tar (pid 123)") == [123]
    assert awaited("any of its children") == []
    assert awaited("a read from a pipe that pid 7 (tar) holds and pid 8 (gzip) holds") == [7, 8]
    assert awaited("a lock") is None
    assert awaited("a read from a pipe") is None
    assert awaited("a read from a unix socket (other end: db, pid 7)") is None


RETRY = "import os, select, socket, time\n{}\n" + f"{READY}while True:\n" + "    {}\n    {}\n"
CONNECT = "for _ in range(3): socket.socket().connect_ex(('127.0.0.1', 1))"
WAITS = {
    "epoll": ("e = select.epoll(); e.register(os.pipe()[0])", "e.poll(0.8)"),
    "poll": ("p = select.poll(); p.register(os.pipe()[0])", "p.poll(800)"),
    "select": ("r = os.pipe()[0]", "select.select([r], [], [], 0.8)"),
    "event": ("import threading; e = threading.Event()", "e.wait(0.8)"),
}


@pytest.mark.parametrize("wait", WAITS)
def test_attempts_between_waits_with_a_deadline_are_movement(wait: str) -> None:
    begin, waits = WAITS[wait]
    with standing(RETRY.format(begin, CONNECT, waits)) as (eye, _):
        eye.when(lambda a: a.watched > 2.0 and a.quiet < 0.4)


@pytest.mark.parametrize("wait", WAITS)
def test_waiting_again_without_an_attempt_is_none(wait: str) -> None:
    begin, waits = WAITS[wait]
    with standing(RETRY.format(begin, "pass", waits)) as (eye, _):
        eye.after(2.5)


CHILD = f"import subprocess, sys\n{{}}\n{READY}{{}}"
RUN = "child = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE)"
SLEEPS = "code = 'import time; time.sleep(50)'"
TRIES = f"code = {RETRY.format('', CONNECT, 'time.sleep(0.8)')!r}"


@pytest.mark.parametrize("waits", ["child.wait()", "child.stdout.read()"])
def test_the_end_of_a_childs_own_sleep_is_known(waits: str) -> None:
    with standing(CHILD.format(f"{SLEEPS}\n{RUN}", waits)) as (eye, _):
        seen = eye.when(lambda a: 40.0 < a.ends_in < 51.0)
        assert "(pid " in seen.waits_for or "that pid " in seen.waits_for


def test_of_a_shell_that_waits_for_its_own_child_too() -> None:
    code = "child = subprocess.Popen(['sh', '-c', 'sleep 50; true'])"
    with standing(CHILD.format(code, "child.wait()")) as (eye, _):
        eye.when(lambda a: 40.0 < a.ends_in < 51.0)


JOINS = "import threading, time; one = threading.Thread(target=time.sleep, args=(50,)); one.start(); one.join()"
POOL = "import time\nfrom concurrent.futures import {0}\npool = {0}(1); one = pool.submit(time.sleep, 50)"


@pytest.mark.parametrize(
    ("begin", "waits"),
    [(f"code = {JOINS!r}\n{RUN}", "child.wait()"), (POOL.format("ProcessPoolExecutor"), "one.result()"),
     (POOL.format("ThreadPoolExecutor"), "one.result()")],
    ids=["a child that joins its thread", "a pool of processes", "a pool of threads"],
)  # fmt: skip
def test_the_end_of_a_sleep_is_known_where_a_lock_lies_in_between(begin: str, waits: str) -> None:
    with standing(CHILD.format(begin, waits)) as (eye, _):
        eye.when(lambda a: 40.0 < a.ends_in < 51.0)


def test_a_child_that_polls_is_no_movement_of_one_that_waits_for_a_lock() -> None:
    """As the workers of a loader, for as long as their rank waits for its peers."""
    poll = "import select, os\nend = os.pipe()[0]\nwhile True: select.select([end], [], [], 0.8); sum(range(5_000))"
    begin = f"import threading\ncode = {poll!r}\n{RUN}\nlock = threading.Lock(); lock.acquire()"
    with standing(CHILD.format(begin, "lock.acquire()")) as (eye, _):
        eye.after(2.5)


def test_a_child_that_waits_without_a_deadline_has_none() -> None:
    code = "code = 'import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()'"
    with standing(CHILD.format(f"{code}\n{RUN}", "child.wait()")) as (eye, _):
        assert math.isnan(eye.after(2.0).ends_in)


def test_a_child_that_tries_again_is_movement() -> None:
    begin = f"{TRIES}\n{RUN}\nchild.stdout.readline()"
    with standing(CHILD.format(begin, "child.wait()")) as (eye, _):
        eye.when(lambda a: a.watched > 2.0 and a.quiet < 0.4)
