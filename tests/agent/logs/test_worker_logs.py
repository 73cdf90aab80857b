"""Following files that others write: nothing lost, nothing twice, within bounds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agent.logs import rules as log_rules
from holdfast.agent.logs import worker_logs
from holdfast.agent.logs.worker_logs import MAX_LINE, WorkerLogs
from holdfast.wire.messages import LogChunk
from holdfast.wire.types import LogMatched

RULES = log_rules.load()


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def append(path: Path, raw: bytes) -> None:
    """As a worker writes: O_APPEND, one system call."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, raw)
    os.close(fd)


def text(chunks: list[LogChunk], stream: str = "out") -> str:
    return "".join(chunk.text for chunk in chunks if chunk.stream == stream and not chunk.unfinished)


def test_whole_lines_of_both_streams(tmp_path: Path) -> None:
    logs = WorkerLogs(tmp_path)
    out, err = logs.paths("job/1", 2, 3)
    assert out.parent == err.parent == tmp_path / "job_1" / "g2"
    assert logs.poll() == []
    append(out, b"one\ntw")
    append(err, b"oops\n")
    assert logs.poll() == [
        LogChunk("job/1", 2, 3, "out", "one\n"),
        LogChunk("job/1", 2, 3, "err", "oops\n"),
    ]
    assert logs.poll() == [LogChunk("job/1", 2, 3, "out", "tw", unfinished=True)]
    append(out, b"o\n")
    assert text(logs.poll()) == "two\n"
    append(out, b"no end")
    assert logs.poll() == []
    assert text(logs.drain("job/1", 2, 3)) == "no end\n"
    assert logs.drain("job/1", 2, 3) == []
    logs.close()


def test_a_new_worker_and_one_that_ended_are_seen_between_quiet_polls(tmp_path: Path) -> None:
    logs = WorkerLogs(tmp_path)
    first = logs.paths("j", 1, 0)
    for path in first:
        append(path, b"")
    assert logs.poll() == logs.poll() == []  # from the second on nothing is done while no process writes
    second = logs.paths("j", 1, 1)
    append(second[0], b"new\n")
    append(second[1], b"")
    assert text(logs.poll()) == "new\n"
    assert logs.poll() == logs.poll() == []
    assert logs.drain("j", 1, 0) == []
    assert logs.poll() == []
    append(second[1], b"oops\n")
    assert text(logs.poll(), "err") == "oops\n"
    os.truncate(second[1], 0)  # by another process
    assert logs.poll() == []
    append(second[1], b"on\n")
    assert text(logs.poll(), "err") == "on\n"
    logs.close()


def test_what_is_held_back_is_reported_also_when_no_process_writes_any_more(tmp_path: Path) -> None:
    clock, reported = Clock(), list[str]()
    logs = WorkerLogs(tmp_path, rules=RULES, on_match=lambda event, rule: reported.append(event.line), clock=clock)
    out, err = logs.paths("j", 1, 0)
    append(err, b"")
    append(out, b"Segmentation fault\n" * 3)
    for _ in range(3):
        logs.poll()
    assert len(reported) == 1
    clock.now += 11
    logs.poll()
    assert [line.endswith("[2 times]") for line in reported] == [False, True]
    logs.close()


@pytest.mark.parametrize("job", ["..", "../../etc", "", "/abs"])
def test_a_job_name_stays_in_the_folder(tmp_path: Path, job: str) -> None:
    out, _ = WorkerLogs(tmp_path).paths(job, 1, 0)
    assert out.resolve().is_relative_to(tmp_path.resolve())


def test_a_worker_found_running_starts_at_the_end(tmp_path: Path) -> None:
    first = WorkerLogs(tmp_path)
    out, _ = first.paths("j", 1, 0)
    append(out, b"old\n")
    again = WorkerLogs(tmp_path)
    again.paths("j", 1, 0, from_end=True)
    append(out, b"new\n")
    assert text(again.poll()) == "new\n"
    assert again.tail("j", 1, 0, "out") == "old\nnew\n"
    first.close()
    again.close()


