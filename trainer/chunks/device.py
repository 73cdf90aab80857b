"""Parameter chunks on the device and in host memory, and the copies between the two.

A chunk's tensors are views of one piece of memory that is taken when the chunk comes and given back when it leaves, as
FSDP does it: what a graph has kept of a parameter is valid again as soon as its chunk is back. On a CPU an arena stands
for the device; copies are really made.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import torch
from torch import Tensor

from holdfast.plan.cache.arena import Arena, ArenaFullError
from holdfast.plan.cache.cache import Cache, Copy
from holdfast.plan.plan import Op
from holdfast.trainer.chunks.moments import Evict, Moment, Moments
from holdfast.trainer.optim.host.lanes import Lane, Lanes, lanes_of
from holdfast.trainer.optim.host.pinned import pin, zeros
from holdfast.trainer.settings.chunk_layout import WARM_UP, Chunks
from holdfast.trainer.telemetry import spans

CHUNKS, GATHERED, GRADIENTS, OPTIMIZER, ACTIVATIONS = "chunks", "gathered", "gradients", "optimizer", "activations"
"""What bytes of the device are for."""


class Memory:
    """One piece of the device's memory that comes and goes; views of it stay."""

    def __init__(self, elements: int, dtype: torch.dtype, device: torch.device) -> None:
        self.tensor = torch.empty(elements, dtype=dtype, device=device)
        self._storage = self.tensor.untyped_storage()
        self.num_bytes = self.tensor.nbytes
        self.give_back()

    @property
    def is_here(self) -> bool:
        """Whether it has its bytes."""
        return self._storage.nbytes() > 0

    @property
    def key(self) -> int:
        """What `key_of` says of its views."""
        return key_of(self.tensor)

    def take(self) -> Tensor:
        """With bytes again, of whatever values."""
        self._storage.resize_(self.num_bytes)
        return self.tensor

    def give_back(self) -> None:
        """Without bytes."""
        self._storage.resize_(0)


def key_of(tensor: Tensor) -> int:
    """The same for all views of one piece of memory, wherever it lies at the moment."""
    return int(tensor.untyped_storage()._cdata)


class Device:
    """A replica's own chunks: on the device or in host memory, as `Cache` decides."""

    def __init__(
        self,
        chunks: Chunks,
        dtype: torch.dtype,
        device: torch.device,
        capacity: int | None,
        evict: str,
        lanes: Lanes | None = None,
    ) -> None:
        """`capacity` in bytes, None: without limit. `evict`: a name in `POLICIES`."""
        count, elements = chunks.num_groups, chunks.layout.chunk_size
        self._chunks, self._device, self._capacity = chunks, device, capacity
        self._lanes = lanes or lanes_of(device)
        whole = zeros(count * elements, dtype)
        self.host = list(whole.view(count, elements))
        """By group; what is there is valid while the chunk is not on the device, or was not written there."""
        if device.type == "cuda":
            # At once: neighbours share pages.
            pin([whole], self, "memory.policy = chunks", "memory.policy = whole")
        self.own = [Memory(elements, dtype, device) for _ in range(count)]
        """By group."""
        self.arena = Arena("device", capacity)
        self.moments = Moments(capacity)
        sizes = dict.fromkeys(range(count), chunks.chunk_bytes)
        self._cache = Cache(sizes, self.arena, Evict(evict, self.moments), kind=CHUNKS)
        self._pinned: Collection[int] = ()
        self._turns: dict[Op, int] = {}
        self.fetched = self.evicted = 0
        """Bytes that came and that went since the step began."""

    @property
    def held(self) -> Collection[int]:
        """Groups whose own chunk is on the device."""
        return self._cache.held

    def begin(self) -> None:
        """A step begins."""
        self._turns = {Op.FETCH: 0, Op.EVICT: 0}
        self.moments.begin()
        self.fetched = self.evicted = 0

    def need(self, moment: Moment) -> None:
        """Have the moment's groups where it needs them."""
        self._observe()
        limit = self.moments.next(moment)
        if moment.is_on_host:
            self._pinned = ()
            for group in moment.groups:
                if group in self._cache.held:
                    self._do([self._cache.drop(group)])
            self._lanes.settle()
        else:
            self._pinned = moment.groups
            if self.moments.is_recording and self._capacity is not None:
                wanted = len(moment.groups) * self._chunks.chunk_bytes
                limit = max(int(self._capacity * WARM_UP), wanted)
            self._do(self._cache.need(moment.groups, self.moments.now, written=moment.is_written, limit=limit))
        self._beside()

    def forget(self, group: int) -> None:
        """What the device has of a group is worthless."""
        if group in self._cache.held:
            self._cache.forget(group)
            self.own[group].give_back()

    def take(self, kind: str, num_bytes: int) -> None:
        """Count bytes for something else; chunks that are not needed now make room. ArenaFullError if they can't."""
        if num_bytes > self.arena.free:
            try:
                self._do(self._cache.clear(num_bytes, self.moments.now, self._pinned))
            except ArenaFullError as error:
                raise ArenaFullError(
                    f"memory.policy = chunks: no room for {num_bytes:,} bytes of {kind} ({error}); raise "
                    "memory.device_bytes, lower train.micro_batch_size, or set train.recompute = full"
                ) from None
        self.arena.take(kind, num_bytes)
        self._beside()

    def release(self, kind: str, num_bytes: int) -> None:
        """The opposite of `take`."""
        self.arena.release(kind, num_bytes)

    def _beside(self) -> None:
        self.moments.beside(self.arena.used - self.arena.used_by.get(CHUNKS, 0))

    def _observe(self) -> None:
        """A GPU's allocator knows the most that was there since the last moment."""
        if self._device.type == "cuda" and self.moments.is_recording:
            most = torch.cuda.max_memory_allocated(self._device)
            self.moments.beside(most - self.arena.used_by.get(CHUNKS, 0))
            torch.cuda.reset_peak_memory_stats(self._device)

    def _do(self, copies: Iterable[Copy[int]]) -> None:
        for copy in copies:
            if copy.op is Op.FETCH:
                self._moving(copy, self._fetch)
                self.fetched += copy.size
            elif copy.size:
                self._moving(copy, self._evict)
                self.evicted += copy.size
            else:
                self._free(copy.key)

    def _moving(self, copy: Copy[int], work: Callable[[int], None]) -> None:
        turn = self._turns[copy.op]
        self._turns[copy.op] += 1
        with spans.action(copy.op, 0, turn=turn, num_bytes=copy.size):
            work(copy.key)

    def _fetch(self, group: int) -> None:
        # Behind what went out, which may have been this chunk; and memory may still be in use by what was computed.
        self._lanes.wait(Lane.IN, self._lanes.mark(Lane.OUT))
        here, there = self.own[group].take(), self.host[group]
        self._lanes.wait(Lane.IN, self._lanes.mark(Lane.COMPUTE))
        self._lanes.do(Lane.IN, lambda: _copy(here, there))
        self._lanes.wait(Lane.COMPUTE, self._lanes.mark(Lane.IN))

    def _evict(self, group: int) -> None:
        here, there = self.own[group].tensor, self.host[group]
        self._lanes.wait(Lane.OUT, self._lanes.mark(Lane.COMPUTE))
        self._lanes.do(Lane.OUT, lambda: _copy(there, here))
        self._free(group)

    def _free(self, group: int) -> None:
        # Whatever takes this memory next waits for what reads it.
        self._lanes.wait(Lane.COMPUTE, self._lanes.mark(Lane.OUT))
        self.own[group].give_back()


def _copy(into: Tensor, source: Tensor) -> None:
    into.copy_(source, non_blocking=True)
