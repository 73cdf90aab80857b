"""Snapshots in shared memory: complete or absent, whichever process dies when."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch

from holdfast.checkpoint.errors import SnapshotInvalid, SnapshotRefused
from holdfast.checkpoint.format.checksum import checksums
from holdfast.checkpoint.snapshots import long_values
from holdfast.checkpoint.snapshots.arena import Arena, require_memory
from holdfast.checkpoint.worker.snapshot import Snapshotter
from tests.checkpoint.support.arenas import WHAT
from tests.checkpoint.support.page_locks import Driver

ROOT = Path(__file__).parents[3]


def tensors(step: int) -> list[torch.Tensor]:
    return [
        torch.full((32, 1000), float(step)),
        torch.full((7,), step, dtype=torch.bfloat16),
        torch.tensor(step),
        torch.empty(0, 3),
    ]


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Arena]:
    made = Arena.create(tmp_path / "w1.snap", WHAT)
    yield made
    made.close()


def write(arena: Arena, step: int) -> None:
    slot = arena.begin()
    assert slot is not None
    memory = arena.memory(slot)
    memory[:] = bytes([step]) * len(memory)
    arena.commit(slot, step, 0, {"applied": step}, checksums(memory))


def test_what_was_copied_is_what_is_read(arena: Arena) -> None:
    snapshotter = Snapshotter(arena, torch.device("cpu"))
    for step in (1, 2, 3):
        assert snapshotter.begin(step, 4, {"applied": step}, tensors(step))
        snapshotter.wait_copied()
        made = snapshotter.finish()
        assert made is not None
        assert (made.step, made.generation, made.values) == (step, 4, {"applied": step})
    snapshotter.close()
    reader = Arena.open(arena.path)
    assert [one.step for one in reader.snapshots()] == [3, 2]
    for one in reader.snapshots():
        held = reader.held(one.slot)
        assert np.all(held["w"][0].data.view("f4") == one.step)
        assert int(held["n"][0].data) == one.step
        assert held["none"][0].data.shape == (0, 3)
        assert reader.broken(one) == []
    del held
    reader.close()


def test_a_new_process_takes_up_the_same_file_with_what_is_in_it(arena: Arena) -> None:
    write(arena, 5)
    again = Arena.create(arena.path, WHAT)
    assert [one.step for one in again.snapshots()] == [5]
    write(again, 6)
    assert [one.step for one in arena.snapshots()] == [6, 5]
    again.close()


def test_another_description_is_another_file(arena: Arena) -> None:
    write(arena, 5)
    other = Arena.create(arena.path, replace(WHAT, settings="else"))
    assert other.snapshots() == []
    assert [one.step for one in arena.snapshots()] == [5]  # a process that has it open still reads the old one
    other.close()


def test_the_newest_is_kept_until_the_next_is_complete(arena: Arena) -> None:
    for step in (1, 2):
        write(arena, step)
    slot = arena.begin()
    assert slot is not None
    assert [one.step for one in arena.snapshots()] == [2]
    arena.drop(slot)
    assert arena.begin() == slot


def test_what_is_read_is_not_overwritten(arena: Arena) -> None:
    write(arena, 1)
    reader = Arena.open(arena.path)
    (one,) = reader.snapshots()
    with reader.pinned(one) as is_there:
        assert is_there
        write(arena, 2)
        assert arena.begin() is None  # one slot is the newest, the other is read
    write(arena, 3)
    with reader.pinned(one) as is_there:
        assert not is_there
    reader.close()


@pytest.mark.parametrize("room", [2, 1])
def test_slots_are_registered_with_the_gpu_until_it_closes(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """The driver would hold on to pages that are not mapped any more, and refuse those that lie there next."""
    driver = Driver(room).install(monkeypatch)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: object())
    for _ in range(2):
        snapshotter = Snapshotter(arena, torch.device("cuda", 0))
        assert snapshotter._ready.wait(10)
        if room < arena.slots:
            with pytest.raises(SnapshotRefused, match="would not pin"):
                _ = snapshotter.is_ready
            assert not driver.ranges
            assert not driver.last_errors, "torch raises it behind the next kernel"
        else:
            assert snapshotter.is_ready
            assert list(driver.ranges.values()) == [len(arena.memory(0))] * 2
        snapshotter.close()
        assert not driver.ranges


def test_threads_share_the_checksums_where_a_gpu_computes(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there are cores for each of the host's ranks, and no more than four."""
    nothing = SimpleNamespace(record=lambda stream: None, wait_event=lambda event: None, synchronize=lambda: None)
    for name in ("Stream", "Event", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *device: nothing)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    Driver(2).install(monkeypatch)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    asked: list[int] = []

    def summed(content: memoryview, threads: int) -> tuple[int, ...]:
        asked.append(threads)
        return checksums(content, threads)

    monkeypatch.setattr("holdfast.checkpoint.worker.snapshot.checksums", summed)
    for device, ranks in (("cuda", 2), ("cuda", 8), ("cuda", 16), ("cpu", 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
        snapshotter = Snapshotter(arena, torch.device(device))
        assert snapshotter._ready.wait(10)
        assert snapshotter.begin(len(asked) + 1, 0, {}, tensors(1))
        made = snapshotter.finish()
        assert made is not None
        assert arena.broken(made) == []
        snapshotter.close()
    assert asked == [4, 2, 1, 1]


def test_memory_is_prepared_beside_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    monkeypatch.setattr("holdfast.checkpoint.worker.snapshot._SHORT_S", 0.0)
    go = threading.Event()
    prepare = Arena.prepare

    def slow(self: Arena, is_over: Callable[[], bool] = lambda: False) -> None:
        assert go.wait(10)
        prepare(self, is_over)

    monkeypatch.setattr(Arena, "prepare", slow)
    arena = Arena.create(tmp_path / "w1.snap", WHAT, prepare=False)
    snapshotter = Snapshotter(arena, torch.device("cpu"))
    assert not snapshotter.is_ready
    assert not snapshotter.begin(1, 0, {}, tensors(1))
    go.set()
    until(lambda: snapshotter.is_ready)
    assert snapshotter.begin(1, 0, {}, tensors(1))
    made = snapshotter.finish()
    assert made is not None
    assert arena.broken(made) == []
    snapshotter.close()
    arena.close()


def test_memory_that_is_gone_when_it_is_taken_is_reported_with_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    def full(fd: int, at: int, count: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    arena = Arena.create(tmp_path / "w1.snap", WHAT, prepare=False)
    monkeypatch.setattr(os, "posix_fallocate", full)
    snapshotter = Snapshotter(arena, torch.device("cpu"))
    with pytest.raises(SnapshotRefused, match=r"no room for \d+\.\d MB in .*: No space left on device"):
        until(lambda: snapshotter.is_ready)
    snapshotter.close()
    arena.close()
    monkeypatch.undo()
    path = tmp_path / "w2.snap"
    monkeypatch.setattr(Arena, "prepare", lambda self: (_ for _ in ()).throw(SnapshotRefused("none left")))
    with pytest.raises(SnapshotRefused):
        Arena.create(path, WHAT)
    assert not path.exists()
    with pytest.raises(SnapshotRefused):
        Arena.create(arena.path, WHAT)
    assert arena.path.exists()  # there may be snapshots in it


def test_the_writer_does_not_read_again_what_it_knows(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    write(arena, 1)
    monkeypatch.setattr(Arena, "snapshots", lambda self: pytest.fail("read the records"))
    for step in (2, 3, 4):
        assert arena.has_room()
        write(arena, step)
    monkeypatch.undo()
    assert [(one.step, one.seq) for one in arena.snapshots()] == [(4, 4), (3, 3)]


def test_a_third_slot_lets_snapshots_go_on_beside_an_upload(tmp_path: Path) -> None:
    arena = Arena.create(tmp_path / "w1.snap", WHAT, slots=3)
    write(arena, 1)
    reader = Arena.open(arena.path)
    with reader.pinned(reader.snapshots()[0]) as is_there:
        assert is_there
        for step in range(2, 9):
            write(arena, step)
    assert [one.step for one in arena.snapshots()] == [8, 7, 1]
    reader.close()
    arena.close()


def test_every_flipped_bit_is_found(arena: Arena) -> None:
    write(arena, 9)
    (one,) = arena.snapshots()
    memory = arena.memory(one.slot)
    for _ in range(50):
        at, bit = random.randrange(len(memory)), 1 << random.randrange(8)
        memory[at] ^= bit
        assert arena.broken(one) == [at >> 20]
        memory[at] ^= bit
    assert arena.broken(one) == []


def test_a_file_that_became_shorter_is_reported(arena: Arena) -> None:
    write(arena, 1)
    room = memoryview(bytearray(1000))
    arena.read_into(0, 0, room)
    assert bytes(room) == bytes([1]) * 1000
    os.truncate(arena.path, 100)
    with pytest.raises(SnapshotInvalid, match="shorter"):
        arena.read_into(0, 0, room)
    with pytest.raises(SnapshotInvalid, match="shorter"):
        arena.read(0, 0)


def test_long_values_lie_beside_the_snapshot(arena: Arena) -> None:
    for step in (1, 2, 3):
        slot = arena.begin()
        assert slot is not None
        values = {"seen": list(range(step * 20_000))}
        made = arena.commit(slot, step, 0, values, checksums(arena.memory(slot)))
        assert arena.snapshots()[0] == made
    assert [one.values["seen"][-1] for one in arena.snapshots()] == [59_999, 39_999]
    (aside,) = arena.path.parent.glob(f"*.values{made.slot}")
    content = bytearray(aside.read_bytes())
    content[1000] ^= 1
    aside.write_bytes(content)
    assert [one.step for one in arena.snapshots()] == [2]
    long_values.remove(arena.path)
    assert list(arena.path.parent.iterdir()) == []


def test_values_beyond_all_measure_are_refused_with_figures(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_values, "LONGEST", 100_000)
    slot = arena.begin()
    assert slot is not None
    with pytest.raises(SnapshotRefused, match=r"^0\.2 MB of state that is no tensor: at most 0\.1 MB fit beside"):
        arena.commit(slot, 1, 0, {"text": "x" * 200_000}, checksums(arena.memory(slot)))
    assert arena.begin() is not None


def test_a_record_that_is_torn_is_no_snapshot(arena: Arena) -> None:
    write(arena, 9)
    content = arena.path.read_bytes()
    at = content.index(b'"step"')
    with open(arena.path, "r+b") as file:
        file.seek(at + 3)
        file.write(b"x")
    assert arena.snapshots() == []


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"HFSNAP01" + bytes(8192), bytes(8192)])
def test_what_is_no_arena_is_refused_and_replaced(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "w1.snap"
    path.write_bytes(content)
    with pytest.raises(SnapshotInvalid):
        Arena.open(path)
    Arena.create(path, WHAT).close()
    Arena.open(path).close()


def test_memory_that_is_not_there_is_refused_with_figures(tmp_path: Path) -> None:
    with pytest.raises(SnapshotRefused, match=r"2 snapshots take \d+.* MB, .* has room for"):
        require_memory(tmp_path, 1 << 60, "2 snapshots")
    free = psutil.virtual_memory().available
    with pytest.raises(SnapshotRefused, match="the host has"):
        require_memory(tmp_path, int(free * 0.999), "one")


CHILD = """
import sys
from pathlib import Path
from holdfast.checkpoint.snapshots.arena import Arena
from holdfast.checkpoint.format.checksum import checksums
from tests.checkpoint.support.arenas import WHAT
from tests.checkpoint.support.page_locks import Driver
arena = Arena.create(Path(sys.argv[1]), WHAT)
step = max([one.step for one in arena.snapshots()], default=0)
while True:
    step += 1
    slot = arena.begin()
    memory = arena.memory(slot)
    for at in range(0, len(memory), 4096):  # slow enough to be caught in it
        memory[at : at + 4096] = bytes([step % 251]) * len(memory[at : at + 4096])
    arena.commit(slot, step, 0, {}, checksums(memory))
    print(step, flush=True)
"""


def test_killed_at_any_moment_the_last_promise_is_kept(tmp_path: Path) -> None:
    path, chance = tmp_path / "w1.snap", random.Random(7)
    for _ in range(8):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline()
        time.sleep(chance.random() * 0.05)
        os.kill(child.pid, signal.SIGKILL)
        promised = int((child.stdout.read().split() or ["0"])[-1])
        child.wait()
        child.stdout.close()
        arena = Arena.open(path)
        found = arena.snapshots()
        assert found[0].step >= promised
        for one in found:
            assert arena.broken(one) == []
            assert set(arena.memory(one.slot)) == {one.step % 251}
        arena.close()