PIECES = st.lists(
    st.one_of(
        st.sampled_from([b"\n", b"\n\n", b"a" * (MAX_LINE - 1), b"b" * MAX_LINE, b"c" * (2 * MAX_LINE), b"\x85"]),
        st.binary(max_size=40),
        st.text(max_size=20).map(str.encode),
    ),
    max_size=12,
)


@settings(deadline=None, max_examples=50)
@given(PIECES, st.lists(st.integers(0, 100_000), max_size=10))
def test_any_cut_loses_and_doubles_nothing(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes], cuts: list[int]
) -> None:
    raw = b"".join(pieces).replace(b"\xff", b"?").replace(b"\r", b"?")  # returns: test_unfinished
    raw = raw.decode("utf-8", "replace").encode("ascii", "replace")  # replaced characters: the next test
    logs = WorkerLogs(tmp_path_factory.mktemp("logs"), rate=1e9)
    out, _ = logs.paths("j", 1, 0)
    got, last = "", 0
    for cut in [*sorted(c % (len(raw) + 1) for c in cuts), len(raw)]:
        append(out, raw[last:cut])
        last = cut
        got += text(logs.poll())
    got += text(logs.drain("j", 1, 0))
    logs.close()
    expected = []
    body = raw.decode()
    for line in body.removesuffix("\n").split("\n") if body else []:
        expected += [line[at : at + MAX_LINE] for at in range(0, len(line), MAX_LINE)] or [""]
    assert got == "".join(f"{line}\n" for line in expected)


@settings(deadline=None, max_examples=50)
@given(st.binary(max_size=60), st.integers(0, 60))
def test_invalid_utf8_is_replaced_wherever_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes, cut: int
) -> None:
    raw = raw.replace(b"\r", b"?")  # returns: test_unfinished
    logs = WorkerLogs(tmp_path_factory.mktemp("logs"))
    out, _ = logs.paths("j", 1, 0)
    append(out, raw[:cut])
    got = text(logs.poll())
    append(out, raw[cut:] + b"\n")
    got += text(logs.poll())
    logs.close()
    assert got == raw.decode("utf-8", "replace") + "\n"


def test_the_rest_beyond_the_rate_is_counted(tmp_path: Path) -> None:
    clock = Clock()
    logs = WorkerLogs(tmp_path, rate=100.0, clock=clock)
    out, _ = logs.paths("j", 1, 0)
    append(out, b"123456789\n" * 30)
    (chunk,) = logs.poll()
    assert (chunk.text, chunk.dropped) == ("123456789\n" * 10, 20)
    append(out, b"123456789\n" * 5)
    assert logs.poll() == []
    assert logs.poll() == [LogChunk("j", 1, 0, "out", "", 5)]
    clock.now += 0.5
    append(out, b"123456789\n" * 6)
    (chunk,) = logs.poll()
    assert (chunk.text, chunk.dropped) == ("123456789\n" * 5, 1)
    clock.now += 100
    append(out, b"".join(b"%09d\n" % i for i in range(30)))
    (chunk,) = logs.drain("j", 1, 0)  # the last words count most
    assert (chunk.text.splitlines()[-1], chunk.dropped) == ("000000029", 20)


def test_a_flood_is_skipped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_logs, "MAX_BACKLOG", 1 << 20)
    monkeypatch.setattr(worker_logs, "MAX_READ", 1 << 16)
    logs = WorkerLogs(tmp_path, rate=1e9)
    out, _ = logs.paths("j", 1, 0)
    append(out, b"".join(b"%09d\n" % i for i in range(300_000)))
    chunks = logs.poll() + logs.drain("j", 1, 0)
    lines = text(chunks).splitlines()
    assert lines[-1] == "000299999"
    assert len(lines) + sum(chunk.dropped for chunk in chunks) in (300_000, 300_001)  # one line may be cut in two


