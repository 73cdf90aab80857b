"""Batches ahead of time and out of shared memory: the same ones in the same order, whatever happens to the loader."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.trainer.data import ring as rings
from holdfast.trainer.data.batches import Batch, Batches
from holdfast.trainer.data.feed import Inline, Prefetched
from holdfast.trainer.data.loader import serve
from holdfast.trainer.data.ring import Ring, sweep
from holdfast.trainer.data.shards import Shards
from holdfast.trainer.data.shared_feed import Loader, SharedFeed
from holdfast.trainer.settings.errors import TrainingError
from tests.conftest import Until

LENGTH, MICRO_BATCHES, SIZE = 5, 4, 2
PATIENCE_S = 120.0
"""For a loader that has to start, on a machine that is busy."""


@pytest.fixture
def shards(tmp_path: Path) -> Shards:
    """300 tokens in three files."""
    tokens = np.arange(300, dtype=np.uint16)
    paths = []
    for number, piece in enumerate(np.split(tokens, [70, 71])):
        paths.append(tmp_path / f"{number}.tokens")
        paths[-1].write_bytes(piece.tobytes())
    return Shards(paths, [70, 1, 229], "uint16")


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where rings lie in this test."""
    where = tmp_path / "memory"
    where.mkdir()
    monkeypatch.setattr("holdfast.trainer.data.shared_feed.folder", lambda: where)
    return where


def batches(shards: Shards, seed: int = 3) -> Batches:
    return Batches(shards, LENGTH, seed, MICRO_BATCHES, SIZE)


def same(one: Batch, other: Batch) -> bool:
    return bool((one[0] == other[0]).all() and (one[1] == other[1]).all())


@given(start=st.integers(0, 310), size=st.integers(0, 310))
def test_several_files_read_as_one_row(tmp_path_factory: pytest.TempPathFactory, start: int, size: int) -> None:
    folder = tmp_path_factory.mktemp("row")
    row = np.arange(300, dtype=np.uint8)
    (folder / "a").write_bytes(row[:200].tobytes())
    (folder / "b").write_bytes(row[200:].tobytes())
    shards = Shards([folder / "a", folder / "b"], [200, 100], "uint8")
    piece = shards[start : start + size]
    assert (piece == row[start : start + size]).all()
    assert shards.bytes_read == len(piece)
    assert len(shards) == 300


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123")
    with pytest.raises(ValueError, match="3 bytes instead of 4"):
        Shards([tmp_path / "a"], [4], "uint8")


# --- a thread that reads ahead ---------------------------------------------------------------------------------------


@given(depth=st.integers(1, 5), first=st.integers(0, 20), count=st.integers(1, 10))
@settings(max_examples=25, deadline=None)
def test_reading_ahead_changes_nothing(depth: int, first: int, count: int) -> None:
    row = Batches(np.arange(99, dtype=np.uint8), LENGTH, 1, MICRO_BATCHES, SIZE)
    inline = Inline(row, range(1, 3))
    ahead = Prefetched(inline.read, depth, steps=first + count)
    for step in range(first, first + count):
        assert same(ahead.read(step), inline.read(step))
    assert same(ahead.read(first), inline.read(first))  # another run from an earlier step
    ahead.close()
    assert not [t for t in threading.enumerate() if t.name == "holdfast-prefetch"]


def test_no_more_than_depth_is_read_ahead_and_nothing_past_the_end(until: Until) -> None:
    read: list[int] = []

    def reading(step: int) -> Batch:
        read.append(step)
        return np.full((1, 1), step), np.full((1, 1), step)

    ahead = Prefetched(reading, 3, steps=6)
    ahead.read(0)
    until(lambda: len(read) >= 4)
    time.sleep(0.02)
    assert read == [0, 1, 2, 3]
    for step in range(1, 6):
        ahead.read(step)
    time.sleep(0.02)
    assert read == [0, 1, 2, 3, 4, 5]
    ahead.close()


def test_an_error_is_raised_in_the_step_that_needs_the_batch() -> None:
    def reading(step: int) -> Batch:
        if step == 2:
            raise OSError("disk gone")
        return np.full((1, 1), step), np.full((1, 1), step)

    ahead = Prefetched(reading, 4, steps=9)
    assert [int(ahead.read(step)[0][0, 0]) for step in (0, 1)] == [0, 1]
    with pytest.raises(OSError, match="disk gone"):
        ahead.read(2)
    with pytest.raises(OSError, match="disk gone"):
        ahead.read(2)
    ahead.close()


# --- a loader for the whole node -------------------------------------------------------------------------------------


