"""Tensors as plain bytes with a place in a global tensor: what moves between files, memory and workers. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.checkpoint.format.checksum import Buffer as Buffer
from holdfast.checkpoint.format.tiles import Box, GlobalTensor


@dataclass(frozen=True, slots=True)
class HeldShard:
    """The elements of one box in memory."""

    tensor: GlobalTensor
    box: Box
    data: npt.NDArray[Any]
    """Of the box's shape; elements are unsigned integers of the right width, whatever they mean."""

    def part(self, box: Box) -> npt.NDArray[Any]:
        """A view of a box of the global tensor that lies inside."""
        where: Any = (*box.within(self.box).slices, ...)  # the dots keep a number without dimensions an array
        view: npt.NDArray[Any] = self.data[where]
        return view


def held(tensor: GlobalTensor, box: Box, memory: Buffer) -> HeldShard:
    """A box whose elements lie in `memory` in row-major order; writable if that is. ValueError for a wrong size."""
    return HeldShard(tensor, box, np.frombuffer(memory, dtype=f"u{tensor.item_bytes}").reshape(box.size))


def new(tensor: GlobalTensor, box: Box) -> HeldShard:
    """A box with memory of its own, not set."""
    return HeldShard(tensor, box, np.empty(box.size, dtype=f"u{tensor.item_bytes}"))


def to_bytes(array: npt.NDArray[Any]) -> memoryview:
    """The elements in row-major order; a copy only if they do not lie so."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data if flat.size else memoryview(b"")