def test_matches_are_reported_once_and_counted(tmp_path: Path) -> None:
    clock, reported = Clock(), list[LogMatched]()
    logs = WorkerLogs(
        tmp_path,
        rules=RULES,
        on_match=lambda event, rule: reported.append(event),
        rate=0.0,
        clock=clock,
        wall_ns=lambda: 7,
    )
    _, err = logs.paths("j", 1, 2)
    append(err, b"fine\nRuntimeError: CUDA error: an illegal memory access was encountered\nfine\n")
    logs.poll()
    assert [(m.job, m.rank, m.rule, m.wall_ns) for m in reported] == [("j", 2, "cuda-error", 7)]
    append(err, b"RuntimeError: CUDA error: again\n" * 4)
    logs.poll()
    assert len(reported) == 1
    clock.now += 11
    logs.poll()
    assert reported[1].line == "RuntimeError: CUDA error: again [4 times]"
    logs.close()


def test_rotation_empties_the_file_in_place_and_misses_nothing(tmp_path: Path) -> None:
    logs = WorkerLogs(tmp_path, max_bytes=1000, keep=2, rate=1e9)
    out, _ = logs.paths("j", 1, 0)
    fd = os.open(out, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    got = ""
    for i in range(100):
        os.write(fd, b"line %04d of a worker that writes on\n" % i)
        got += text(logs.poll())
    os.close(fd)
    got += text(logs.drain("j", 1, 0))
    assert got == "".join(f"line {i:04d} of a worker that writes on\n" for i in range(100))
    assert sorted(p.name for p in out.parent.iterdir()) == ["rank0.out", "rank0.out.1", "rank0.out.2"]
    kept = [(out.parent / name).read_text() for name in ("rank0.out.2", "rank0.out.1", "rank0.out")]
    assert got.endswith("".join(kept))
    assert all(len(k) <= 1100 for k in kept)


def test_rotation_without_copies_only_bounds_the_file(tmp_path: Path) -> None:
    logs = WorkerLogs(tmp_path, max_bytes=100, keep=0, rate=1e9)
    out, _ = logs.paths("j", 1, 0)
    append(out, b"x" * 150 + b"\n")
    assert text(logs.poll()) == "x" * 150 + "\n"
    assert out.stat().st_size == 0
    append(out, b"after\n")
    assert text(logs.poll()) == "after\n"
    assert [p.name for p in out.parent.iterdir()] == ["rank0.out"]
    logs.close()


def test_a_file_that_another_process_empties(tmp_path: Path) -> None:
    logs = WorkerLogs(tmp_path)
    out, _ = logs.paths("j", 1, 0)
    append(out, b"a long first line\n")
    logs.poll()
    os.truncate(out, 0)
    append(out, b"new\n")
    assert text(logs.poll()) == "new\n"
    logs.close()


def test_a_real_worker(tmp_path: Path) -> None:
    logs = WorkerLogs(tmp_path)
    out, err = logs.paths("j", 1, 0)
    program = "import sys; print('hello'); print('bad', file=sys.stderr); sys.stdout.write('last')"
    with out.open("ab") as o, err.open("ab") as e:
        subprocess.run([sys.executable, "-c", program], stdout=o, stderr=e, check=True)
    chunks = logs.drain("j", 1, 0)
    assert (text(chunks), text(chunks, "err")) == ("hello\nlast\n", "bad\n")


def test_tail_begins_at_a_line(tmp_path: Path) -> None:
    logs = WorkerLogs(tmp_path)
    out, _ = logs.paths("j", 1, 0)
    append(out, b"first line\nsecond\nthird\n")
    assert logs.tail("j", 1, 0, "out", 15) == "second\nthird\n"
    assert logs.tail("j", 1, 0, "out", 3) == "rd\n"
    assert logs.tail("j", 1, 0, "err") == ""
    with pytest.raises(ValueError, match="'out' or 'err'"):
        logs.tail("j", 1, 0, "both")
