"""The record of workers on a full disk: nothing ends, and records are written once there is space."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agent.forkserver import journal
from holdfast.agent.forkserver.journal import Started, WorkerJournal
from holdfast.wire.messages import KeptWorker
from holdfast.wire.types import WorkerExited


class Disk:
    """Has space for this many bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = 1 << 30
        self._write = os.write
        monkeypatch.setattr(journal.os, "write", self.write)

    def write(self, fd: int, raw: bytes) -> int:
        if not self.room and raw:
            raise OSError(errno.ENOSPC, "No space left on device")
        done = self._write(fd, raw[: self.room])
        self.room -= done
        return done


def started(rank: int) -> Started:
    return Started(KeptWorker("j", 1, rank, rank, 100 + rank, True), 7, "boot")


def exited(rank: int) -> WorkerExited:
    return WorkerExited("j", 1, rank, 100 + rank, 5, 0)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.tuples(st.sampled_from(["start", "exit", "ack", "retry"]), st.integers(0, 3), st.integers(0, 400))))
def test_whatever_room_there_is_in_the_end_it_holds_all(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as monkeypatch:
        disk = Disk(monkeypatch)
        one = WorkerJournal(folder)
        alive, ended = set(), set()
        for what, rank, room in steps:
            disk.room = room
            if what == "start":
                one.start(started(rank))
                alive.add(rank)
                ended.discard(rank)
            elif what == "exit":
                one.exit(exited(rank))
                alive.discard(rank)
                ended.add(rank)
            elif what == "ack":
                one.ack(("j", 1, rank))
                ended.discard(rank)
            else:
                one.retry()
        disk.room = 1 << 30
        one.retry()
        one.close()
        after = WorkerJournal(folder)
        assert {key[2] for key in after.started} == alive
        assert {key[2] for key in after.exits} >= ended
        after.close()


def test_a_new_one_begins_on_a_full_disk_with_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = WorkerJournal(tmp_path)
    one.start(started(3))
    one.close()

    def full(self: Path, data: str) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    after = WorkerJournal(tmp_path)
    assert list(after.started) == [("j", 1, 3)]
    assert [path.name for path in tmp_path.iterdir()] == [journal.NAME]
    after.exit(exited(3))
    after.close()
    monkeypatch.undo()
    assert list(WorkerJournal(tmp_path).exits) == [("j", 1, 3)]


def test_other_errors_are_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Not a directory"):
        WorkerJournal(tmp_path / "file" / "run")
