"""What stores behind a network share: errors in one line, retries that end, calls that may hang; and the rate."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.checkpoint.stores import remote
from holdfast.checkpoint.stores.file import FileStore
from holdfast.checkpoint.stores.hdfs import HdfsStore
from holdfast.checkpoint.stores.remote import (
    BATCH_BYTES,
    PIECE_BYTES,
    BoundedCalls,
    batched,
    cut,
    hadoop_error,
    is_final,
    persist,
)
from holdfast.checkpoint.stores.throttle import Budget, Throttled
from tests.conftest import Until


@pytest.mark.parametrize(
    ("kind", "text", "made", "line", "final"),
    [
        ("java.io.FileNotFoundException", "File /x\n\tat org.apache", FileNotFoundError, "File /x", True),
        ("org.apache.hadoop.fs.FileAlreadyExistsException", "/x is", FileExistsError, "/x is", True),
        ("org.apache.hadoop.fs.ParentNotDirectoryException", "/x", NotADirectoryError, "/x", True),
        ("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "quota\\n\\tat", OSError, "quota", True),
        ("java.io.IOException", "a and b must both be directories", FileExistsError, "directories", True),
        ("a.SafeModeException", "Cannot create", OSError, "SafeModeException: Cannot create", False),
        ("", "connection refused", OSError, "connection refused", False),
    ],
)
def test_hadoop_errors_are_the_systems_own(kind: str, text: str, made: type[OSError], line: str, final: bool) -> None:
    error = hadoop_error(kind, text)
    assert type(error) is made
    assert line in str(error.strerror)
    assert "\n" not in str(error)
    assert is_final(error) is final


def test_what_may_pass_is_asked_again_and_what_cannot_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = [0.0], []
    monkeypatch.setattr(remote.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))

    def failing(error: OSError, times: int, seconds: float = 0.0) -> str:
        asked.append(1)
        now[0] += seconds
        if len(asked) <= times:
            raise error
        return "done"

    busy, gone = OSError(errno.EIO, "busy"), FileNotFoundError(errno.ENOENT, "gone")
    assert persist(lambda: failing(busy, 3), 30) == "done"
    asked.clear()
    with pytest.raises(OSError, match="busy"):
        persist(lambda: failing(busy, 1000), 30)
    assert 5 < len(asked) < 60
    assert now[0] < 70
    asked.clear()
    with pytest.raises(FileNotFoundError):
        persist(lambda: failing(gone, 1), 30)
    assert len(asked) == 1
    asked.clear()
    # A long upload that fails late is retried although its deadline is over.
    assert persist(lambda: failing(busy, 2, 100), 30, tries=3) == "done"


def test_a_call_that_hangs_is_given_up() -> None:
    release = threading.Event()
    bounded = BoundedCalls(0.05)
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s to look"):
        bounded(lambda: release.wait(20), "look")
    bounded.timeout_s = 20.0
    assert bounded(lambda: 7, "look again") == 7
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 // 0, "divide")
    release.set()
    bounded.close()


def test_a_call_is_under_way_while_something_else_is_done() -> None:
    bounded, release = BoundedCalls(20.0), threading.Event()
    assert bounded.wait() is None, "nothing was started"
    bounded.start(lambda: release.wait(20), "write")
    release.set()
    assert bounded.wait() is True
    assert bounded.wait() is None
    bounded.start(lambda: 1 // 0, "divide")
    with pytest.raises(ZeroDivisionError):
        bounded.wait()
    assert bounded(lambda: 7, "look") == 7
    bounded.timeout_s = 0.05
    hangs = threading.Event()
    bounded.start(lambda: hangs.wait(20), "write")
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s to write"):
        bounded.wait()
    hangs.set()
    bounded.close()


def test_what_comes_next_is_made_while_the_last_is_written() -> None:
    """The first write ends only when more is asked for than it was given."""
    asked, written = threading.Event(), list[bytes]()

    def write(piece: bytes) -> None:
        if not written:
            assert asked.wait(20)
        written.append(piece)

    def content() -> Iterator[bytes]:
        for number in range(2 * BATCH_BYTES // PIECE_BYTES):
            if number == BATCH_BYTES // PIECE_BYTES:
                asked.set()
            yield bytes([number]) * PIECE_BYTES

    writer = SimpleNamespace(write=write, hsync=lambda: None, close=lambda: None)
    store = HdfsStore("hdfs://nowhere:1/x", timeout_s=5)
    store._open = SimpleNamespace(inner=SimpleNamespace(create=lambda where, options: writer))  # type: ignore[assignment]
    store.create("part", content)
    assert written == list(content())


def test_writing_keeps_to_its_rate(tmp_path: Path) -> None:
    now = [100.0]
    store = Throttled(FileStore(tmp_path), 10e6, clock=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s))
    store.create("x", lambda: [bytes(50_000_000)])
    assert store.size("x") == 50_000_000
    assert now[0] - 100 == pytest.approx(5.0, abs=0.25)
    free = Throttled(FileStore(tmp_path), 0, sleep=lambda s: pytest.fail("it waited"))
    free.create("y", lambda: [bytes(1000)])


def test_an_idle_time_is_not_saved_up() -> None:
    budget = Budget(1000.0)
    assert budget.wait(500, now=1000.0) == 0.0
    assert budget.wait(500, now=1000.0) == pytest.approx(0.4)
    assert budget.wait(1, now=5000.0) == 0.0
    assert budget.wait(1000, now=5000.0) == 0.0
    assert budget.wait(1, now=5000.0) == pytest.approx(0.901, abs=0.01)


def test_small_pieces_are_put_together_and_large_ones_cut() -> None:
    content = bytes(range(256)) * (PIECE_BYTES // 64)  # four pieces
    odd = [content[:10], memoryview(content)[10 : PIECE_BYTES + 7], b"", content[PIECE_BYTES + 7 :], b"end"]
    found = list(cut(odd, clock=lambda: 0.0))
    assert [len(piece) for piece in found] == [PIECE_BYTES] * 4 + [3]
    assert b"".join(found) == content + b"end"
    assert all(type(piece) is bytes for piece in found)
    assert list(cut([])) == []


def test_a_piece_of_the_right_size_is_handed_on_as_it_is() -> None:
    right, small = bytes(PIECE_BYTES), b"small"
    found = list(cut([small, memoryview(right), right, memoryview(right)[1:], small], clock=lambda: 0.0))
    assert [len(piece) for piece in found] == [len(small), PIECE_BYTES, PIECE_BYTES, PIECE_BYTES, len(small) - 1]
    assert found[1] is found[2] is right


def test_pieces_go_in_batches_unless_they_come_slowly() -> None:
    pieces = [bytes(PIECE_BYTES)] * 5 + [b"end"]
    assert [len(batch) for batch in batched(pieces, clock=lambda: 0.0)] == [4, 2]
    now = iter(range(100))
    assert list(batched([b"a", b"b"], clock=lambda: float(next(now)))) == [[b"a"], [b"b"]]
    assert list(batched([])) == []


def test_pieces_that_come_slowly_are_not_kept_waiting() -> None:
    now = iter(range(100))
    assert list(cut([b"a", b"b", b"c"], clock=lambda: float(next(now)))) == [b"a", b"b", b"c"]


def test_a_small_file_that_waits_to_be_closed_is_written_again(until: Until) -> None:
    store, released = HdfsStore("hdfs://nowhere:1/x"), threading.Event()
    created, renamed, removed = list[str](), list[tuple[str, str]](), list[str]()

    def create(where: str, options: object) -> SimpleNamespace:
        created.append(where)
        close = (lambda: released.wait(30)) if len(created) == 1 else (lambda: None)
        return SimpleNamespace(write=lambda piece: None, hsync=lambda: None, close=close)

    store._open = SimpleNamespace(
        inner=SimpleNamespace(create=create),
        rename=lambda old, new, overwrite: renamed.append((old, new)),
        delete=lambda path, recursive: removed.append(path),
    )  # type: ignore[assignment]
    store.replace("a", b"1")
    ((quick, target),) = renamed
    assert (quick in created[1:], target) == (True, "/x/a")
    assert {*created} - {quick} <= {*removed}
    released.set()
    until(lambda: removed.count(created[0]) == 2)  # it might have been made after it was removed
    assert quick not in removed


def test_a_large_one_is_written_once() -> None:
    store, created = HdfsStore("hdfs://nowhere:1/x"), list[str]()

    def create(where: str, options: object) -> SimpleNamespace:
        created.append(where)
        return SimpleNamespace(write=lambda piece: None, hsync=lambda: None, close=lambda: time.sleep(0.3))

    store._open = SimpleNamespace(
        inner=SimpleNamespace(create=create), rename=lambda *words: None, delete=lambda *words: None
    )  # type: ignore[assignment]
    store.replace("a", bytes((1 << 20) + 1))
    assert len(created) == 1
