"""Save, commit, restore: a committed checkpoint loads bit for bit, or it is not there."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from threads import ThreadGroup, on_ranks

from holdfast.checkpoint.errors import (
    CheckpointError,
    CheckpointMismatch,
    StaleGeneration,
    StoreUnsupported,
)
from holdfast.checkpoint.fence import Fence, claim, read
from holdfast.checkpoint.folder import MANIFEST, Slot
from holdfast.checkpoint.group import Alone
from holdfast.checkpoint.inspect import list_checkpoints, verify
from holdfast.checkpoint.restore import Restored, restore
from holdfast.checkpoint.save import Saved, save
from holdfast.checkpoint.store import FileStore, open_store

MESH = {"pp": 1, "dp": 2, "tp": 1}
STATE = {"model.layers": 2}


class Killed(BaseException):
    """Stands for the death of the process: nothing after it runs, no handler catches it."""


class BrokenStore(FileStore):
    """Fails at the n-th write, by an error or by death."""

    def __init__(self, root: Path, at: int, error: BaseException) -> None:
        super().__init__(root)
        self.at, self.error, self.count = at, error, 0

    def _strike(self) -> None:
        self.count += 1
        if self.count == self.at:
            raise self.error

    def create(self, path: str, pieces: Iterable[bytes]) -> None:
        self._strike()
        super().create(path, pieces)

    def rename(self, old: str, new: str) -> None:
        self._strike()
        super().rename(old, new)
        self._strike()

    def replace(self, path: str, content: bytes) -> None:
        self._strike()
        super().replace(path, content)
        self._strike()


def tensors(rank: int, step: int) -> dict[str, torch.Tensor]:
    seeded = torch.Generator().manual_seed(1000 * step + rank)
    return {"w": torch.randn(300, 7, generator=seeded), "empty": torch.zeros(0, 3), "n": torch.tensor(step)}


def save_step(store: FileStore, group: object, fence: Fence, step: int, keep: int = 3) -> Saved:
    return save(
        store,
        group,  # type: ignore[arg-type]
        fence,
        step,
        tensors(group.rank, step),  # type: ignore[attr-defined]
        mesh=MESH,
        state=STATE,
        part_state={"tiles": "{}"},
        keep=keep,
    )


def restore_all(store: FileStore, size: int = 2) -> tuple[list[Restored | None], list[str]]:
    warnings: list[str] = []

    def work(group: ThreadGroup) -> Restored | None:
        return restore(store, group, mesh=MESH, state=STATE, warn=warnings.append)

    return on_ranks(size, work), warnings


def assert_step(found: list[Restored | None], step: int) -> None:
    for rank, one in enumerate(found):
        assert one is not None
        assert one.manifest.step == step
        expected = tensors(rank, step)
        assert one.tensors.keys() == expected.keys()
        assert all(torch.equal(one.tensors[k], expected[k]) for k in expected)


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


def fill(store: FileStore, *steps: int, keep: int = 3) -> Fence:
    fence = claim(store, "job", 0)
    for step in steps:
        assert all(s.ok for s in on_ranks(2, lambda g: save_step(store, g, fence, step, keep)))  # noqa: B023
    return fence


def test_newest_comes_back_bit_for_bit(store: FileStore) -> None:
    fill(store, 10, 20)
    found, warnings = restore_all(store)
    assert_step(found, 20)
    assert warnings == []
    assert [c.step for c in list_checkpoints(store.url)] == [20, 10]
    assert verify(store.url, 20) == []


def test_an_empty_or_absent_store_restores_nothing(store: FileStore) -> None:
    assert restore_all(store) == ([None, None], [])
    assert list_checkpoints(store.url) == []


def test_only_the_newest_stay(store: FileStore) -> None:
    fill(store, 1, 2, 3, 4, keep=2)
    assert [c.step for c in list_checkpoints(store.url)] == [4, 3]
    assert sorted(n for n in store.list() if n.startswith("step")) == [
        "step-00000003-t0001",
        "step-00000004-t0001",
    ]


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_bad_part_means_the_next_older_everywhere(store: FileStore, damage: str) -> None:
    fence = fill(store, 10, 20)
    part = store.root / Slot(20, fence.term).folder / "part-00001.safetensors"
    if damage == "flip":
        content = bytearray(part.read_bytes())
        content[len(content) // 2] ^= 4
        part.write_bytes(content)
    elif damage == "truncate":
        os.truncate(part, 100)
    else:
        part.unlink()
    found, warnings = restore_all(store)
    assert_step(found, 10)
    assert len(warnings) == 1
    assert "checkpoint of step 20 passed over: step-00000020-t0001/part-00001.safetensors" in warnings[0]
    assert len(verify(store.url, 20)) == 1


def test_no_whole_checkpoint_is_an_error_not_a_fresh_start(store: FileStore) -> None:
    fence = fill(store, 10)
    (store.root / Slot(10, fence.term).folder / "part-00000.safetensors").unlink()
    with pytest.raises(CheckpointError, match="none of the 1 checkpoints"):
        restore_all(store)


def test_another_mesh_or_model_is_refused(store: FileStore) -> None:
    fill(store, 10)
    for mesh, state, says in (
        ({**MESH, "tp": 2}, STATE, r"mesh tp = 1, this run has 2"),
        (MESH, {"model.layers": 3}, r"setting model\.layers = 2, this run has 3"),
    ):
        with pytest.raises(CheckpointMismatch, match=says):
            restore(store, Alone(), mesh=mesh, state=state, warn=print)


@pytest.mark.parametrize("at", range(1, 7))
def test_death_at_any_write_leaves_the_old_or_the_whole_new(store: FileStore, at: int) -> None:
    """Alone, so that writes come in one order: part, rename (2 points), manifest (2 points)."""
    fence = claim(store, "job", 0)
    assert save_step(store, Alone(), fence, 10).ok
    broken = BrokenStore(store.root, at, Killed())
    try:
        save_step(broken, Alone(), fence, 20)
        survived = True
    except Killed:
        survived = False
    assert survived == (at == 6)
    steps = [c.step for c in list_checkpoints(store.url)]
    assert steps == ([20, 10] if at >= 5 else [10])
    for step in steps:
        assert verify(store.url, step) == []
    # The next generation sweeps what is left and goes on.
    claim(store, "job", 1)
    assert len([n for n in store.list() if n.startswith("step")]) == len(steps)
    newest = restore(store, Alone(), mesh=MESH, state=STATE, warn=print)
    assert newest is not None
    assert newest.manifest.step == steps[0]


@pytest.mark.parametrize("at", range(1, 6))
def test_a_full_disk_is_reported_and_leaves_nothing(store: FileStore, at: int) -> None:
    fence = claim(store, "job", 0)
    assert save_step(store, Alone(), fence, 10).ok
    broken = BrokenStore(store.root, at, OSError(errno.ENOSPC, "No space left on device"))
    saved = save_step(broken, Alone(), fence, 20)
    assert not saved.ok
    assert "No space left on device" in saved.reason
    assert saved.last_good == 10
    assert [n for n in store.list() if n.startswith("step")] == ["step-00000010-t0001"]
    assert save_step(store, Alone(), fence, 20).ok


def test_one_rank_that_cannot_write_is_known_to_all(store: FileStore) -> None:
    fence = fill(store, 10)
    full = BrokenStore(store.root, 1, OSError(errno.ENOSPC, "No space left on device"))
    saved = on_ranks(2, lambda g: save_step(full if g.rank == 1 else store, g, fence, 20))
    assert [s.ok for s in saved] == [False, False]
    assert saved[0].reason == "part-00001.safetensors: No space left on device"
    assert saved[0].last_good == 10


def test_an_older_generation_cannot_commit(store: FileStore) -> None:
    old = fill(store, 10)
    new = claim(store, "job", 1)
    assert new.term == old.term + 1
    with pytest.raises(StaleGeneration, match="generation 1 has taken over"):
        on_ranks(2, lambda g: save_step(store, g, old, 20))
    assert [c.step for c in list_checkpoints(store.url)] == [10]
    assert all(s.ok for s in on_ranks(2, lambda g: save_step(store, g, new, 20)))


def test_an_older_generation_cannot_claim(store: FileStore) -> None:
    claim(store, "job", 4)
    with pytest.raises(StaleGeneration, match="generation 3 of job job may not use"):
        claim(store, "job", 3)
    assert claim(store, "job", 4).term == 2
    assert claim(store, "another", 0).term == 3


def test_a_lost_fence_does_not_bring_old_terms_back(store: FileStore) -> None:
    fill(store, 10)
    (store.root / "fence.json").unlink()
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
    found, _ = restore_all(store)
    assert_step(found, 10)


def test_verify_needs_something_to_verify(store: FileStore) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint of step 5"):
        verify(store.url, 5)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("hdfs://h:1/p", "no such scheme 'hdfs'"),
        ("file://host/p", "three slashes"),
        ("file:///", "names no folder"),
    ],
)
def test_urls_that_name_no_store(url: str, says: str) -> None:
    with pytest.raises(StoreUnsupported, match=says):
        open_store(url)


def test_urls_come_back(tmp_path: Path) -> None:
    plain = open_store(str(tmp_path / "a b"))
    again = open_store(plain.url)
    assert isinstance(again, FileStore)
    assert again.root == tmp_path / "a b"


def test_paths_cannot_leave_the_store(store: FileStore) -> None:
    for path in ("../x", "/etc/passwd", "a/../../b"):
        with pytest.raises(CheckpointError):
            store.read(path)


def test_the_lock_has_a_deadline(store: FileStore) -> None:
    with (
        store.exclusive("fence"),
        pytest.raises(TimeoutError, match="held for"),
        store.exclusive("fence", deadline_s=0.05),
    ):
        pass


def test_inspection_needs_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, holdfast.checkpoint.inspect; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=30, check=False).returncode == 0
