"""Save and restore: the restored state is equal bit for bit, on any layout, and each byte is written once."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from file_stores import ONE, TWO, CountingStore, fill, steps
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from jobs import STATE, assert_step, layout_of, restore_all, save_all, state_of
from layouts import layouts, tensors
from safetensors.numpy import load_file

from holdfast.checkpoint.commit.fence import claim
from holdfast.checkpoint.commit.retention import Retention, protect
from holdfast.checkpoint.errors import CheckpointError, CheckpointMismatch
from holdfast.checkpoint.format.checksum import CHUNK_BYTES, checksums
from holdfast.checkpoint.format.tiles import GlobalTensor, Layout
from holdfast.checkpoint.restore.inspect import find, list_checkpoints, verify
from holdfast.checkpoint.restore.reading import read_plan
from holdfast.checkpoint.restore.restore import load_whole, restore
from holdfast.checkpoint.snapshots.arena import Arena
from holdfast.checkpoint.snapshots.description import Description
from holdfast.checkpoint.stores.file import FileStore
from holdfast.checkpoint.stores.folder import Slot
from holdfast.plan.tiles import TensorShard


def test_newest_comes_back_bit_for_bit(store: FileStore) -> None:
    fill(store, 10, 20)
    found, warnings = restore_all(store, TWO)
    assert_step(found, 20, TWO)
    assert warnings == []
    assert steps(store) == [20, 10]
    assert verify(store.url, 20) == []
    assert store.list("work-t0001") == []


def test_an_empty_or_absent_store_restores_nothing(store: FileStore) -> None:
    assert restore_all(store, TWO) == ([None, None], [])
    assert list_checkpoints(store.url) == []


@given(st.data())
@hypothesis_settings(max_examples=25, deadline=None)
def test_any_layout_comes_back_on_any_other(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    of = data.draw(tensors())
    before, after = data.draw(layouts(of)), data.draw(layouts(of))
    store = FileStore(tmp_path_factory.mktemp("any"))
    assert all(saved.ok for saved in save_all(store, claim(store, "job", 0), 7, before))
    assert_step(restore_all(store, after)[0], 7, after)


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_bytes_written_and_read_are_the_unique_ones(tmp_path: Path, workers: int, replicas: int) -> None:
    """However many workers hold, or want, the same: to 1 %, headers included."""
    big = {"w": GlobalTensor("w", (1000, 1100), "F32"), "b": GlobalTensor("b", (3001, 5), "BF16")}
    unique = sum(tensor.num_bytes for tensor in big.values())
    split = layout_of(workers, big)
    layout = Layout(big, [split.held[i % workers] for i in range(workers * replicas)])
    store = CountingStore(tmp_path)
    assert all(saved.ok for saved in save_all(store, claim(store, "job", 0), 1, layout))
    assert unique <= store.written <= 1.01 * unique
    for other in (layout, layout_of(3, big)):
        store.given = 0
        found, _ = restore_all(store, other)
        assert_step(found, 1, other)
        assert unique <= store.given <= 1.01 * unique
        assert sum(one.bytes_read for one in found if one) == store.given


def test_replicas_share_writing_and_reading(tmp_path: Path) -> None:
    big = {f"w{i}": GlobalTensor(f"w{i}", (512, 1024), "F32") for i in range(16)}
    layout = Layout(big, [{name: [tensor.shard] for name, tensor in big.items()}] * 4)
    store = FileStore(tmp_path)
    save_all(store, claim(store, "job", 0), 1, layout)
    _, manifest = find(store)
    sizes = [part.bytes for part in manifest.parts]
    assert len(sizes) == 4
    assert max(sizes) < 1.02 * min(sizes)
    reads = [0] * 4
    for span in read_plan(manifest, layout, span_bytes=CHUNK_BYTES):
        reads[span.reader] += span.stop - span.start
        assert {target for d in span.deliveries for target in d.targets} == {0, 1, 2, 3}
    assert max(reads) <= min(reads) + CHUNK_BYTES


def test_what_no_rank_wants_is_not_read(tmp_path: Path) -> None:
    big = {"a": GlobalTensor("a", (1024, 1024), "F32"), "b": GlobalTensor("b", (1024, 1024), "F32")}
    store = CountingStore(tmp_path)
    save_all(store, claim(store, "job", 0), 1, layout_of(1, big))
    slot, manifest = find(store)
    whole = load_whole(store, slot, manifest, ["b"])
    assert np.array_equal(whole["b"].data, state_of(1, big)["b"])
    assert store.given <= 5 * CHUNK_BYTES


def test_parts_are_plain_safetensors(store: FileStore) -> None:
    fence = fill(store, 10)
    found: dict[str, np.ndarray] = {}
    for path in sorted((store.root / Slot(10, fence.term).folder).glob("*.safetensors")):
        for name, array in load_file(path).items() if "exp_avg" not in path.read_text("latin1")[:4000] else ():
            found[name] = array
    one = fill(FileStore(store.root / "one"), 10, layout=layout_of(1, {"w": GlobalTensor("w", (300, 7), "F32")}))
    path = store.root / "one" / Slot(10, one.term).folder / "part-00000.safetensors"
    loaded = load_file(path)
    assert loaded.keys() == {"w"}
    assert np.array_equal(loaded["w"].view("u4"), state_of(10)["w"])


def test_only_the_newest_stay_and_milestones_and_what_is_protected(store: FileStore) -> None:
    fence = fill(store, 1, 2, 3, 4, keep=2)
    assert steps(store) == [4, 3]
    protect(store, Slot(3, 1))
    for step in (5, 6, 7, 8):
        save_all(store, fence, step, TWO, keep=1, every=5)
    assert steps(store) == [8, 5, 3]
    assert [info.protected for info in list_checkpoints(store.url)] == [False, False, True]
    protect(store, Slot(3, 1), wanted=False)
    save_all(store, fence, 9, TWO, keep=1, every=5)
    assert steps(store) == [9, 5]
    assert not [name for name in store.list() if name.startswith("trash")]


@given(
    st.sets(st.tuples(st.integers(0, 40), st.integers(1, 3)), max_size=20),
    st.sets(st.integers(0, 40)),
    st.integers(0, 5),
    st.integers(0, 4),
)
def test_retention(found: set[tuple[int, int]], marked: set[int], last: int, every: int) -> None:
    held = [(Slot(*pair), pair[0] in marked) for pair in found]
    gone = Retention(last, every).expired(held)
    stay = {slot for slot, _ in held} - set(gone)
    newest = sorted((slot for slot, _ in held), key=lambda slot: slot.newness, reverse=True)[: max(last, 1)]
    assert set(newest) <= stay
    assert {slot for slot, is_protected in held if is_protected} <= stay
    if every:
        assert {slot.step for slot, _ in held if slot.step % every == 0} <= {slot.step for slot in stay}
    assert all(slot in newest or slot.step in marked or (every and slot.step % every == 0) for slot in stay)
    assert gone == sorted(gone, key=lambda slot: slot.newness)


def test_what_does_not_count_is_passed_over_and_new_ones_are_newer_than_it(store: FileStore) -> None:
    fill(store, 10, 20, 30)
    found, warnings = restore_all(store, TWO, counts=lambda manifest: manifest.step <= 25)
    assert_step(found, 20, TWO)
    assert warnings == []
    assert_step(restore_all(store, TWO)[0], 30, TWO)
    # The run that took the store over after that and went on from 20 is the newest, with fewer steps done.
    fill(store, 22)
    assert_step(restore_all(store, TWO)[0], 22, TWO)
    assert steps(store) == [22, 30, 20]


def test_if_none_is_old_enough_the_oldest_is_taken(store: FileStore) -> None:
    fill(store, 20, 30)
    found, warnings = restore_all(store, TWO, counts=lambda manifest: manifest.step <= 5)
    assert_step(found, 20, TWO)
    assert warnings == ["no checkpoint is as old as requested: rolling back to the oldest, of step 20"]


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
    found, warnings = restore_all(store, TWO)
    assert_step(found, 10, TWO)
    assert len(warnings) == 1
    assert "checkpoint of step 20 passed over: step-00000020-t0001/part-00001.safetensors" in warnings[0]
    assert len(verify(store.url, 20)) == 1


def test_every_flipped_bit_is_found_and_repaired_from_a_copy(tmp_path: Path) -> None:
    """One bit in every MiB of every part, at another place each time."""
    big = {"w": GlobalTensor("w", (1500, 1100), "F32"), "b": GlobalTensor("b", (700_001,), "U8")}
    layout = layout_of(2, big)
    good, bad = FileStore(tmp_path / "good"), FileStore(tmp_path / "bad")
    save_all(good, claim(good, "job", 0), 1, layout)
    slot, manifest = find(good)
    (bad.root / slot.folder).mkdir(parents=True)
    contents = {p.name: p.read_bytes() for p in (good.root / slot.folder).iterdir()}
    for name, content in contents.items():
        (bad.root / slot.folder / name).write_bytes(content)
    tried = 0
    for part in manifest.parts:
        path = bad.root / slot.folder / part.file
        for mib in range(len(part.sums)):
            at = mib * CHUNK_BYTES + (mib * 7919 + 13) % min(CHUNK_BYTES, part.bytes - mib * CHUNK_BYTES)
            changed = bytearray(contents[part.file])
            changed[at] ^= 1 << (mib % 8)
            path.write_bytes(changed)
            assert verify(bad.url, 1) == [f"{slot.folder}/{part.file} is corrupt within MiB {mib}"]
            with pytest.raises(CheckpointError, match="none of the 1 checkpoints"):
                restore_all(bad, layout)
            found, warnings = restore_all(bad, layout, mirrors=(good,))
            assert_step(found, 1, layout)
            assert [f"MiB {mib}: corrupt; repaired from {good.url}" in line for line in warnings] == [True]
            tried += 1
        path.write_bytes(contents[part.file])
    assert tried >= 8


def test_a_flipped_bit_is_repaired_from_a_snapshot_of_the_same_step(tmp_path: Path) -> None:
    """Some node's memory is lost, so that the job goes back to the store; another's still has what the store lost."""
    big = {"w": GlobalTensor("w", (1500, 1100), "F32")}
    layout, store = layout_of(2, big), FileStore(tmp_path / "store")
    save_all(store, claim(store, "job", 0), 1, layout)
    slot, manifest = find(store)
    for part in manifest.parts:
        path = store.root / slot.folder / part.file
        content = bytearray(path.read_bytes())
        for mib in range(1, len(part.sums)):
            content[mib * CHUNK_BYTES + 77] ^= 16
        path.write_bytes(content)
    for step, is_good in ((2, False), (1, True)):
        what = Description("job", 0, 2, "", big, [("w", big["w"].shard)])
        folder = tmp_path / f"memory{step}"
        folder.mkdir()
        arena = Arena.create(folder / "w.snap", what)
        place = arena.begin()
        assert place is not None
        memory = arena.memory(place)
        memory[:] = state_of(1, big)["w"].tobytes()
        arena.commit(place, step, 1, {}, checksums(memory))
        del memory
        arena.close()
        if is_good:
            found, warnings = restore_all(store, layout, snapshots=folder)
            assert_step(found, 1, layout)
            assert len(warnings) == sum(len(part.sums) - 1 for part in manifest.parts)
            assert all(line.endswith("corrupt; repaired from a snapshot in memory") for line in warnings)
        else:
            with pytest.raises(CheckpointError, match="none of the 1 checkpoints"):
                restore_all(store, layout, snapshots=folder)


def test_parts_swapped_or_of_another_attempt_are_found(store: FileStore) -> None:
    """Even if the older attempt wrote the very same tensors."""
    fence = fill(store, 10)
    older = {p.name: p.read_bytes() for p in (store.root / Slot(10, 1).folder).iterdir()}
    (store.root / Slot(10, 1).folder).rename(store.root / "aside")
    save_all(store, fence, 10, TWO, number=77)
    folder = store.root / Slot(10, 1).folder
    newer = {p.name: p.read_bytes() for p in folder.iterdir()}
    names = sorted(name for name in newer if name.endswith(".safetensors"))
    assert [older[name] == newer[name] for name in names] == [False, False]
    (folder / names[0]).write_bytes(older[names[0]])
    assert len(verify(store.url, 10)) == 1
    (folder / names[0]).write_bytes(newer[names[1]])
    (folder / names[1]).write_bytes(newer[names[0]])
    assert len(verify(store.url, 10)) == 2
    with pytest.raises(CheckpointError, match="none of the 1 checkpoints"):
        restore_all(store, TWO)


def test_no_whole_checkpoint_is_an_error_not_a_fresh_start(store: FileStore) -> None:
    fence = fill(store, 10)
    (store.root / Slot(10, fence.term).folder / "part-00000.safetensors").unlink()
    with pytest.raises(CheckpointError, match="none of the 1 checkpoints"):
        restore_all(store, TWO)


def test_another_model_is_refused(store: FileStore) -> None:
    fill(store, 10)
    with pytest.raises(CheckpointMismatch, match=r"setting model\.layers = 2, this run has 3"):
        restore_all(store, TWO, state={"model.layers": 3})
    other = layout_of(1, {"w": GlobalTensor("w", (301, 7), "F32")})
    with pytest.raises(CheckpointMismatch, match=r"step 10: w is F32\[300, 7\], this run has F32\[301, 7\]"):
        restore_all(store, other)
    other = layout_of(1, {"v": GlobalTensor("v", (3,), "F32")})
    with pytest.raises(CheckpointMismatch, match=r"step 10: v is not there, this run has F32\[3\]"):
        restore_all(store, other)


def test_no_rank_holds_more_than_it_wants(store: FileStore) -> None:
    """A worker that wants one row gets one row, and reads no more than the chunks it lies in."""
    fill(store, 10)
    row = TensorShard((17, 0), (1, 7))
    layout = Layout({"w": layout_of(1).tensors["w"]}, [{"w": [row]}, {}])
    found, _ = restore_all(store, layout)
    assert_step(found, 10, layout)
    assert found[1] is not None
    assert found[1].bytes_read == 0
    assert STATE


def test_restore_alone_needs_no_group(store: FileStore) -> None:
    from holdfast.checkpoint.restore.group import Alone

    fill(store, 10)
    found = restore(store, Alone(), layout=ONE, state=STATE, warn=print)
    assert_step([found], 10, ONE)
