"""Snapshots of tensors on a real GPU: right bytes whatever comes before and behind, speed, and pages given back.

python snapshot_copies.py FOLDER MEGABYTES ROUNDS

Prints a line of JSON. FOLDER is on a file system in memory.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from holdfast.checkpoint.format.tiles import GlobalTensor
from holdfast.checkpoint.snapshots.arena import Arena
from holdfast.checkpoint.snapshots.description import Description
from holdfast.checkpoint.worker import page_lock
from holdfast.checkpoint.worker.snapshot import Snapshotter

COUNT = 16
_LATE_CYCLES = 100_000_000  # some 50 ms


def main() -> None:
    folder, elements, rounds = Path(sys.argv[1]), int(sys.argv[2]) * 250_000 // COUNT, int(sys.argv[3])
    device = torch.device("cuda", 0)
    held = {f"t{n}": GlobalTensor(f"t{n}", (elements,), "F32") for n in range(COUNT)}
    what = Description("gpu", 0, 1, "", held, [(name, one.shard) for name, one in held.items()])
    tensors = [torch.zeros(elements, device=device) for _ in held]
    found: dict[str, Any] = {"bytes": what.num_bytes, **_sharing_pages()}

    begun = time.perf_counter()
    arena = Arena.create(folder / "one.snap", what, slots=2, prepare=False)
    snapshotter = _ready(arena, device)
    found["prepare_s"] = time.perf_counter() - begun
    begins, waits, sums = [], [], []
    wrong = 0
    for step in range(1, rounds + 1):
        torch.cuda._sleep(_LATE_CYCLES if step % 2 else 1)  # the values come late
        torch._foreach_zero_(tensors)
        torch._foreach_add_(tensors, float(step))
        if not step % 2:
            torch.cuda.synchronize()
        at = time.perf_counter()
        assert snapshotter.begin(step, 1, {}, tensors)
        begun = time.perf_counter()
        snapshotter.wait_copied()
        copied = time.perf_counter()
        torch._foreach_add_(tensors, 1e6)  # what the next update would do
        made = snapshotter.finish()
        done = time.perf_counter()
        assert made is not None
        begins.append(begun - at)
        if not step % 2:
            waits.append(copied - at)
            sums.append(done - copied)
        wrong += _wrong(arena, made.slot, step)
    found |= {"wrong": wrong, "begin_us": median(begins) * 1e6, "begin_most_us": max(begins) * 1e6}
    found |= {"copy_gb_s": what.num_bytes / median(waits) / 1e9, "sums_gb_s": what.num_bytes / median(sums) / 1e9}
    found["plain_gb_s"] = _plain(elements, tensors)

    # Without waiting for what was computed before, the copy takes what was there.
    assert snapshotter._stream is not None
    torch.cuda.synchronize()
    snapshotter._stream = _Heedless(snapshotter._stream)  # type: ignore[assignment]
    torch.cuda._sleep(20 * _LATE_CYCLES)
    torch._foreach_zero_(tensors)
    assert snapshotter.begin(rounds + 1, 1, {}, tensors)
    made = snapshotter.finish()
    assert made is not None
    found["wrong_without_start"] = _wrong(arena, made.slot, 0)
    torch.cuda.synchronize()

    addresses = [(_address(arena, slot), len(arena.memory(slot))) for slot in range(arena.slots)]
    found["registered_before_close"] = [_register(*one) for one in addresses]
    snapshotter.close()
    found["registered_behind_close"] = [_register(*one) for one in addresses]
    arena.close()
    # A process that restarts takes up the same file; here, this one.
    again = Arena.create(folder / "one.snap", what, slots=2, prepare=False)
    found["kept_steps"] = [one.step for one in again.snapshots()]
    snapshotter = _ready(again, device)
    torch._foreach_zero_(tensors)
    assert snapshotter.begin(rounds + 2, 1, {}, tensors)
    made = snapshotter.finish()
    assert made is not None
    found["wrong_again"] = _wrong(again, made.slot, 0)
    snapshotter.close()
    again.close()
    print(json.dumps(found))


def _ready(arena: Arena, device: torch.device) -> Snapshotter:
    snapshotter = Snapshotter(arena, device)
    give_up = time.monotonic() + 30
    while not snapshotter.is_ready:
        assert time.monotonic() < give_up, "the arena is not ready within 30 s"
        time.sleep(0.01)
    return snapshotter


class _Heedless:
    """A stream that waits for no event."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def wait_event(self, event: object) -> None:
        pass

    @property
    def __class__(self) -> type:  # `torch.cuda.stream` wants one of its own
        return torch.cuda.Stream


def _wrong(arena: Arena, slot: int, value: float) -> int:
    """Elements of tensors that are not `value`; between the tensors lie bytes that align them."""
    memory, wrong = arena.memory(slot), 0
    for entry in arena.description.entries:
        found = np.frombuffer(memory, np.float32, entry.shard.count, entry.start)
        wrong += int(np.count_nonzero(found != np.float32(value)))
    return wrong


def _plain(elements: int, tensors: list[torch.Tensor]) -> float:
    """GB/s into torch's own pinned memory, one copy behind the other."""
    into = torch.empty(elements, pin_memory=True)
    times = []
    for _ in range(3):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for tensor in tensors:
            into.copy_(tensor, non_blocking=True)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return 4 * elements * len(tensors) / min(times) / 1e9


def _address(arena: Arena, slot: int) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(arena.memory(slot)))


def _register(address: int, size: int) -> int:
    """What the driver answers; what it took is given back."""
    code = page_lock.lock(address, size)
    if not code:
        page_lock.unlock(address)
    return code


def _sharing_pages() -> dict[str, Any]:
    """What the driver says of two ranges in one page: 0, or an error; and what torch says behind the error."""
    page = mmap.mmap(-1, 4 * mmap.PAGESIZE)
    at = ctypes.addressof(ctypes.c_char.from_buffer(page))
    codes = [page_lock.lock(at + n * 1024, 1024) for n in range(2)]
    behind = ""
    try:
        torch.ones(1, device="cuda").add_(1)
    except RuntimeError as error:
        behind = str(error).splitlines()[0]
    for n, code in enumerate(codes):
        if not code:
            page_lock.unlock(at + n * 1024)
    return {"two_ranges_of_a_page": codes, "behind_an_error": behind}


if __name__ == "__main__":
    main()
