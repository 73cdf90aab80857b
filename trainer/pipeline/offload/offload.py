"""Activations beyond a cap are in host memory between a forward and its backward.

What leaves, and when, is decided in blocks.py. In the first step the sizes of blocks are not known: each is brought
back when it is needed. From then on, room for the largest block is kept free, the next block that is needed comes back
into it while another is computed, and what will leave is copied as soon as it is made.

Tensors are the same bits wherever they have been. What comes into a stage and what goes out is not moved: messages hold
it. Neither are parameters, nor whole numbers.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor

from holdfast.plan.cache.arena import Arena, ArenaFullError
from holdfast.plan.cache.cache import Cache, Copy
from holdfast.plan.cache.policy import Belady
from holdfast.plan.plan import Action, Op, Order
from holdfast.trainer.optim.host.lanes import Lane, Lanes, Mark, lanes_of
from holdfast.trainer.optim.host.pinned import own_pages, pin
from holdfast.trainer.pipeline.offload.blocks import Block, Uses, next_back, spare, trace_of, traffic, uses_of
from holdfast.trainer.pipeline.pieces import Piece
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.telemetry import spans


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes of a step."""

    out: int = 0
    back: int = 0


class Offload:
    """Of one rank's list."""

    def __init__(
        self,
        order: Order,
        pieces: Callable[[Action], Sequence[Piece]],
        capacity: int,
        device: torch.device,
        lanes: Lanes | None = None,
    ) -> None:
        """`capacity`: bytes of saved tensors on the device at most."""
        self.uses = uses_of(order, pieces)
        self._moments = {id(action): now for now, action in enumerate(order)}
        self._order, self.capacity, self._device = order, capacity, device
        self._lanes = lanes or lanes_of(device)
        self._policy = Belady(trace_of(self.uses))
        self._host = _Buffers(device.type == "cuda")
        self.held = self.peak = 0
        """Bytes of saved tensors on the device now, and the most that there were."""
        self.sizes: dict[Block, int] = {}
        """What each block held in the last step."""
        self.moved = Moved()
        """In the last step."""
        self._said = self.moved
        self._known: dict[Block, int] = {}
        self._spare = 0
        self._leaving: frozenset[Block] = frozenset()
        self.begin()

    def begin(self) -> None:
        """A step begins."""
        if self.sizes and self.sizes != self._known:
            self._known = self.sizes
            self._spare = spare(self.uses, self.sizes, self.capacity)
            self._leaving = traffic(self.uses, self.sizes, self.capacity - self._spare).leaving
        self._blocks: dict[Block, _Kept] = {}
        self._arena = Arena("activations", self.capacity - self._spare)
        self._cache: Cache[Block] = Cache({}, self._arena, self._policy, kind="activations")
        self._staged: Block | None = None
        self._now = 0
        self.sizes = {}

    def finish(self) -> None:
        """A step is over."""
        self.moved = Moved(self._cache.evicted, self._cache.fetched)

    def news(self, pipeline_rank: int) -> str | None:
        """One line on what the last step moved, if it is not what the one before moved."""
        if self.moved == self._said:
            return None
        self._said = self.moved
        return (
            f"activations of pipeline rank {pipeline_rank}: {self.moved.out} bytes to the host and {self.moved.back} "
            f"back in a step, {self.peak} on the device at most"
        )

    def around(self, action: Action, do: Callable[[], object]) -> Callable[[], object]:
        """The action, with what it needs brought here before it."""
        now = self._moments[id(action)]
        if self.uses[now] == Uses():
            return do

        def done() -> None:
            self._enter(now)
            do()
            self._leave(now)

        return done

    @contextmanager
    def recording(self, block: Block, module: nn.Module, *others: Tensor) -> Iterator[None]:
        """What graphs save from here to the end is of `block`, but the module's own memory and that of `others`."""
        kept = self._blocks.setdefault(block, _Kept())
        left_out = {_place(tensor) for tensor in chain(module.parameters(), module.buffers(), others)}

        def pack(tensor: Tensor) -> Any:
            if isinstance(tensor, DTensor) or tensor.device.type != self._device.type:
                return tensor
            storage = tensor.untyped_storage()
            if not tensor.is_floating_point() or not storage.nbytes() or storage.data_ptr() in left_out:
                return tensor
            return _Handle(self._record(block, kept, storage), tensor)

        with saved_tensors_hooks(pack, _unpack):
            yield

    def _record(self, block: Block, kept: _Kept, storage: torch.UntypedStorage) -> _Record:
        known = kept.at.get(storage.data_ptr())
        if known is not None and (record := known()) is not None:
            return record
        size = storage.nbytes()
        try:
            copies = self._cache.grow(block, size, self._now, kept=self.uses[self._now].made)
        except ArenaFullError:
            raise ConfigError(
                f"train.activation_bytes is {self.capacity}: stage {block[1]} saves more than that of what is computed "
                "at once; raise it, or lower train.micro_batch_size",
                is_local=True,
            ) from None
        self._do(copies)
        self.sizes[block] = self.sizes.get(block, 0) + size
        record = _Record(self, storage)
        self._count(size)
        kept.records.append(weakref.ref(record))
        kept.at[storage.data_ptr()] = kept.records[-1]
        return record

    def _enter(self, now: int) -> None:
        self._now = now
        # A stage whose only saved tensor is what came in has nothing to move.
        needed = [block for block in self.uses[now].needed if self.sizes.get(block)]
        if needed:
            self._do(self._cache.need(needed, now))
            for block in needed:
                # None: it was never away, and a GPU's stream waits for an event or not at all.
                if (arrived := self._blocks[block].arrived) is not None:
                    self._lanes.wait(Lane.COMPUTE, arrived)
        if self._spare and self._staged is None:
            following = next_back(self.uses, now, self._is_away)
            if following is not None and 0 < self.sizes.get(following, 0) <= self._spare:
                self._staged = following
                self._bring(following)

    def _leave(self, now: int) -> None:
        for block in self.uses[now].made:
            self.sizes.setdefault(block, 0)
            kept = self._blocks[block]
            kept.at.clear()  # another tensor may come to lie at the same place
            if block in self._leaving:
                self._copy_out(block)
        for block in self.uses[now].over:
            self._cache.forget(block)
            del self._blocks[block]

    def _is_away(self, block: Block) -> bool:
        return block in self._blocks and block not in self._cache.held and bool(self.sizes.get(block))

    def _do(self, copies: Sequence[Copy[Block]]) -> None:
        for copy in copies:
            if copy.op is Op.EVICT:
                self._drop(copy.key, copy.size)
            elif copy.key == self._staged:
                self._staged = None  # it is here already
            else:
                self._bring(copy.key)

    def _copy_out(self, block: Block) -> None:
        """Begin to copy a block to the host, unless that was done."""
        kept = self._blocks[block]
        if kept.copied is not _NOT:
            return
        self._lanes.wait(Lane.OUT, self._lanes.mark(Lane.COMPUTE))
        for record in kept.alive():
            assert record.storage is not None
            record.host = self._host.take(record.size)
            self._copy(Lane.OUT, record.host, _bytes(record.storage, self._device))
        kept.copied = self._lanes.mark(Lane.OUT)

    def _drop(self, block: Block, size: int) -> None:
        """Give a block's memory on the device back; `size` bytes have to be copied first."""
        with spans.operation("host:activations", size):
            self._copy_out(block)
            # What is computed next may get this memory.
            self._lanes.wait(Lane.COMPUTE, self._blocks[block].copied)
        for record in self._blocks[block].alive():
            record.storage = None
            self._count(-record.size)

    def _bring(self, block: Block) -> None:
        kept = self._blocks[block]
        with spans.operation("host:activations", sum(record.size for record in kept.alive())):
            alive = kept.alive()
            rooms = [torch.empty(record.size, dtype=torch.uint8, device=self._device) for record in alive]
            # The allocator gives memory that what was computed so far may still use, and with deterministic algorithms
            # torch fills it, behind all that. Computation has waited for the copy to the host, so this does, too.
            self._lanes.wait(Lane.IN, self._lanes.mark(Lane.COMPUTE))
            for record, there in zip(alive, rooms, strict=True):
                assert record.host is not None
                self._copy(Lane.IN, there, record.host)
                record.storage = there.untyped_storage()
                self._count(record.size)
            kept.arrived = self._lanes.mark(Lane.IN)

    def _copy(self, lane: Lane, target: Tensor, source: Tensor) -> None:
        def copy() -> None:
            target.copy_(source, non_blocking=True)

        self._lanes.do(lane, copy)

    def _count(self, size: int) -> None:
        self.held += size
        self.peak = max(self.peak, self.held)

    def gone(self, record: _Record) -> None:
        """No graph needs it any more."""
        if record.storage is not None:
            self._count(-record.size)
        if record.host is not None:
            self._host.give(record.host)