class Node:
    """The ranks of one node, each with its end of the ring; `replicas` says what each reads."""

    def __init__(self, source: Batches, replicas: list[int], dp: int, ahead: int = 2, steps: int = 100) -> None:
        self.samples = MICRO_BATCHES // dp * SIZE
        self.local = MICRO_BATCHES // dp
        self.loader = Loader(source, self.samples, len(replicas), ahead, steps)
        self.feeds = [
            SharedFeed(Ring.open(self.loader.ring.path), number, replica, PATIENCE_S)
            for number, replica in enumerate(replicas)
        ]

    def read(self, step: int) -> list[Batch]:
        return [feed.read(step) for feed in self.feeds]

    def close(self) -> None:
        for feed in self.feeds:
            feed.close()
        self.loader.close()


@pytest.fixture
def nodes(memory: Path) -> Iterator[list[Node]]:
    made: list[Node] = []
    yield made
    for node in made:
        node.close()
    assert not list(memory.iterdir()), "a ring was left behind"


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_one_loader_reads_once_for_all_its_ranks(nodes: list[Node], shards: Shards, tp: int, until: Until) -> None:
    """dp = 2, tp ranks each: what each gets is what it would have read, and bytes from disk fall by tp."""
    replicas = [0] * tp + [1] * tp
    node = Node(batches(shards), replicas, dp=2, steps=6)
    nodes.append(node)
    alone = [Inline(batches(shards), range(2 * r, 2 * r + 2)) for r in replicas]
    before = shards.bytes_read
    for step in range(6):
        for got, own in zip(node.read(step), alone, strict=True):
            assert same(got, own.read(step))
    each_for_itself = shards.bytes_read - before
    whole = 6 * MICRO_BATCHES * SIZE * (LENGTH + 1) * 2
    until(lambda: node.loader.ring.bytes_read >= whole)  # counted after the ranks may read
    assert each_for_itself == tp * node.loader.ring.bytes_read
    assert node.loader.ring.bytes_read == whole


@given(seed=st.integers(0, 2**31), dp=st.sampled_from([1, 2, 4]), slots=st.integers(2, 5), first=st.integers(0, 60))
@settings(max_examples=20, deadline=None)
def test_order_does_not_depend_on_readers_slots_or_start(
    tmp_path_factory: pytest.TempPathFactory, seed: int, dp: int, slots: int, first: int
) -> None:
    """The loader's own code in a thread: over all replicas, the rows of a step are those of the whole batch."""
    folder = tmp_path_factory.mktemp("ring")
    (folder / "t").write_bytes(bytes(range(200)))
    source = Batches(Shards([folder / "t"], [200], "uint8"), LENGTH, seed, MICRO_BATCHES, SIZE)
    samples = MICRO_BATCHES // dp * SIZE
    reported = {
        "paths": [str(folder / "t")], "counts": [200], "dtype": "uint8", "seq_len": LENGTH, "seed": seed,
        "micro_batches": MICRO_BATCHES, "micro_batch_size": SIZE, "samples": samples, "steps": first + 7,
    }  # fmt: skip
    ring = Ring.create(folder, dp + 1, slots, 2 * 8 * samples * LENGTH, reported)
    feeds = [SharedFeed(ring, replica, replica, PATIENCE_S) for replica in range(dp)]
    SharedFeed(ring, dp, None, 1.0)  # a rank in the middle of the pipeline takes none
    thread = threading.Thread(target=serve, args=(ring, lambda: False))
    thread.start()
    try:
        for step in range(first, first + 7):
            whole = source.read(step, range(MICRO_BATCHES))
            got = [feed.read(step) for feed in feeds]
            assert same((np.concatenate([g[0] for g in got]), np.concatenate([g[1] for g in got])), whole)
    finally:
        ring.closing = True
        thread.join()
        ring.close(remove=True)


def test_a_killed_loader_is_replaced_without_a_lost_or_repeated_sample(
    nodes: list[Node], shards: Shards, capfd: pytest.CaptureFixture[str]
) -> None:
    node = Node(batches(shards), [0, 0, 1], dp=2)
    nodes.append(node)
    own = [Inline(batches(shards), range(2 * r, 2 * r + 2)) for r in (0, 0, 1)]
    killed = set()
    for step in range(12):
        for got, feed in zip(node.read(step), own, strict=True):
            assert same(got, feed.read(step))
        if step in (3, 7):
            killed.add(node.loader.ring.pid)
            os.kill(node.loader.ring.pid, signal.SIGKILL)
    assert len(killed) == 2
    said = capfd.readouterr().err.splitlines()
    assert said == ["holdfast train: this node's loader died (killed by signal 9): starting another"] * 2


