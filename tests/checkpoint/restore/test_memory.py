"""Restore from memory: whatever is in the memory of any node, the newest complete step is restored."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.format.checksum import checksums
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.tiles import GlobalTensor, Layout
from holdfast.checkpoint.restore.memory import _Memory, restore_from_memory
from holdfast.checkpoint.restore.restore import Restored, always
from holdfast.checkpoint.snapshots.arena import Arena
from holdfast.checkpoint.snapshots.description import Description
from holdfast.checkpoint.snapshots.peers import choose_peers
from holdfast.plan.tiles import TensorShard
from holdfast.wire.rollback import Rollback, counts
from tests.checkpoint.support.layouts import filled, layouts, tensors
from tests.checkpoint.support.threads import ThreadGroup, on_ranks

W = GlobalTensor("w", (8, 6), "F32")


def rows(*ranges: tuple[int, int]) -> Layout:
    """Row ranges of one tensor, one for each worker."""
    return Layout({"w": W}, [{"w": [TensorShard((low, 0), (high - low, 6))]} for low, high in ranges])


HALVES = rows((0, 4), (4, 8))


def put(
    folder: Path, layout: Layout, worker: int, step: int, generation: int = 0, prefix: str = "own", content: int = 0
) -> Path:
    """A snapshot of what `worker` holds, its tensors made from the step, or from another number."""
    held = [(name, shard) for name, shards in layout.held[worker].items() for shard in shards]
    description = Description("job", worker, len(layout.held), "same", layout.tensors, held)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{prefix}-w{worker:05d}.snap"
    arena = Arena.create(path, description)
    slot = arena.begin()
    assert slot is not None
    for name, shards in arena.held(slot).items():
        for one in shards:
            one.data[...] = filled(layout.tensors[name], content or step)[one.shard.slices]
    arena.commit(slot, step, generation, {"applied": step}, checksums(arena.memory(slot)))
    arena.close()
    return path


def back(
    root: Path,
    nodes: Sequence[str],
    layout: Layout,
    at_least: int = 0,
    lines: list[str] | None = None,
    counts: Callable[[Manifest], bool] = always,
    have_own: bool = False,
) -> list[tuple[Restored, str] | None]:
    """What each rank gets; `nodes` says where each of them is."""

    def work(group: ThreadGroup) -> tuple[Restored, str] | None:
        return restore_from_memory(
            group, layout=layout, job="job", settings="same", node=nodes[group.rank],
            folder=root / nodes[group.rank], at_least=at_least, warn=(lines if lines is not None else []).append,
            counts=counts, have_own=have_own,
        )  # fmt: skip

    return on_ranks(len(nodes), work)


def check(found: Sequence[tuple[Restored, str] | None], layout: Layout, step: int, source: str) -> None:
    for rank, one in enumerate(found):
        assert one is not None
        restored, origin = one
        assert (restored.manifest.step, restored.manifest.values, origin) == (step, {"applied": step}, source)
        for name, shards in layout.held[rank].items():
            for shard, held in zip(shards, restored.held[name], strict=True):
                assert np.array_equal(held.data, filled(layout.tensors[name], step)[shard.slices])


def test_each_worker_reads_its_own_and_no_byte_twice(tmp_path: Path) -> None:
    for step in (1, 2):
        for worker in (0, 1):
            put(tmp_path / f"n{worker}", HALVES, worker, step)
    found = back(tmp_path, ["n0", "n1"], HALVES)
    check(found, HALVES, 2, "memory")
    assert [one[0].bytes_read for one in found if one] == [128, 128]  # 96, on a multiple of 64


def test_what_does_not_count_is_passed_over(tmp_path: Path) -> None:
    """Going back to step 5: what generation 1 kept later is left, what generation 2 keeps is not."""
    backs = (Rollback(5, 2),)

    def allowed(manifest: Manifest) -> bool:
        return counts(backs, manifest.step, manifest.generation)

    for worker in (0, 1):
        for step, generation in ((5, 1), (9, 1)):
            put(tmp_path / "n0", HALVES, worker, step, generation)
    check(back(tmp_path, ["n0", "n0"], HALVES, counts=allowed), HALVES, 5, "memory")
    for worker in (0, 1):
        put(tmp_path / "n0", HALVES, worker, 6, 2)
    check(back(tmp_path, ["n0", "n0"], HALVES, counts=allowed), HALVES, 6, "memory")


def test_what_is_on_ones_own_node_goes_through_no_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    four = rows((0, 8), (0, 8), (0, 8), (0, 8))
    put(tmp_path / "n0", four, 0, 3)
    sent: list[tuple[int, int]] = []
    send = ThreadGroup.send

    def watched(self: ThreadGroup, payload: Any, to: int) -> Any:
        sent.append((self.rank, to))
        return send(self, payload, to)

    monkeypatch.setattr(ThreadGroup, "send", watched)
    check(back(tmp_path, ["n0", "n0", "n1", "n1"], four), four, 3, "memory")
    assert len(sent) == 2
    assert {to for _, to in sent} == {2, 3}


def test_a_step_that_one_worker_did_not_complete_is_no_step(tmp_path: Path) -> None:
    for worker, steps in ((0, (1, 2)), (1, (1,))):
        for step in steps:
            put(tmp_path / "n0", HALVES, worker, step)
    check(back(tmp_path, ["n0", "n0"], HALVES), HALVES, 1, "memory")


def test_a_lost_node_comes_back_from_its_peer(tmp_path: Path) -> None:
    put(tmp_path / "n0", HALVES, 0, 3)
    put(tmp_path / "n0", HALVES, 1, 3, prefix="peer-n1")
    check(back(tmp_path, ["n0", "spare"], HALVES), HALVES, 3, "peer")


def test_without_its_peer_a_lost_node_is_the_stores_to_bring_back(tmp_path: Path) -> None:
    put(tmp_path / "n0", HALVES, 0, 3)
    assert back(tmp_path, ["n0", "spare"], HALVES) == [None, None]


def test_a_replica_elsewhere_is_as_good_as_a_peer(tmp_path: Path) -> None:
    twice = rows((0, 8), (0, 8))
    put(tmp_path / "n0", twice, 0, 3)
    check(back(tmp_path, ["n0", "spare"], twice), twice, 3, "memory")


def test_a_replica_has_not_what_another_worker_had_for_itself(tmp_path: Path) -> None:
    """A worker that was killed during its snapshot: of the step that only the others have, its own state is nowhere."""
    twice = rows((0, 8), (0, 8))
    for worker, steps in ((0, (1, 2)), (1, (1,))):
        for step in steps:
            put(tmp_path / "n0", twice, worker, step)
    check(back(tmp_path, ["n0", "n0"], twice, have_own=True), twice, 1, "memory")
    check(back(tmp_path, ["n0", "n0"], twice), twice, 2, "memory")
    # In a world of another size nobody gets a worker's own state back.
    three = rows((0, 8), (0, 8), (0, 8))
    check(back(tmp_path, ["n0", "n0", "n0"], three, have_own=True), three, 2, "memory")
    put(tmp_path / "n0", twice, 1, 2, prefix="peer-n1")
    check(back(tmp_path, ["n0", "n0"], twice, have_own=True), twice, 2, "peer")


def test_what_the_store_has_newer_is_not_taken_from_memory(tmp_path: Path) -> None:
    for worker in (0, 1):
        put(tmp_path / "n0", HALVES, worker, 3)
    assert back(tmp_path, ["n0", "n0"], HALVES, at_least=4) == [None, None]
    check(back(tmp_path, ["n0", "n0"], HALVES, at_least=3), HALVES, 3, "memory")


def test_generations_are_not_mixed(tmp_path: Path) -> None:
    put(tmp_path / "n0", HALVES, 0, 5, generation=1)
    put(tmp_path / "n0", HALVES, 1, 5, generation=0)
    assert back(tmp_path, ["n0", "n0"], HALVES) == [None, None]
    put(tmp_path / "n0", HALVES, 1, 5, generation=1)
    check(back(tmp_path, ["n0", "n0"], HALVES), HALVES, 5, "memory")


def test_a_flipped_bit_sends_to_the_peers_copy_and_then_to_an_older_step(tmp_path: Path) -> None:
    lines: list[str] = []
    for step in (1, 2):
        for worker in (0, 1):
            path = put(tmp_path / "n0", HALVES, worker, step)
    put(tmp_path / "n1", HALVES, 1, 2, prefix="peer-n0")
    flip(path, filled(W, 2)[4:8].tobytes())
    swapped = rows((4, 8), (0, 4))
    check(back(tmp_path, ["n0", "n1"], swapped, lines=lines), swapped, 2, "peer")
    assert lines == ["snapshot of step 2 passed over: own-w00001.snap of n0: corrupt within MiB 0"]
    flip(tmp_path / "n1" / "peer-n0-w00001.snap", filled(W, 2)[4:8].tobytes())
    check(back(tmp_path, ["n0", "n1"], swapped), swapped, 1, "memory")


def test_a_node_reads_its_copy_of_another_nodes_snapshot_and_nothing_is_sent(tmp_path: Path) -> None:
    """Three nodes, each with a copy of the one before it; the third is lost, and two workers go on."""
    three, two = rows((0, 3), (3, 5), (5, 8)), rows((0, 4), (4, 8))
    put(tmp_path / "n0", three, 0, 5)
    put(tmp_path / "n0", three, 2, 5, prefix="peer-n2")
    put(tmp_path / "n1", three, 1, 5)
    put(tmp_path / "n1", three, 0, 5, prefix="peer-n0")
    found = back(tmp_path, ["n0", "n1"], two)
    check(found, two, 5, "peer")
    # n0 lacks row 3, which n1 has; n1 lacks rows 5 to 7, which n0 has. A row is 6 numbers of 4 bytes.
    assert [one[0].bytes_sent for one in found if one] == [3 * 24, 24]
    for worker, prefix in ((0, "own"), (1, "peer-n1"), (2, "peer-n2")):
        put(tmp_path / "all", three, worker, 5, prefix=prefix)
        put(tmp_path / "n1", three, worker, 5, prefix=f"peer-{worker}")
    found = back(tmp_path, ["all", "n1"], two)
    check(found, two, 5, "peer")
    assert [one[0].bytes_sent for one in found if one] == [0, 0]


@pytest.mark.parametrize(
    ("nodes", "target"),
    [(["n0", "n1"], rows((4, 8), (0, 8))), (["n0", "n2", "n1"], rows((0, 4), (0, 8), (0, 4)))],
    ids=["read for itself", "read for another node"],
)
def test_memory_that_is_lost_in_the_middle_costs_one_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: list[str], target: Layout
) -> None:
    """What was checked cannot be read any more when it is needed: the copy on another node is taken."""
    put(tmp_path / "n1", HALVES, 0, 3)
    put(tmp_path / "n0", HALVES, 1, 3)
    put(tmp_path / "n1", HALVES, 1, 3, prefix="peer-n0")
    lines, read = list[str](), _Memory._read

    def lost(self: _Memory, part: Any, start: int, room: memoryview) -> memoryview:
        if self._folder.name == "n0":
            self._arenas.clear()
            self._folder /= "lost"
        return read(self, part, start, room)

    monkeypatch.setattr(_Memory, "_read", lost)
    check(back(tmp_path, nodes, target, lines=lines), target, 3, "peer")
    assert [line.partition(" of n0: ")[0] for line in lines] == ["snapshot of step 3 passed over: own-w00001.snap"], (
        "no other copy was in doubt"
    )


def test_a_copy_of_other_bytes_is_not_taken_for_the_same(tmp_path: Path) -> None:
    """A peer's copy of the same step that differs, as of an attempt that did not go on, is not looked at."""
    lines: list[str] = []
    for worker in (0, 1):
        put(tmp_path / "n0", HALVES, worker, 3)
    put(tmp_path / "n1", HALVES, 1, 3, prefix="peer-n0", content=9)
    check(back(tmp_path, ["n0", "n1"], HALVES, lines=lines), HALVES, 3, "memory")
    assert lines == []


