"""Workers that take turns through a real agent's socket: one at a time, and never dependent on it."""

import asyncio
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch

from holdfast.agent.workers.turn_server import NAME, TurnServer
from holdfast.planner.sharing import turns as rules
from holdfast.trainer.run.turns import TurnTaker, open_turns
from holdfast.wire import messages as msg
from holdfast.wire import turns as wire

LIMIT_S = 60.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a turn of these tests may last longer than the limit, and would be taken back."""
    monkeypatch.setattr(rules, "LEAST_LIMIT_S", 10 * LIMIT_S)
    monkeypatch.setattr(rules, "FIRST_LIMIT_S", 10 * LIMIT_S)


@contextmanager
def served(folder: Path) -> Iterator[TurnServer]:
    """An agent's server, in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = TurnServer(folder)
    asyncio.run_coroutine_threadsafe(server.open(), loop).result(LIMIT_S)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(LIMIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(LIMIT_S)
        loop.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="hf-turns-"))
    path.chmod(0o700)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def server(folder: Path) -> Iterator[TurnServer]:
    with served(folder) as one:
        yield one


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.002)


def shared(*takers: TurnTaker) -> None:
    """Connect all, and wait until each has heard that it is not alone."""

    def knows(one: TurnTaker) -> bool:
        one.take()
        had = one.has_turn
        one.give_back()
        return had

    until(lambda: all([knows(one) for one in takers]))


def test_one_alone_does_not_ask(server: TurnServer) -> None:
    one = TurnTaker("a", "0", str(server.path))
    for _ in range(3):
        one.take()
        assert not one.has_turn
        one.give_back()
    assert one.waited_s == 0.0
    one.close()


def test_workers_of_two_jobs_never_compute_at_once(server: TurnServer) -> None:
    takers = [TurnTaker(job, "0", str(server.path)) for job in "ab"]
    shared(*takers)
    inside, most, turns = 0, 0, 0
    lock = threading.Lock()

    def work(one: TurnTaker) -> None:
        nonlocal inside, most, turns
        for _ in range(30):
            one.take()
            with lock:
                turns += one.has_turn
                inside += 1
                most = max(most, inside)
            time.sleep(0.0005)
            with lock:
                inside -= 1
            one.give_back()

    threads = [threading.Thread(target=work, args=(one,)) for one in takers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    for one in takers:
        one.close()
    assert (most, turns) == (1, 60)


def test_slots_are_apart(server: TurnServer) -> None:
    """What GPU 0's worker does leaves GPU 1's alone."""
    first, other = TurnTaker("a", "0", str(server.path)), TurnTaker("b", "1", str(server.path))
    for one in (first, other, first, other):
        one.take()
        assert not one.has_turn
    first.close()
    other.close()


def test_a_dead_worker_gives_its_turn_back(server: TurnServer) -> None:
    first, second = TurnTaker("a", "0", str(server.path)), TurnTaker("b", "0", str(server.path))
    shared(first, second)
    first.take()
    assert first.has_turn
    done = threading.Event()
    waiting = threading.Thread(target=lambda: (second.take(), done.set()))
    waiting.start()
    assert not done.wait(0.05)
    first.close()  # as the kernel does
    assert done.wait(LIMIT_S)
    waiting.join(LIMIT_S)
    assert second.has_turn
    second.close()


def test_the_end_of_an_earlier_worker_is_not_that_of_the_next(server: TurnServer) -> None:
    first, other = TurnTaker("a", "0", str(server.path)), TurnTaker("b", "0", str(server.path))
    shared(first, other)
    second = TurnTaker("a", "0", str(server.path))
    shared(second, other)
    first.close()
    for _ in range(20):
        for one in (second, other):
            one.take()
            assert one.has_turn
            one.give_back()
    second.close()
    other.close()


def test_a_hung_worker_loses_its_turn(server: TurnServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "LEAST_LIMIT_S", 0.05)
    monkeypatch.setattr(rules, "TIMES", 0.0)
    first, second = TurnTaker("a", "0", str(server.path)), TurnTaker("b", "0", str(server.path))
    shared(first, second)
    first.take()
    second.take()
    assert second.has_turn, "though the first has given nothing back"
    first.give_back()
    second.give_back()
    first.take()
    assert first.has_turn
    first.close()
    second.close()


def test_a_worker_goes_on_without_its_agent_and_finds_the_next(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.trainer.run.turns._AGAIN_S", 0.0)
    one = TurnTaker("a", "0", str(folder / NAME))
    one.take()  # no agent so far
    assert not one.has_turn
    with served(folder) as server:
        other = TurnTaker("b", "0", str(server.path))
        shared(one, other)
        one.take()
        assert one.has_turn
    one.give_back()  # into nothing
    one.take()
    assert not one.has_turn
    with served(folder):
        shared(one, other)
    one.close()
    other.close()


def test_a_worker_does_not_wait_for_ever_for_an_agent_that_stands(server: TurnServer) -> None:
    first, second = TurnTaker("a", "0", str(server.path)), TurnTaker("b", "0", str(server.path), patience_s=0.05)
    shared(first, second)
    first.take()  # and never gives it back: the limit of a turn is far away
    second.take()
    assert not second.has_turn, "it computes without"
    first.close()
    second.close()


@pytest.mark.parametrize("line", [b"", b"no-slot\n", b"job x\n", b"\xff\xff 0\n", b"x" * 5000, b"a 99999999\n"])
def test_hostile_lines_end_their_connection_only(server: TurnServer, line: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(LIMIT_S)
        one.connect(str(server.path))
        one.sendall(line)
        one.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            assert one.recv(16) == b""
    taker = TurnTaker("a", "0", str(server.path))
    taker.take()
    taker.close()


def test_what_the_device_was_given_is_done_before_a_turn_ends(server: TurnServer) -> None:
    done: list[bool] = []
    first = TurnTaker("a", "0", str(server.path), wait=lambda: done.append(first.has_turn))
    second = TurnTaker("b", "0", str(server.path))
    shared(first, second)
    done.clear()
    first.take()
    first.give_back()
    first.give_back()
    assert done == [True], "once, for its turn"
    first.close()
    second.close()


def test_only_workers_of_jobs_that_share_have_the_socket(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = TurnServer(folder)
    place = msg.Rank(3, 1, 0)

    def order(env: dict[str, str]) -> msg.StartWorkers:
        return msg.StartWorkers(msg.Program("x.py", env=env), (place,), 4, 1, "127.0.0.1", 1, 0)

    assert server.environment(order({}), place) == {}
    found = server.environment(order({wire.SHARES: "1"}), place)
    assert found == {wire.VARIABLE: f"1:{folder / NAME}"}
    none = open_turns(torch.device("cpu"), {})
    none.take()
    assert not none.has_turn
    none.close()
    assert capsys.readouterr().out == "", "nor does it say anything"
    one = open_turns(torch.device("cpu"), {**found, "HOLDFAST_JOB": "j1"})
    one.close()
    assert capsys.readouterr().out == "waited 0.00 s for 0 turns beside other jobs\n"
