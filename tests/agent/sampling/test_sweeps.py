"""The loop over counter files, compiled and in Python: the same rows, also for readers during a write."""

import os
import shutil
import threading
import time
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agent.sampling import sweeps as sweeps_module
from holdfast.agent.sampling.sweeps import COMPILED, End, Sweeps
from holdfast.agent.sampling.ticks import Ticks
from tests.agent.support.loops import LOOPS


@pytest.fixture
def files(tmp_path: Path) -> Iterator["Files"]:
    made = Files(tmp_path)
    yield made
    made.close()


class Files:
    """Three counters that can be written in place."""

    def __init__(self, folder: Path) -> None:
        self.fds = array("i")
        for name in "abc":
            (folder / name).write_text("0\n")
            self.fds.append(os.open(folder / name, os.O_RDWR))

    def put(self, place: int, text: bytes) -> None:
        os.ftruncate(self.fds[place], 0)
        os.pwrite(self.fds[place], text, 0)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


def values(sweeps: Sweeps, first: int, end: int) -> tuple[int, list[list[int]]]:
    kept, words = sweeps.rows(first, end)
    rows = [list(words[at + 2 : at + sweeps.stride]) for at in range(0, len(words), sweeps.stride)]
    return kept, rows


def test_where_there_is_a_compiler_the_loop_is_compiled() -> None:
    """Otherwise the tests below cover the Python loop only, and the agent costs more than documented."""
    assert COMPILED or shutil.which("cc") is None


@pytest.mark.skipif(not COMPILED, reason="set up without a compiler")
def test_what_is_compiled_is_what_runs(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps_module, "columns", None)
    monkeypatch.setattr(Sweeps, "_run", None)
    sweeps = Sweeps(4, 3)
    assert sweeps.run(files.fds, None, 2) is End.DONE
    _, rows = sweeps.rows(0, 2)
    assert len(sweeps.columns(rows, 0, array("Q", [0] * 3), array("Q", [1] * 3))) == 4


@pytest.mark.parametrize("compiled", LOOPS)
def test_rows_hold_when_and_what(files: Files, compiled: bool) -> None:
    sweeps, before = Sweeps(4, 3, compiled=compiled), time.monotonic_ns()
    files.put(1, b"18446744073709551615\n")
    files.put(2, b" 7 \n")
    assert sweeps.run(files.fds, None, 2) is End.DONE
    assert sweeps.count == 2
    assert values(sweeps, 0, 2) == (0, [[0, 2**64 - 1, 7]] * 2)
    _, words = sweeps.rows(0, 2)
    times = [before, *words[:2], *words[sweeps.stride : sweeps.stride + 2], time.monotonic_ns()]
    assert times == sorted(times)


@pytest.mark.parametrize("compiled", LOOPS)
@pytest.mark.parametrize("text", [b"", b"\n", b"N/A (no PMA)\n", b"12x\n", b"-1\n", b"18446744073709551616\n"])
def test_what_is_not_a_number_is_no_sweep(files: Files, compiled: bool, text: bytes) -> None:
    sweeps = Sweeps(4, 3, compiled=compiled)
    sweeps.run(files.fds, None, 1)
    files.put(1, text)
    assert sweeps.run(files.fds, None, 3) is End.TROUBLE
    assert sweeps.count == 1
    files.put(1, b"5")
    assert sweeps.run(files.fds, None, 1) is End.DONE
    assert values(sweeps, 0, 2)[1] == [[0, 0, 0], [0, 5, 0]]
    assert sweeps.run(array("i", [files.fds[0], 10**6]), None, 1) is End.TROUBLE  # no such descriptor


@pytest.mark.parametrize("compiled", LOOPS)
def test_a_run_ends_with_its_ticks(files: Files, compiled: bool) -> None:
    sweeps, ticks = Sweeps(10, 3, compiled=compiled), Ticks(100_000)
    ended: list[End] = []
    thread = threading.Thread(target=lambda: ended.append(sweeps.run(files.fds, ticks, 1 << 62)))
    thread.start()
    deadline = time.monotonic() + 30
    while sweeps.count < 20 and time.monotonic() < deadline:
        time.sleep(0.001)
    ticks.end()
    thread.join(30)
    ticks.close()
    assert ended == [End.ENDED]
    assert sweeps.count >= 20


@pytest.mark.parametrize("compiled", LOOPS)
@settings(deadline=None, max_examples=60)
@given(capacity=st.integers(1, 7), runs=st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=8))
def test_the_newest_are_kept_and_each_is_read_once(
    tmp_path_factory: pytest.TempPathFactory, compiled: bool, capacity: int, runs: list[tuple[int, bool]]
) -> None:
    files = Files(tmp_path_factory.mktemp("files"))
    sweeps, taken, written = Sweeps(capacity, 3, compiled=compiled), 0, 0
    try:
        for many, take in [*runs, (1, True)]:
            for _ in range(many):
                files.put(0, b"%d\n" % written)
                sweeps.run(files.fds, None, 1)
                written += 1
            if take:
                first, rows = values(sweeps, taken, sweeps.count)
                assert first == max(taken, written - capacity)
                assert [row[0] for row in rows] == list(range(first, written))
                taken = written
    finally:
        files.close()


@pytest.mark.parametrize("compiled", LOOPS)
def test_a_reader_while_rows_are_written_over_gets_whole_ones(files: Files, compiled: bool) -> None:
    """All three read the same file, which only goes up: a row made of two sweeps would show it."""
    sweeps, fds = Sweeps(3, 3, compiled=compiled), array("i", [files.fds[0]] * 3)
    thread = threading.Thread(target=lambda: sweeps.run(fds, None, 30_000))
    thread.start()
    number, looks = 0, 0
    deadline = time.monotonic() + 60
    while (thread.is_alive() or looks < 100) and time.monotonic() < deadline:
        number, looks = number + 1, looks + 1
        os.pwrite(files.fds[0], b"%07d\n" % number, 0)  # one write of one word, as the kernel: never half a number
        _, words = sweeps.rows(max(0, sweeps.count - 3), sweeps.count)
        assert len(words) <= 3 * sweeps.stride
        for at in range(0, len(words), sweeps.stride):
            began, ended, *read = words[at : at + sweeps.stride]
            assert began <= ended
            assert read == sorted(read)
            assert read[-1] <= number
    thread.join(60)
    assert looks >= 100
