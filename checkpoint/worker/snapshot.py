"""Copies a worker's tensors into its arena while it goes on: the worker's side of stage 1.

What training sees of it is `begin`, which costs microseconds, and `wait_copied`, which must come before anything
changes the tensors again: the next optimizer step. Forward and backward of the next step run beside the copy. On a GPU
the copy is a side stream's and the slots are pinned; on a CPU it is one thread's, at the speed of memory.
"""

from __future__ import annotations

import ctypes
import os
import queue
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from holdfast.base.cores import cores_of_rank
from holdfast.checkpoint.errors import SnapshotRefused
from holdfast.checkpoint.format.checksum import checksums
from holdfast.checkpoint.snapshots.arena import Arena
from holdfast.checkpoint.snapshots.description import Snapshot
from holdfast.checkpoint.worker import page_lock
from holdfast.checkpoint.worker.torch_state import DTYPES

_SUMMING = 4
"""Threads for checksums, where there are cores. One reads 7 GB/s where a GPU copies 55: with one, a snapshot of 6 GB
takes longer than a step of 0.8 s."""

_SHORT_S = 0.2
"""A preparation that takes no longer is simply waited for."""


@dataclass(slots=True)
class _Task:
    slot: int
    step: int
    generation: int
    values: Mapping[str, Any]
    tensors: Sequence[Tensor]
    copied: threading.Event
    done: threading.Event
    start: torch.cuda.Event | None = None
    made: Snapshot | None = None
    error: BaseException | None = None


class Snapshotter:
    """Writes snapshots of one worker, one at a time. Used from one thread."""

    def __init__(self, arena: Arena, device: torch.device) -> None:
        """The arena is prepared here, beside training: until that is done no snapshot begins."""
        self.arena, self.device = arena, device
        self._targets = [self._tensors(slot) for slot in range(arena.slots)]
        self._stream: torch.cuda.Stream | None = None
        # On a CPU the cores compute.
        self._threads = 1
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch's
            self._threads = min(_SUMMING, cores_of_rank(os.environ))
        self._pinned: list[int] = []
        """Addresses of slots that are registered with the GPU's driver."""
        self._ready, self._closing = threading.Event(), threading.Event()
        self._refused: SnapshotRefused | None = None
        self._task: _Task | None = None
        self._queue: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="holdfast-snapshot", daemon=True)
        self._thread.start()
        self._ready.wait(_SHORT_S)

    @property
    def is_ready(self) -> bool:
        """Whether snapshots may begin. Raises SnapshotRefused when the memory was not there after all."""
        if self._refused is not None:
            raise self._refused
        return self._ready.is_set()

    def begin(self, step: int, generation: int, values: Mapping[str, Any], tensors: Sequence[Tensor]) -> bool:
        """Start a snapshot of the state after `step` steps; `tensors` in the order of the arena's shards.

        False when the arena is not yet ready, or no slot is free: the older of them is being uploaded. An earlier
        snapshot must have ended (`finish`). The tensors must not change before `wait_copied` returns.
        """
        assert self._task is None or self._task.done.is_set(), "one snapshot at a time"
        slot = self.arena.begin() if self.is_ready else None
        if slot is None:
            return False
        task = _Task(slot, step, generation, dict(values), tensors, threading.Event(), threading.Event())
        if self._stream is not None:
            task.start = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's
            task.start.record(torch.cuda.current_stream(self.device))
        self._task = task
        self._queue.put(task)
        return True

    def wait_copied(self) -> None:
        """Return when the tensors may change again."""
        if self._task is not None:
            self._task.copied.wait()

    def finish(self) -> Snapshot | None:
        """Wait for the snapshot that was begun last, if any, to be complete. Raises what made it fail."""
        task, self._task = self._task, None
        if task is None:
            return None
        task.done.wait()
        if task.error is not None:
            raise task.error
        return task.made

    def close(self) -> None:
        """End the thread when its work is done. The arena stays open."""
        self._closing.set()
        self._queue.put(None)
        self._thread.join()
        self._unpin()

    def _prepare(self) -> None:
        try:
            self.arena.prepare(self._closing.is_set)
            if self._stream is not None and not self._closing.is_set():
                self._pin()
        except SnapshotRefused as error:
            self._refused = error
        except Exception as error:
            self._refused = SnapshotRefused(f"{self.arena.path}: {type(error).__name__}: {error}")
        self._ready.set()

    def _work(self) -> None:
        self._prepare()
        while (task := self._queue.get()) is not None:
            try:
                self._copy(task)
                task.copied.set()
                sums = checksums(self.arena.memory(task.slot), self._threads)
                task.made = self.arena.commit(task.slot, task.step, task.generation, task.values, sums)
            except BaseException as error:  # whatever it is, it is the training thread's to raise
                task.error = error
                self.arena.drop(task.slot)
            finally:
                task.tensors = ()
                task.copied.set()
                task.done.set()

    def _copy(self, task: _Task) -> None:
        targets = self._targets[task.slot]
        if len(targets) != len(task.tensors):
            raise SnapshotRefused(f"{len(task.tensors)} tensors for an arena of {len(targets)} boxes")
        with torch.no_grad():
            if self._stream is None:
                torch._foreach_copy_(targets, [tensor.detach() for tensor in task.tensors])
                return
            assert task.start is not None
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(task.start)
                for target, tensor in zip(targets, task.tensors, strict=True):
                    target.copy_(tensor.detach(), non_blocking=True)
            self._stream.synchronize()

    def _tensors(self, slot: int) -> list[Tensor]:
        memory, description = self.arena.memory(slot), self.arena.description
        found = []
        for entry in description.entries:
            dtype = DTYPES[description.tensors[entry.tensor].dtype]
            if not entry.shard.count:
                found.append(torch.empty(entry.shard.size, dtype=dtype))
                continue
            flat = torch.frombuffer(memory, dtype=dtype, count=entry.shard.count, offset=entry.start)
            found.append(flat.reshape(entry.shard.size))
        return found

    def _pin(self) -> None:
        """Lock the slots' pages for the GPU's copy engine."""
        torch.cuda.set_device(self.device)  # of this thread
        for slot in range(self.arena.slots):
            memory = self.arena.memory(slot)
            address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            if code := page_lock.lock(address, len(memory)):
                self._unpin()
                raise SnapshotRefused(f"the GPU driver would not pin {len(memory) / 1e6:.1f} MB: error {code}")
            self._pinned.append(address)

    def _unpin(self) -> None:
        pinned, self._pinned = self._pinned, []
        for address in pinned:
            page_lock.unlock(address)
