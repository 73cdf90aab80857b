"""Causal self-attention without its matrices: rotary positions, grouped keys, sliding windows."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from holdfast.trainer.model.functions import applied


def attend(mixed: Tensor, heads: int, head_width: int, rotation: Tensor | None, window: int) -> Tensor:
    """What each position takes from those before it.

    `mixed` is (batch, sequence, groups, (heads + 2) x head_width): per group of `heads` query heads these
    heads, then the key and the value that they share. `rotation` as `rotations` makes it; None: none.
    `window` as in `allowed`; 0: all that came before. Returns (batch, sequence, groups, heads x head_width).
    """
    batch, length, groups, _ = mixed.shape
    if rotation is not None and rotation.dtype == mixed.dtype and not is_dynamo_compiling():
        q, k, v = _turn_all(mixed, rotation[:, :length, None, None], heads)
    else:
        q, k, v = _turned(mixed, rotation, heads, head_width)
    # (batch, heads in all, sequence, head_width), as the library wants it.
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    if not window or window >= length:
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads > 1)
    elif q.is_cuda:
        seen = _windowed_on_gpu(q, k, v, window)
    else:
        mask = allowed(length, window, q.device)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=heads > 1)
    return seen.transpose(1, 2).reshape(batch, length, groups, heads * head_width)


@functools.lru_cache(maxsize=8)
def allowed(length: int, window: int, device: torch.device) -> Tensor:
    """Which key j a query i may see, as (length, length): those with 0 <= i - j < window."""
    position = torch.arange(length, device=device)
    distance = position.unsqueeze(1) - position
    return (distance >= 0) & (distance < window)


def rotations(length: int, width: int, theta: float = 10000.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Cosine and sine of each position's angles for both halves of a head, shape (2, length, width).

    The sines have the sign with which they stand in `rotate`: - in the first half, + in the second.
    """
    rates = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), rates)
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)]).to(dtype)


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Turn pairs (i, i + half) of the last dimension of x, (..., width), by `rotation`, (2, ..., width)."""
    cos, sin = rotation.unbind()
    left, right = x.chunk(2, dim=-1)
    # In the angles' own precision: bfloat16 positions would be too coarse to distinguish adjacent ones.
    turned: Tensor = x * cos + torch.cat([right, left], dim=-1) * sin
    return turned.to(x.dtype)


def _turned(mixed: Tensor, rotation: Tensor | None, heads: int, head_width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (batch, sequence, heads in all, head_width), keys and values (batch, sequence, groups, head_width)."""
    batch, length, groups, _ = mixed.shape
    split = mixed.view(batch, length, groups, heads + 2, head_width)
    # Queries and keys are turned together, while they lie side by side.
    turned = split[:, :, :, : heads + 1]
    if rotation is not None:
        turned = rotate(turned, rotation[:, :length, None, None])
    q = turned[:, :, :, :heads].reshape(batch, length, groups * heads, head_width)
    return q, turned[:, :, :, heads], split[:, :, :, heads + 1]


class _Turned(torch.autograd.Function):
    """As `_turned`. Forward and backward write each number once, where it belongs, instead of joining pieces."""

    @staticmethod
    def forward(ctx: Any, mixed: Tensor, rotation: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(rotation)
        ctx.heads = heads
        batch, length, groups, width = mixed.shape
        split = mixed.view(batch, length, groups, heads + 2, width // (heads + 2))
        angles, turned = _angles(rotation), []
        for part in split[:, :, :, :-1].split_with_sizes([heads, 1], dim=3):
            into = torch.empty_like(part, memory_format=torch.contiguous_format)
            _turn(part, angles, into)
            turned.append(into.flatten(2, 3))
        return turned[0], turned[1], split[:, :, :, -1].contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (rotation,) = ctx.saved_tensors
        batch, length, groups, head_width = grads[2].shape
        into = grads[2].new_empty(batch, length, groups, ctx.heads + 2, head_width)
        angles = _angles(rotation)
        *parts, value = into.split_with_sizes([ctx.heads, 1, 1], dim=3)
        for grad, part in zip(grads[:2], parts, strict=True):
            _turn(grad.reshape(part.shape), angles, part, back=True)
        value[:, :, :, 0] = grads[2]
        return into.flatten(3), None, None


_turn_all = applied(_Turned)


def _angles(rotation: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The cosines, and the sines of the first and of the second half."""
    cos, sin = rotation.unbind()
    first, second = sin.chunk(2, dim=-1)
    return cos, first, second


def _turn(x: Tensor, angles: tuple[Tensor, Tensor, Tensor], into: Tensor, back: bool = False) -> None:
    """`rotate` of x, (..., width), or the inverse of it, into memory that is there."""
    cos, *sines = angles
    torch.mul(x, cos, out=into)
    halves = x.chunk(2, dim=-1)
    for part, other, sin in zip(into.chunk(2, dim=-1), reversed(halves), sines, strict=True):
        part.addcmul_(other, sin, value=-1 if back else 1)


def _windowed_on_gpu(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """FlexAttention, which skips the blocks outside the window; it has no backward on a CPU."""
    flex, block_mask = _flex(q.shape[-2], window, q.device)
    seen: Tensor = flex(q, k, v, block_mask=block_mask, enable_gqa=q.shape[1] != k.shape[1])
    return seen


@functools.lru_cache(maxsize=8)
def _flex(length: int, window: int, device: torch.device) -> tuple[Any, Any]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def near(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i >= j) & (i - j < window)

    return torch.compile(flex_attention), create_block_mask(near, None, None, length, length, device=str(device))
