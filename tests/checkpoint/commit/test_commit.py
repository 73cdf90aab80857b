"""A committed checkpoint is whole or absent, whichever process dies, sleeps, or shares the store."""

from __future__ import annotations

import errno
import os

import pytest
from file_stores import ONE, TWO, BrokenStore, Killed, fill, steps
from jobs import assert_step, restore_all, save_all
from threads import ThreadGroup, on_ranks

from holdfast.checkpoint.commit.fence import Fence, claim, read
from holdfast.checkpoint.errors import CheckpointError, StaleGeneration
from holdfast.checkpoint.restore.inspect import list_checkpoints, verify
from holdfast.checkpoint.stores.file import FileStore
from holdfast.checkpoint.stores.folder import MANIFEST, Slot, slots


@pytest.mark.parametrize("at", range(1, 8))
def test_death_at_any_write_leaves_the_old_or_the_whole_new(store: FileStore, at: int) -> None:
    """Alone, so that writes come in one order: part, manifest, rename; before and after each."""
    fence = claim(store, "job", 0)
    assert save_all(store, fence, 10, ONE)[0].ok
    broken = BrokenStore(store.root, at, Killed())
    try:
        save_all(store, fence, 20, ONE, store_of=lambda rank: broken)
        survived = True
    except Killed:
        survived = False
    assert survived == (at == 7)
    assert steps(store) == ([20, 10] if at >= 6 else [10])
    for step in steps(store):
        assert verify(store.url, step) == []
    # The next generation sweeps what is left and goes on.
    claim(store, "job", 1)
    assert sorted(store.list()) == sorted([*(s.folder + "/" for s in slots(store)), "claims/", "work-t0001"])
    assert_step(restore_all(store, ONE)[0], steps(store)[0], ONE)


@pytest.mark.parametrize("at", range(1, 7))
def test_a_full_disk_is_reported_and_leaves_nothing(store: FileStore, at: int) -> None:
    fence = claim(store, "job", 0)
    assert save_all(store, fence, 10, ONE)[0].ok
    broken = BrokenStore(store.root, at, OSError(errno.ENOSPC, "No space left on device"))
    saved = save_all(store, fence, 20, ONE, store_of=lambda rank: broken)[0]
    if at == 6:  # the rename was done, and only the answer was lost
        assert saved.ok
        assert steps(store) == [20, 10]
        return
    assert not saved.ok
    assert "No space left on device" in saved.reason
    assert saved.last_good == 10
    assert steps(store) == [10]
    assert store.list(fence.work) == []
    assert save_all(store, fence, 20, ONE, number=99)[0].ok


def test_one_rank_that_cannot_write_is_known_to_all(store: FileStore) -> None:
    fence = fill(store, 10)
    full = BrokenStore(store.root, 1, OSError(errno.ENOSPC, "No space left on device"))
    saved = save_all(store, fence, 20, TWO, store_of=lambda rank: full if rank == 1 else store)
    assert [s.ok for s in saved] == [False, False]
    assert saved[0].reason == "part-00001.safetensors: No space left on device"
    assert saved[0].last_good == 10


def test_an_older_generation_cannot_commit(store: FileStore) -> None:
    old = fill(store, 10)
    new = claim(store, "job", 1)
    assert new.term == old.term + 1
    with pytest.raises(StaleGeneration, match="generation 1 has taken over"):
        save_all(store, old, 20, TWO)
    assert steps(store) == [10]
    assert all(s.ok for s in save_all(store, new, 20, TWO))


@pytest.mark.parametrize("at", range(1, 6))
def test_a_run_that_was_asleep_cannot_commit_whenever_it_wakes(store: FileStore, at: int) -> None:
    """A newer generation takes over between any two writes of the older one, whose own checks are in the past."""
    old = claim(store, "job", 0)
    save_all(store, old, 10, ONE)
    taken: list[Fence] = []

    class Asleep(BrokenStore):
        def _strike(self) -> None:
            self.count += 1
            if self.count == at:
                taken.append(claim(store, "job", 1))

    asleep = Asleep(store.root, at, Killed())
    with pytest.raises(StaleGeneration, match="generation 1 has taken over"):
        save_all(store, old, 20, ONE, store_of=lambda rank: asleep)
    assert len(taken) == 1
    assert steps(store) == [10]


def test_an_older_generation_cannot_claim(store: FileStore) -> None:
    claim(store, "job", 4)
    with pytest.raises(StaleGeneration, match="generation 3 of job job may not use"):
        claim(store, "job", 3)
    assert claim(store, "job", 4).term == 2
    assert claim(store, "another", 0).term == 3


def test_claims_at_the_same_time_get_terms_of_their_own(store: FileStore) -> None:
    def work(group: ThreadGroup) -> list[int]:
        return [claim(store, "", 0).term for _ in range(5)]

    terms = [term for found in on_ranks(4, work) for term in found]
    assert sorted(terms) == list(range(1, 21))
    newest = read(store)
    assert newest is not None
    assert newest.term == 20


def test_lost_claims_do_not_bring_old_terms_back(store: FileStore) -> None:
    fill(store, 10)
    store.remove("claims")
    assert read(store) is None
    assert claim(store, "job", 0).term == 2


def test_a_copied_folder_is_not_a_checkpoint(store: FileStore) -> None:
    fence = fill(store, 10)
    source = store.root / Slot(10, fence.term).folder
    os.rename(source, store.root / Slot(99, fence.term).folder)
    assert list_checkpoints(store.url) == []
    assert verify(store.url, 99) == ["step-00000099-t0001: manifest: speaks of step 10, term 1: a copy of another one"]


def test_a_folder_without_manifest_is_not_a_checkpoint(store: FileStore) -> None:
    fence = fill(store, 10, 20)
    (store.root / Slot(20, fence.term).folder / MANIFEST).unlink()
    assert_step(restore_all(store, TWO)[0], 10, TWO)


def test_verify_needs_something_to_verify(store: FileStore) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint of step 5"):
        verify(store.url, 5)
