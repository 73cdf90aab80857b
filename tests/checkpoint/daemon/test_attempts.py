"""Daemons that meet only in the store: one of them is quicker than another at the worst moment."""

from __future__ import annotations

import os

import pytest
from jobs import STATE, job_of, layout_of, state_of
from layouts import share

from holdfast.checkpoint.commit.fence import claim
from holdfast.checkpoint.commit.retention import Retention
from holdfast.checkpoint.daemon.attempts import (
    AttemptRefused,
    Gathered,
    UploadAttempt,
    put_entry,
    put_refusal,
    write_part,
)
from holdfast.checkpoint.daemon.messages import Leader
from holdfast.checkpoint.format.parts import Part, held_bytes
from holdfast.checkpoint.restore.inspect import list_checkpoints, verify
from holdfast.checkpoint.stores.file import FileStore

TWO = layout_of(2)
STEP = 7


class Pair:
    """The attempt of two workers; worker 0 leads."""

    def __init__(self, store: FileStore) -> None:
        self.store, self.job = store, job_of(TWO)
        self.attempt = UploadAttempt(claim(store, "job", 1), STEP)
        leader = Leader((0, 1), TWO.tensors, self.job.mesh, STATE, Retention())
        self.gathered = Gathered(store, self.attempt, leader)

    def write(self, worker: int) -> Part | None:
        held = share(TWO, worker, state_of(STEP))
        shares = [(one.tensor, one.shard) for one in self.job.shares if one.worker == worker]
        return write_part(
            self.store, self.attempt, worker, TWO.tensors, shares, lambda entries: held_bytes(entries, held), iter
        )

    def enter(self, worker: int, part: Part | None) -> None:
        assert part is not None
        put_entry(self.store, self.attempt, worker, part, {"applied": STEP})

    def commit(self) -> None:
        assert self.gathered.look()
        self.gathered.commit()


@pytest.fixture
def pair(store: FileStore) -> Pair:
    return Pair(store)


def test_the_last_entry_is_committed_before_its_writer_knows_it_is_there(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is renamed between the entry's own rename and the sync of the folder that it lies in."""
    pair.enter(0, pair.write(0))
    part, real = pair.write(1), os.replace

    def replace(old: str, new: str) -> None:
        real(old, new)
        monkeypatch.undo()
        pair.commit()

    monkeypatch.setattr(os, "replace", replace)
    pair.enter(1, part)
    assert os.replace is real, "the leader was quicker"
    assert [one.step for one in list_checkpoints(pair.store.url)] == [STEP]
    assert verify(pair.store.url, STEP) == []


def test_an_entry_whose_answer_was_lost_is_entered(pair: Pair) -> None:
    pair.enter(0, pair.write(0))
    part = pair.write(1)
    pair.enter(1, part)
    pair.commit()
    pair.enter(1, part)
    assert verify(pair.store.url, STEP) == []


def test_the_leader_gives_up_before_the_reason_is_known_to_be_there(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace

    def replace(old: str, new: str) -> None:
        real(old, new)
        monkeypatch.undo()
        with pytest.raises(AttemptRefused, match="worker 1: memory is broken"):
            pair.gathered.look()
        pair.gathered.give_up("worker 1: memory is broken")

    monkeypatch.setattr(os, "replace", replace)
    put_refusal(pair.store, pair.attempt, 1, "memory is broken")
    assert os.replace is real
    assert pair.store.list(pair.attempt.folder) == []


def test_an_entry_of_what_was_given_up_is_no_failure_of_the_store(pair: Pair) -> None:
    part = pair.write(1)
    pair.gathered.give_up("it is over")
    with pytest.raises(AttemptRefused, match="it is over"):
        pair.enter(1, part)


def test_what_is_given_up_while_a_part_is_written_is_no_failure_of_the_store(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pair.store.make_folder

    def late(path: str) -> None:
        real(path)
        monkeypatch.undo()
        pair.gathered.give_up("it is over")

    monkeypatch.setattr(pair.store, "make_folder", late)
    with pytest.raises(AttemptRefused, match="it is over"):
        pair.write(1)


def test_a_store_that_fails_is_reported_as_it_is(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    part = pair.write(1)

    def full(path: str, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pair.store, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        pair.enter(1, part)