def test_a_flipped_bit_in_another_nodes_copy_is_found(tmp_path: Path) -> None:
    """Two nodes read the same part, each its own copy of it, and each checks what it reads."""
    lines: list[str] = []
    both = rows((4, 8), (4, 8))
    for worker in (0, 1):
        put(tmp_path / "n0", HALVES, worker, 3)
    flip(put(tmp_path / "n1", HALVES, 1, 3, prefix="peer-n0"), filled(W, 3)[4:8].tobytes())
    check(back(tmp_path, ["n0", "n1"], both, lines=lines), both, 3, "memory")
    assert lines == ["snapshot of step 3 passed over: peer-n0-w00001.snap of n1: corrupt within MiB 0"]


def flip(path: Path, content: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[raw.index(content) + 5] ^= 1
    path.write_bytes(raw)


def test_files_that_are_none_are_passed_over(tmp_path: Path) -> None:
    for worker in (0, 1):
        put(tmp_path / "n0", HALVES, worker, 1)
    (tmp_path / "n0" / "own-w00009.snap").write_bytes(b"torn")
    check(back(tmp_path, ["n0", "n0"], HALVES), HALVES, 1, "memory")


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_any_layout_comes_back_as_any_other(data: st.DataObject) -> None:
    of: Mapping[str, GlobalTensor] = data.draw(tensors())
    source, target = data.draw(layouts(dict(of))), data.draw(layouts(dict(of)))
    # Every node that holds something must have a rank, or what it holds is out of reach.
    nodes = [f"n{data.draw(st.integers(0, 1))}" for _ in target.held]
    with tempfile.TemporaryDirectory() as root:
        for worker in range(len(source.held)):
            put(Path(root) / data.draw(st.sampled_from(nodes)), source, worker, 7)
        check(back(Path(root), nodes, target), target, 7, "memory")


@given(st.dictionaries(st.integers(0, 30).map(str), st.sampled_from("abcd"), max_size=20))
def test_peers_are_on_other_switches_where_there_is_a_choice(switches: dict[str, str]) -> None:
    peers = choose_peers(switches)
    if len(switches) < 2:
        assert peers == {}
        return
    assert sorted(peers) == sorted(peers.values()) == sorted(switches)
    assert all(node != peer for node, peer in peers.items())
    largest = max(list(switches.values()).count(one) for one in switches.values())
    if 2 * largest <= len(switches):
        assert all(switches[node] != switches[peer] for node, peer in peers.items())


def test_peers_do_not_depend_on_the_order_of_news() -> None:
    switches = {"a": "s0", "b": "s0", "c": "s1", "d": "s1"}
    assert choose_peers(switches) == choose_peers(dict(reversed(switches.items())))
    assert choose_peers({"a": "s", "b": "s"}) == {"a": "b", "b": "a"}
    assert choose_peers({"only": "s"}) == {}


@pytest.mark.parametrize("ranks", [1, 3])
def test_no_memory_at_all_is_no_restore(tmp_path: Path, ranks: int) -> None:
    assert back(tmp_path, ["n0"] * ranks, rows(*[(0, 8)] * ranks)) == [None] * ranks
