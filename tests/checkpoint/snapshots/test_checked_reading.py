"""What leaves memory is what was written there, or is known not to be."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.checkpoint.errors import SnapshotInvalid
from holdfast.checkpoint.format.checksum import CHUNK_BYTES, checksums
from holdfast.checkpoint.format.parts import header, held_bytes
from holdfast.checkpoint.format.tiles import GlobalTensor
from holdfast.checkpoint.snapshots.arena import Arena
from holdfast.checkpoint.snapshots.checked_reading import CheckedReading
from holdfast.checkpoint.snapshots.description import Description, Snapshot
from holdfast.plan.tiles import TensorShard

TENSORS = {
    "a": GlobalTensor("a", (1300, 1000), "F32"),
    "z": GlobalTensor("z", (700, 1024), "F32"),
    "count": GlobalTensor("count", (), "I64"),
    "none": GlobalTensor("none", (0, 3), "F32"),
    "half": GlobalTensor("half", (600, 1000), "BF16"),
}
WHOLE = [(name, tensor.shard) for name, tensor in sorted(TENSORS.items(), reverse=True)]
COLUMNS = ("z", TensorShard((0, 0), (700, 600)))


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Arena]:
    made = Arena.create(tmp_path / "w0.snap", Description("job", 0, 1, "", TENSORS, WHOLE))
    yield made
    made.close()


@pytest.fixture
def snapshot(arena: Arena) -> Snapshot:
    slot = arena.begin()
    assert slot is not None
    memory = arena.memory(slot)
    memory[:] = random.Random(3).randbytes(len(memory))
    return arena.commit(slot, 1, 1, {}, checksums(memory))


@pytest.mark.parametrize(
    "shards",
    [
        WHOLE,
        WHOLE[::-1],
        [("a", TensorShard((200, 0), (1000, 1000))), ("z", TensorShard((0, 0), (1, 512)))],
        [("half", TENSORS["half"].shard), COLUMNS, ("a", TensorShard((0, 0), (300, 1000)))],
        [],
    ],
    ids=["all", "backwards", "rows", "columns", "nothing"],
)
def test_the_bytes_are_those_of_the_shards(
    arena: Arena, snapshot: Snapshot, shards: list[tuple[str, TensorShard]]
) -> None:
    reading = CheckedReading(arena, snapshot, shards)
    assert sorted(reading.shards) == sorted(shards)
    _, entries = header(TENSORS, reading.shards, {})
    for _ in range(2):  # a store may ask again
        found = b"".join(reading.body(entries))
        assert found == b"".join(held_bytes(entries, arena.held(snapshot.slot)))
        assert reading.broken == set()


def test_whole_mib_are_not_copied_again(arena: Arena, snapshot: Snapshot) -> None:
    reading = CheckedReading(arena, snapshot, WHOLE)
    _, entries = header(TENSORS, reading.shards, {})
    pieces = list(reading.body(entries))
    whole = [piece for piece in pieces if type(piece) is bytes]
    assert all(len(piece) == CHUNK_BYTES for piece in whole[:-1])
    assert sum(map(len, whole)) > sum(map(len, pieces)) // 2


@pytest.mark.parametrize("shards", [WHOLE, [("a", TensorShard((200, 0), (1000, 1000)))], [COLUMNS], []])
def test_each_flipped_bit_is_found_here_or_in_the_rest(
    arena: Arena, snapshot: Snapshot, shards: list[tuple[str, TensorShard]]
) -> None:
    reading = CheckedReading(arena, snapshot, shards)
    _, entries = header(TENSORS, reading.shards, {})
    memory = arena.memory(snapshot.slot)
    for index in range(len(snapshot.sums)):
        at = random.randrange(index * CHUNK_BYTES, min((index + 1) * CHUNK_BYTES, len(memory)))
        memory[at] ^= 4
        list(reading.body(entries))
        rest = arena.broken(snapshot, reading.unread)
        assert sorted([*reading.broken, *rest]) == [index]  # and by one of the two only
        memory[at] ^= 4
    assert (reading.unread == []) == (shards == WHOLE)


def test_a_closed_arena_ends_it_for_good(arena: Arena, snapshot: Snapshot) -> None:
    reader = Arena.open(arena.path)
    reading = CheckedReading(reader, snapshot, WHOLE)
    reader.close()
    with pytest.raises(SnapshotInvalid, match="was closed"):  # no OSError: a store would try again
        list(reading.body(header(TENSORS, reading.shards, {})[1]))
