"""One upload without a daemon around it: what it leaves in the store, and what it does about memory that changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.commit.fence import claim
from holdfast.checkpoint.commit.retention import Retention
from holdfast.checkpoint.daemon.attempts import UploadAttempt
from holdfast.checkpoint.daemon.messages import Join, Leader
from holdfast.checkpoint.daemon.uploader import Outcomes, Pinned, Upload
from holdfast.checkpoint.format.checksum import checksums
from holdfast.checkpoint.format.tiles import GlobalTensor
from holdfast.checkpoint.restore.inspect import list_checkpoints, verify
from holdfast.checkpoint.snapshots.arena import Arena
from holdfast.checkpoint.snapshots.description import Description
from holdfast.checkpoint.stores.file import FileStore
from holdfast.checkpoint.stores.rate import Pace

TENSORS = {"w": GlobalTensor("w", (3, 1 << 18), "F32"), "b": GlobalTensor("b", (5,), "F32")}
SHARDS = tuple((name, tensor.shard) for name, tensor in TENSORS.items())
Repair = Callable[[Pinned, list[int]], Awaitable[None]]
FLIPPED = (1 << 20) + 17


async def upload(tmp_path: Path, repair: Repair, flipped: bool) -> tuple[FileStore, list[dict[str, Any]]]:
    """The snapshot of step 1 of a job of one worker; the store, and what was reported."""
    store = FileStore(tmp_path / "store")
    store.make_folder("")
    what = Description("job", 0, 1, "", TENSORS, SHARDS)
    arena = Arena.create(tmp_path / "w0.snap", what)
    slot = arena.begin()
    assert slot is not None
    memory = arena.memory(slot)
    memory[:] = bytes(range(256)) * (len(memory) // 256) + bytes(len(memory) % 256)
    made = arena.commit(slot, 1, 1, {"applied": 1}, checksums(memory))
    if flipped:
        memory[FLIPPED] ^= 8
    arena.close()
    fence = claim(store, "job", 1)
    leader = Leader((0,), TENSORS, {"dp": 1}, {}, Retention(1))
    order = Join(str(arena.path), "", b"secret", store.url, fence, SHARDS, leader=leader)
    pinned = Pinned.take(Arena.open(arena.path), slot, made.seq)
    notes: list[dict[str, Any]] = []
    over = asyncio.Event()
    one = Upload(
        store, UploadAttempt(fence, 1), 0, order, pinned, Pace(0), Outcomes(), repair, notes.append, lambda: None
    )  # fmt: skip
    one.start(lambda _, committed: over.set())
    await asyncio.wait_for(over.wait(), 30)
    return store, notes


async def not_wanted(pinned: Pinned, broken: list[int]) -> None:
    raise AssertionError(f"nothing is broken, not even {broken}")


async def put_right(pinned: Pinned, broken: list[int]) -> None:
    assert broken == [1]
    snapshot = pinned.snapshot
    good = bytearray(pinned.arena.read(snapshot.slot, 1))
    good[FLIPPED - (1 << 20)] ^= 8
    pinned.arena.repair(snapshot, {1: bytes(good)})


async def in_vain(pinned: Pinned, broken: list[int]) -> None:
    assert broken == [1]


@pytest.mark.parametrize(("repair", "flipped"), [(not_wanted, False), (put_right, True)])
def test_a_worker_alone_leaves_a_part_and_a_manifest(tmp_path: Path, repair: Repair, flipped: bool) -> None:
    store, notes = asyncio.run(upload(tmp_path, repair, flipped))
    assert [note["note"] for note in notes] == ["persisted"]
    (found,) = list_checkpoints(store.url)
    assert verify(store.url, found.step) == []
    assert store.list(found.folder) == ["manifest.json", "part-00000.safetensors"]


def test_what_is_known_to_be_wrong_is_never_entered(tmp_path: Path) -> None:
    store, notes = asyncio.run(upload(tmp_path, in_vain, True))
    assert [note["note"] for note in notes] == ["refused"]
    assert "changes in memory after each repair" in notes[0]["error"]
    assert list_checkpoints(store.url) == []
    assert not list(store.root.glob("work-*/*/*"))
