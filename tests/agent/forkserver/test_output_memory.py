"""Output in memory: what is read is freed, unread output is bounded, and a new reader begins where the last
one was."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agent.forkserver import output_memory
from holdfast.agent.forkserver.output_memory import PAGE
from holdfast.agent.logs import worker_logs
from holdfast.agent.logs.worker_logs import WorkerLogs
from holdfast.wire.messages import LogChunk


@pytest.fixture
def memory() -> Iterator[int]:
    fd = output_memory.create()
    yield fd
    os.close(fd)


def reader(fd: int) -> int:
    return os.open(output_memory.path(os.getpid(), fd), os.O_RDWR)


def text(chunks: list[LogChunk], stream: str = "out") -> str:
    return "".join(chunk.text for chunk in chunks if chunk.stream == stream)


def test_two_writers_append(memory: int) -> None:
    assert fcntl.fcntl(memory, fcntl.F_GETFL) & os.O_APPEND
    subprocess.run([sys.executable, "-c", "print('one', flush=True)"], stdout=memory, check=True)
    subprocess.run([sys.executable, "-c", "print('two', flush=True)"], stdout=memory, check=True)
    assert os.pread(memory, 100, 0) == b"one\ntwo\n"


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3 * PAGE), st.integers(0, 3 * PAGE), st.booleans()), max_size=12))
def test_a_new_reader_begins_where_the_last_one_was(rounds: list[tuple[int, int, bool]]) -> None:
    fd = output_memory.create()
    own = reader(fd)
    written = taken = 0
    everything, got = b"", b""
    for write, read, is_new in rounds:
        raw = bytes(1 + (written + i) % 255 for i in range(write))
        os.write(fd, raw)
        everything += raw
        written += write
        if is_new:
            os.close(own)
            own = reader(fd)
            assert output_memory.unread(own) == taken
        raw = os.pread(own, read, taken)
        got += raw
        output_memory.take(own, taken, taken + len(raw))
        taken += len(raw)
        assert output_memory.held(fd) <= written - taken + 2 * PAGE
    got += os.pread(own, written - taken, taken)
    assert got == everything
    os.close(own)
    os.close(fd)


def test_unread_output_is_bounded(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_memory, "MOST", 64 * PAGE)
    monkeypatch.setattr(output_memory, "KEPT", 16 * PAGE)
    for n in range(1000):
        os.write(memory, b"%5d" % n + b"." * (PAGE - 6) + b"\n")
        start, end = output_memory.bound(memory)
        if end:
            output_memory.give_back(memory, start, end)
        assert output_memory.held(memory) <= 65 * PAGE
    at = output_memory.begin(memory, 0)
    assert at >= (1000 - 65) * PAGE
    assert os.pread(memory, 5, at).strip().isdigit()


class Worker:
    """The two outputs of one, as the fork server holds them."""

    def __init__(self) -> None:
        self.fds = output_memory.create(), output_memory.create()
        self.sources = tuple(output_memory.path(os.getpid(), fd) for fd in self.fds)

    def prints(self, raw: bytes, stream: int = 0) -> None:
        os.write(self.fds[stream], raw)

    def follow(self, logs: WorkerLogs, from_end: bool = False) -> Path:
        out, _ = logs.paths("j", 1, 0, from_end)
        logs.follow("j", 1, 0, self.sources)  # type: ignore[arg-type]
        return out


def test_what_is_read_goes_to_the_disk_and_the_memory_back(tmp_path: Path) -> None:
    logs, worker = WorkerLogs(tmp_path, rate=1e9), Worker()
    out = worker.follow(logs)
    assert logs.poll() == []
    worker.prints(b"one\ntw")
    worker.prints(b"oops\n", 1)
    chunks = logs.poll()
    assert (text(chunks), text(chunks, "err")) == ("one\n", "oops\n")
    worker.prints(b"o\n" * 1)
    assert logs.tail("j", 1, 0, "out") == "one\ntwo\n"
    worker.prints(b"." * 100_000 + b"\n")
    assert len(text(logs.poll())) > 90_000
    assert logs.flush()
    assert output_memory.held(worker.fds[0]) <= PAGE
    assert out.read_bytes() == b"one\ntwo\n" + b"." * 100_000 + b"\n"
    worker.prints(b"no end")
    assert text(logs.drain("j", 1, 0)) == "no end\n"
    assert logs.tail("j", 1, 0, "out", 10) == "no end"
    logs.close()
    assert out.read_bytes().endswith(b"\nno end")


def test_the_next_agent_reads_on_and_forwards_what_was_printed_meanwhile(tmp_path: Path) -> None:
    first, worker = WorkerLogs(tmp_path), Worker()
    out = worker.follow(first)
    worker.prints(b"before\n")
    assert text(first.poll()) == "before\n"
    assert first.flush()
    worker.prints(b"between\n")  # the first agent is dead
    second = WorkerLogs(tmp_path)
    worker.follow(second, from_end=True)
    assert second.tail("j", 1, 0, "out") == "before\nbetween\n"
    worker.prints(b"after\n")
    assert text(second.poll()) == "between\nafter\n"
    second.close()
    first.close()
    assert out.read_text() == "before\nbetween\nafter\n"


def test_a_gap_is_counted_and_said_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_memory, "MOST", 64 * PAGE)
    monkeypatch.setattr(output_memory, "KEPT", 16 * PAGE)
    logs, worker = WorkerLogs(tmp_path, rate=1e9), Worker()
    out = worker.follow(logs)
    worker.prints(b"first\n")
    assert text(logs.poll()) == "first\n"
    worker.prints(b"".join(b"%07d\n" % n for n in range(100 * PAGE // 8)))
    output_memory.give_back(worker.fds[0], *output_memory.bound(worker.fds[0]))
    chunks = logs.poll()
    assert sum(chunk.dropped for chunk in chunks) >= 1
    assert text(chunks).endswith(f"{100 * PAGE // 8 - 1:07d}\n")
    logs.close()
    assert "bytes of output are missing here: they were printed while no agent read them]" in out.read_text()


def test_rotation_keeps_every_line_once(tmp_path: Path) -> None:
    logs, worker = WorkerLogs(tmp_path, max_bytes=1000, keep=3, rate=1e9), Worker()
    out = worker.follow(logs)
    for n in range(100):
        worker.prints(b"line %3d %s\n" % (n, b"." * 20))
        logs.poll()
    logs.close()
    files = [path for k in (3, 2, 1) if (path := out.with_name(f"{out.name}.{k}")).exists()] + [out]
    assert [int(line.split()[1]) for path in files for line in path.read_text().splitlines()] == list(range(100))


def test_a_flood_is_skipped_for_viewers_and_kept_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_logs, "MAX_BACKLOG", 200_000)
    logs, worker = WorkerLogs(tmp_path, rate=1e9), Worker()
    out = worker.follow(logs)
    flood = b"".join(b"%07d\n" % n for n in range(200_000))
    worker.prints(flood)
    chunks = logs.poll()
    while more := logs.poll():
        chunks += more
    assert text(chunks).endswith("0199999\n")
    assert sum(chunk.dropped for chunk in chunks) + text(chunks).count("\n") == pytest.approx(200_000, abs=1)
    logs.close()
    assert out.read_bytes() == flood


def test_what_is_in_excess_while_the_reader_is_away_goes_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_memory, "MOST", 64 * PAGE)
    monkeypatch.setattr(output_memory, "KEPT", 16 * PAGE)
    first, worker = WorkerLogs(tmp_path, rate=1e9), Worker()
    out = worker.follow(first)
    worker.prints(b"before\n")
    first.poll()
    assert first.flush()
    flood = b"".join(b"%07d\n" % n for n in range(100 * PAGE // 8))
    worker.prints(flood)  # the first agent is dead
    start, end = output_memory.bound(worker.fds[0])
    output_memory.spill(worker.fds[0], str(out), end)
    output_memory.give_back(worker.fds[0], start, end)
    second = WorkerLogs(tmp_path, rate=1e9)
    worker.follow(second, from_end=True)
    second.poll()
    second.close()
    first.close()
    assert out.read_bytes() == b"before\n" + flood