def test_ranks_may_be_steps_apart(nodes: list[Node], shards: Shards) -> None:
    node = Node(batches(shards), [0, 0], dp=1, ahead=2)
    nodes.append(node)
    own = Inline(batches(shards), range(4))
    fast, slow = node.feeds
    for step in range(3):
        assert same(fast.read(step), own.read(step))
    held = slow.read(0)
    copy = held[0].copy()
    time.sleep(0.1)
    assert (held[0] == copy).all()  # step 3 may not take its place before it is let go
    assert not node.loader.ring.has(3)
    assert same(slow.read(1), own.read(1))
    assert same(fast.read(3), own.read(3))


def test_a_block_that_does_not_match_its_checksum_is_not_there_yet(tmp_path: Path, shards: Shards) -> None:
    """Each replica's own: on a machine that orders writes loosely, a reader may see one whole and the other half."""
    block = 2 * 8 * SIZE * MICRO_BATCHES * LENGTH
    text = {"samples": SIZE * MICRO_BATCHES, "seq_len": LENGTH}
    writer = Ring.create(tmp_path, 2, 2, block, text)
    for replica in (0, 1):
        writer.register(replica, replica)
    reader = Ring.open(writer.path)
    pairs = [batches(shards, seed).read(0, range(MICRO_BATCHES)) for seed in (1, 2)]
    writer.put(0, pairs)
    assert all(same(reader.take(0, replica) or pairs[1 - replica], pairs[replica]) for replica in (0, 1))
    for half in (0, 1):  # inputs, targets
        written = writer.take(0, 1)
        assert written is not None
        written[half][-1, -1] ^= 1
        assert reader.take(0, 1) is None
        assert same(reader.take(0, 0) or pairs[1], pairs[0])
        written[half][-1, -1] ^= 1
        assert same(reader.take(0, 1) or pairs[0], pairs[1])
    reader.close()
    writer.close(remove=True)


def test_what_cannot_be_read_fails_the_step_that_needs_it(memory: Path, shards: Shards) -> None:
    loader = Loader(batches(shards), 8, 1, 2, 100)
    feed = SharedFeed(Ring.open(loader.ring.path), 0, 0, PATIENCE_S)
    try:
        os.truncate(shards.paths[2], 0)
        with pytest.raises(TrainingError, match=r"step 0: no batch: ValueError: .*0 bytes instead of 458"):
            feed.read(0)
    finally:
        feed.close()
        loader.close()


def test_loaders_that_die_at_once_end_the_run(
    memory: Path, shards: Shards, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    loader = Loader(batches(shards), 8, 1, 2, 100)
    feed = SharedFeed(Ring.open(loader.ring.path), 0, 0, PATIENCE_S)
    try:
        with pytest.raises(TrainingError, match="died repeatedly"):
            feed.read(0)
        assert len(capfd.readouterr().err.splitlines()) == 3
    finally:
        feed.close()
        loader.close()


def test_only_what_the_dead_left_is_swept(tmp_path: Path) -> None:
    used = Ring.create(tmp_path, 1, 2, 64, {})
    code = (
        "import os, signal, sys; from pathlib import Path; from holdfast.trainer.data.ring import Ring;"
        "ring = Ring.create(Path(sys.argv[1]), 1, 2, 64, {}); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=60)
    (tmp_path / "other").write_text("")
    assert len(list(tmp_path.iterdir())) == 3
    assert sweep(tmp_path) == 1
    assert sorted(tmp_path.iterdir()) == sorted([used.path, tmp_path / "other"])
    used.close()
    del used  # the last to have it mapped
    assert sweep(tmp_path) == 1


def test_an_orphaned_loader_removes_its_ring(tmp_path: Path, shards: Shards, until: Until) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from holdfast.trainer.data import shared_feed as f;"
        "f.folder = lambda: Path(sys.argv[1]); from holdfast.trainer.data.batches import Batches;"
        "from holdfast.trainer.data.shards import Shards;"
        "b = Batches(Shards([Path(sys.argv[2])], [229], 'uint16'), 5, 0, 4, 2); l = f.Loader(b, 8, 1, 2, 9)\n"
        "while not l.ring.pid: pass\n"
        "print(l.ring.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    where = tmp_path / "memory"
    where.mkdir()
    command = [sys.executable, "-c", code, str(where), str(shards.paths[2])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S)
    assert int(done.stdout) > 0
    until(lambda: not list(where.iterdir()), PATIENCE_S)


def test_a_ring_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(8192))
    with pytest.raises(ValueError, match="not a ring"):
        Ring.open(tmp_path / "x")
    assert rings.folder().is_dir()
