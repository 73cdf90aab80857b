"""What goes from one stage of a traced module to the next: several tensors side by side in one.

Those with a gradient are elements of the message, and get theirs from its gradient. The others, of whatever type, are
in it as they are in memory, bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Field:
    """One tensor of a message."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    order: tuple[int, ...]
    """Its dimensions in the order of its memory: what reads it shall find it as it was, or sums may differ."""
    has_gradient: bool

    @classmethod
    def of(cls, value: Tensor, has_gradient: bool) -> Field:
        strides = value.stride()
        order = tuple(sorted(range(value.dim()), key=lambda dim: (-strides[dim], dim)))
        if not value.permute(order).is_contiguous():
            order = tuple(range(value.dim()))
        return cls(tuple(value.shape), value.dtype, order, has_gradient)

    @property
    def in_memory(self) -> list[int]:
        """Its sizes in the order of its memory."""
        return [self.shape[dim] for dim in self.order]

    @property
    def back(self) -> tuple[int, ...]:
        """What undoes the order."""
        return tuple(sorted(range(len(self.order)), key=self.order.__getitem__))


@dataclass(frozen=True, slots=True)
class Message:
    """The tensors that cross one cut, in order."""

    fields: tuple[Field, ...]
    dtype: torch.dtype
    """Of the message, and of all that has a gradient."""

    @property
    def sizes(self) -> list[int]:
        """Elements of the message that each field takes."""
        return [
            math.prod(one.shape)
            if one.has_gradient
            else math.ceil(math.prod(one.shape) * one.dtype.itemsize / self.dtype.itemsize)
            for one in self.fields
        ]

    @property
    def elements(self) -> int:
        return sum(self.sizes)

    def pack(self, values: Sequence[Tensor]) -> Tensor:
        """One dimension of `elements` elements."""
        parts = []
        for one, value in zip(self.fields, values, strict=True):
            flat = value.permute(one.order).reshape(-1)
            parts.append(flat if one.has_gradient else self._as_elements(flat.detach().contiguous()))
        return torch.cat(parts)  # of one too: a view could not be detached in place, as halves of a backward do

    def unpack(self, packed: Tensor) -> list[Tensor]:
        """The tensors again, as they were laid out. Those with a gradient pass it on to the message."""
        values = []
        for one, part in zip(self.fields, torch.split(packed, self.sizes), strict=True):
            if one.has_gradient:
                values.append(part.view(one.in_memory).permute(one.back))
            else:
                size = math.prod(one.shape) * one.dtype.itemsize
                whole = part.detach().clone().view(torch.uint8)[:size]
                values.append(whole.view(one.dtype).view(one.in_memory).permute(one.back))
        return values

    def _as_elements(self, flat: Tensor) -> Tensor:
        found = flat.view(torch.uint8)
        missing = -len(found) % self.dtype.itemsize
        return torch.cat([found, found.new_zeros(missing)]).view(self.dtype)
