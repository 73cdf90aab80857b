"""Chunks between a device, for which an arena stands, and host memory: values, bytes, and what makes room."""

from __future__ import annotations

import pytest
import torch

from holdfast.plan.cache.arena import ArenaFullError
from holdfast.trainer.chunks.device import GRADIENTS, Device, Memory, key_of
from holdfast.trainer.chunks.moments import Moment
from holdfast.trainer.settings.chunk_layout import Words, in_chunks

CPU = torch.device("cpu")
CHUNK = 4 * 64
"""Bytes of a chunk: one tensor of 64 elements."""


def made(capacity: int | None, evict: str = "lru", count: int = 3) -> Device:
    sizes = {f"layers.{n}.weight": 64 for n in range(count)}
    units = {name: (name,) for name in sizes}
    chunks = in_chunks(sizes, units, Words(4, 12), 1, device_bytes=0, chunk_bytes=CHUNK)
    assert (chunks.num_groups, chunks.chunk_bytes) == (count, CHUNK)
    return Device(chunks, torch.float32, CPU, capacity, evict)


def here(device: Device) -> list[int]:
    """Groups that have memory on the device, which are those that the cache holds."""
    found = [group for group, memory in enumerate(device.own) if memory.is_here]
    assert found == sorted(device.held)
    assert device.arena.used_by.get("chunks", 0) == CHUNK * len(found)
    return found


def test_memory_comes_and_goes_below_its_views() -> None:
    memory = Memory(8, torch.float32, CPU)
    assert (memory.is_here, memory.num_bytes) == (False, 32)
    view = memory.take()[2:4]
    memory.give_back()
    assert not memory.is_here
    memory.take().fill_(3.0)
    assert memory.is_here
    assert view.tolist() == [3, 3]
    assert memory.key == key_of(view) != key_of(torch.zeros(8))


def test_what_was_written_is_what_comes_back() -> None:
    """In the first step chunks get a fifth of the device, or what one moment needs: here one chunk."""
    device = made(2 * CHUNK)
    device.begin()
    device.need(Moment((0,), is_written=True))
    device.own[0].tensor.fill_(7.0)
    device.need(Moment((1,)))
    assert here(device) == [1]
    assert device.host[0].eq(7).all()
    assert (device.fetched, device.evicted) == (2 * CHUNK, CHUNK)
    device.need(Moment((0,)))
    assert device.own[0].tensor.eq(7).all()
    # Chunk 1 was not written: it went without a copy, and so does 0 now, whose copy in host memory is the same.
    assert (device.fetched, device.evicted) == (3 * CHUNK, CHUNK)
    device.need(Moment((2,)))
    assert (here(device), device.fetched, device.evicted) == ([2], 4 * CHUNK, CHUNK)
    device.begin()
    assert (device.fetched, device.evicted) == (0, 0)


@pytest.mark.parametrize(("capacity", "held"), [(10 * CHUNK, [1, 2]), (14 * CHUNK, [1, 2]), (15 * CHUNK, [0, 1, 2])])
def test_a_fifth_of_the_device_while_nothing_is_known(capacity: int, held: list[int]) -> None:
    device = made(capacity)
    device.begin()
    for group in range(3):
        device.need(Moment((group,)))
    assert here(device) == held
    endless = made(None)
    endless.begin()
    for group in range(3):
        endless.need(Moment((group,)))
    assert here(endless) == [0, 1, 2]


def test_a_group_is_taken_to_host_memory_where_the_host_updates_it() -> None:
    device = made(None)
    device.begin()
    device.need(Moment((0, 1), is_written=True))
    device.own[0].tensor.fill_(5.0)
    device.need(Moment((0, 2), is_on_host=True))
    assert here(device) == [1]
    assert device.host[0].eq(5).all()
    assert (device.fetched, device.evicted) == (2 * CHUNK, CHUNK)


def test_what_is_forgotten_goes_without_a_copy() -> None:
    device = made(None)
    device.begin()
    device.need(Moment((0,), is_written=True))
    device.own[0].tensor.fill_(5.0)
    device.forget(0)
    device.forget(1)
    assert (here(device), device.evicted) == ([], 0)
    assert device.host[0].eq(0).all()


def test_other_bytes_make_chunks_leave_that_are_not_needed_now() -> None:
    device = made(15 * CHUNK)
    device.begin()
    for group in range(3):
        device.need(Moment((group,)))
    device.take(GRADIENTS, 12 * CHUNK)  # which is what is free
    assert here(device) == [0, 1, 2]
    device.take(GRADIENTS, CHUNK + 1)
    assert (here(device), device.arena.used_by[GRADIENTS]) == ([2], 13 * CHUNK + 1)
    # The one that is needed now stays.
    with pytest.raises(ArenaFullError, match=r"memory.policy = chunks: no room for 256 bytes of gradients .*raise"):
        device.take(GRADIENTS, CHUNK)
    assert here(device) == [2]
    device.release(GRADIENTS, 13 * CHUNK + 1)
    assert device.arena.used == CHUNK


def test_what_is_besides_chunks_is_known_from_the_second_step_on() -> None:
    """The most bytes of a moment, those among them that have gone again."""
    device = made(10 * CHUNK, "belady")
    device.begin()
    device.need(Moment((0,)))
    device.take(GRADIENTS, 3 * CHUNK)
    device.release(GRADIENTS, 2 * CHUNK)
    device.need(Moment((1,)))  # one chunk's bytes of gradients are still there
    device.moments.end(range(0), 0, 0)
    assert list(device.moments.limits) == [7 * CHUNK, 9 * CHUNK]
    device.release(GRADIENTS, CHUNK)
    device.begin()
    device.need(Moment((0,)))
    device.need(Moment((1,)))
    assert here(device) == [0, 1], "now that the rest is known there is room for both"