_NOT: Mark = object()
"""In place of a mark: that has not begun."""


class _Kept:
    """A block's memory."""

    def __init__(self) -> None:
        self.records: list[weakref.ref[_Record]] = []
        self.at: dict[int, weakref.ref[_Record]] = {}
        self.copied: Mark = _NOT
        self.arrived: Mark = None

    def alive(self) -> list[_Record]:
        return [record for one in self.records if (record := one()) is not None]


class _Record:
    """Memory that graphs of one block have saved: on the device, on the host, or in both."""

    def __init__(self, owner: Offload, storage: torch.UntypedStorage) -> None:
        self._owner, self.size = owner, storage.nbytes()
        self.storage: torch.UntypedStorage | None = storage
        self.host: Tensor | None = None

    def __del__(self) -> None:
        self._owner.gone(self)


class _Handle:
    """A tensor in a graph."""

    def __init__(self, record: _Record, tensor: Tensor) -> None:
        self.record, self._dtype = record, tensor.dtype
        self._place = tensor.storage_offset(), tensor.size(), tensor.stride()

    def tensor(self) -> Tensor:
        storage = self.record.storage
        assert storage is not None, "a backward through what is in host memory"
        return torch.empty(0, dtype=self._dtype, device=storage.device).set_(storage, *self._place)


class _Buffers:
    """Host memory that is used again: steps hold the same."""

    def __init__(self, is_pinned: bool) -> None:
        self._is_pinned = is_pinned
        self._free: defaultdict[int, list[Tensor]] = defaultdict(list)

    def take(self, size: int) -> Tensor:
        if self._free[size]:
            return self._free[size].pop()
        if not self._is_pinned:
            return torch.empty(size, dtype=torch.uint8)
        made = own_pages(size)
        pin([made], self, "train.activations = host", "train.activations = device")
        return made[:size]

    def give(self, buffer: Tensor) -> None:
        self._free[buffer.nbytes].append(buffer)


def _unpack(held: Any) -> Tensor:
    tensor: Tensor = held.tensor() if isinstance(held, _Handle) else held
    return tensor


def _bytes(storage: torch.UntypedStorage, device: torch.device) -> Tensor:
    whole = torch.empty(0, dtype=torch.uint8, device=device)
    return whole.set_(storage, 0, (storage.nbytes(),), (1,))


def _place(tensor: Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.untyped_storage().data_ptr()
