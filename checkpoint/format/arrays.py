"""Tensors as plain bytes with a place in a global tensor: what moves between files, memory and workers. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.checkpoint.format.checksum import Buffer as Buffer
from holdfast.checkpoint.format.tiles import GlobalTensor
from holdfast.plan.tiles import TensorShard


@dataclass(frozen=True, slots=True)
class HeldShard:
    """The elements of one shard in memory."""

    tensor: GlobalTensor
    shard: TensorShard
    data: npt.NDArray[Any]
    """Of the shard's shape; elements are unsigned integers of the right width, whatever they mean."""

    def part(self, shard: TensorShard) -> npt.NDArray[Any]:
        """A view of a shard of the global tensor that lies inside."""
        where: Any = (*shard.within(self.shard).slices, ...)  # the dots keep a number without dimensions an array
        view: npt.NDArray[Any] = self.data[where]
        return view


def held(tensor: GlobalTensor, shard: TensorShard, memory: Buffer) -> HeldShard:
    """A shard whose elements lie in `memory` in row-major order; writable if that is. ValueError for a wrong size."""
    return HeldShard(tensor, shard, np.frombuffer(memory, dtype=f"u{tensor.item_bytes}").reshape(shard.size))


def new(tensor: GlobalTensor, shard: TensorShard) -> HeldShard:
    """A shard with memory of its own, not set."""
    return HeldShard(tensor, shard, np.empty(shard.size, dtype=f"u{tensor.item_bytes}"))


def to_bytes(array: npt.NDArray[Any]) -> memoryview:
    """The elements in row-major order; a copy only if they do not lie so."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data if flat.size else memoryview(b"")
