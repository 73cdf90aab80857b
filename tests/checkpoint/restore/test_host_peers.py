"""Workers of one host share what one of them has read; a host gets it once, and no worker gets it wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from file_stores import CountingStore
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from jobs import STATE, assert_step, save_all
from layouts import layouts, tensors
from threads import ThreadGroup, on_ranks

from holdfast.checkpoint.commit.fence import claim
from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.format.tiles import GlobalTensor, Layout
from holdfast.checkpoint.restore.host_peers import SLOTS, HostPeers, _seen_from_outside, _Slots, this_host
from holdfast.checkpoint.restore.restore import Restored, restore
from holdfast.checkpoint.stores.file import FileStore
from holdfast.checkpoint.stores.folder import Slot
from holdfast.checkpoint.stores.store import Store

MIB = 1 << 20
BIG = {f"w{i}": GlobalTensor(f"w{i}", (256, 1024), "F32") for i in range(24)}  # of 24 MiB
EVERYWHERE = Layout(BIG, [{name: [tensor.shard] for name, tensor in BIG.items()}] * 4)


def back(
    store: Store, layout: Layout, hosts: Sequence[str], warnings: list[str] | None = None
) -> tuple[list[Restored | None], list[int]]:
    """What each rank gets, and the bytes that each sent."""

    def work(group: ThreadGroup) -> tuple[Restored | None, int]:
        say = (warnings if warnings is not None else []).append
        found = restore(store, group, layout=layout, state=STATE, warn=say)
        return found, group.bytes_sent

    both = on_ranks(len(layout.held), work, hosts)
    return [found for found, _ in both], [sent for _, sent in both]


@pytest.fixture
def kept(tmp_path: Path) -> CountingStore:
    store = CountingStore(tmp_path)
    assert all(saved.ok for saved in save_all(store, claim(store, "job", 0), 1, EVERYWHERE))
    return store


@pytest.mark.parametrize(("hosts", "gets"), [("aaaa", 0), ("aabb", 1), ("abbb", 1), ("abcd", 3)])
def test_each_byte_is_read_once_and_sent_once_to_each_other_host(kept: CountingStore, hosts: str, gets: int) -> None:
    found, sent = back(kept, EVERYWHERE, hosts)
    assert_step(found, 1, EVERYWHERE)
    assert 24 * MIB <= kept.given <= 1.01 * 24 * MIB
    assert gets * 24 * MIB <= sum(sent) < gets * 24 * MIB + 1000  # a byte for each span that is shown or seen


@given(st.data())
@hypothesis_settings(max_examples=25, deadline=None)
def test_any_layout_on_any_hosts(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    of = data.draw(tensors())
    before, after = data.draw(layouts(of)), data.draw(layouts(of))
    hosts = [data.draw(st.sampled_from("ab")) for _ in after.held]
    store = FileStore(tmp_path_factory.mktemp("any"))
    assert all(saved.ok for saved in save_all(store, claim(store, "job", 0), 7, before))
    assert_step(back(store, after, hosts)[0], 7, after)


def test_what_cannot_be_read_is_reported_and_no_worker_waits(tmp_path: Path) -> None:
    store, lines = FileStore(tmp_path), list[str]()
    fence = claim(store, "job", 0)
    for step in (1, 2):
        save_all(store, fence, step, EVERYWHERE)
    part = next((store.root / Slot(2, fence.term).folder).glob("*.safetensors"))
    content = bytearray(part.read_bytes())
    content[-5] ^= 1
    part.write_bytes(content)
    found, _ = back(store, EVERYWHERE, "aabb", lines)
    assert_step(found, 1, EVERYWHERE)
    assert len(lines) == 1
    assert "corrupt" in lines[0]
    part = next((store.root / Slot(1, fence.term).folder).glob("*.safetensors"))
    part.unlink()
    with pytest.raises(CheckpointError, match="none of the 2 checkpoints"):
        back(store, EVERYWHERE, "aaaa")


def test_without_room_all_goes_by_messages(kept: CountingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    found, sent = back(kept, EVERYWHERE, "aaaa")
    assert_step(found, 1, EVERYWHERE)
    assert sum(sent) == 3 * 24 * MIB


def test_one_for_each_host_and_its_host_peers() -> None:
    near = HostPeers(ThreadlessWire(4), ["a", "a", "b", "b", "b"])
    assert near.line(0, (0, 1, 2, 3, 4)) == [0, 2]
    assert near.line(3, (1, 4)) == [3, 1]
    assert near.beside(0, (0, 1, 2)) == (1,)
    assert near.beside(2, (3, 4)) == (3, 4)
    assert near.speaker([0, 2]) == 2
    apart = HostPeers(ThreadlessWire(4))
    assert apart.line(0, (0, 1, 4)) == [0, 1, 4]
    assert apart.beside(0, (0, 1)) == ()
    assert apart.speaker([0, 1, 4]) == 4


class ThreadlessWire:
    """Knows its own index."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def send(self, *_: object) -> None:
        raise AssertionError

    receive = send


def test_another_process_sees_these_slots_and_no_others() -> None:
    slots = _Slots(MIB)
    slots.memory[5 * MIB + 7] = 99
    code = (
        "import sys\n"
        "from holdfast.checkpoint.restore.host_peers import _seen_from_outside, this_host\n"
        "memory = _seen_from_outside(sys.argv[1], 1 << 20)\n"
        "print(this_host(), len(memory), memory[(5 << 20) + 7])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, slots.where], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [this_host(), str(SLOTS * MIB), "99"]
    pid, number, _ = slots.where.split()
    with pytest.raises(ValueError, match="another owner"):
        _seen_from_outside(f"{pid} {number} {'0' * 32}", MIB)
    slots.close_file()
    assert np.frombuffer(slots.memory, np.uint8).sum() == 99
    with pytest.raises(OSError, match=r"No such file"):
        _seen_from_outside(slots.where, MIB)
