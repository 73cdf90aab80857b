"""Causal self-attention without its matrices: rotary positions, grouped keys, sliding windows."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def attend(mixed: Tensor, heads: int, head_width: int, rotation: Tensor | None, window: int) -> Tensor:
    """What each position takes from those before it.

    `mixed` is (batch, sequence, groups, (heads + 2) x head_width): per group of `heads` query heads these
    heads, then the key and the value that they share. `rotation` as `rotations` makes it; None: none.
    `window` as in `allowed`; 0: all that came before. Returns (batch, sequence, groups, heads x head_width).
    """
    batch, length, groups, _ = mixed.shape
    if rotation is not None and rotation.dtype == mixed.dtype and not torch.compiler.is_compiling():
        q, k, v = _Turned.apply(mixed, rotation[:, :length, None, None], heads)  # type: ignore[no-untyped-call]
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


def score_pairs(length: int, window: int = 0) -> int:
    """Number of pairs (i, j) that `allowed` allows: w s - w (w - 1) / 2 for w <= s; window 0 is w = s."""
    width = min(window or length, length)
    return width * length - width * (width - 1) // 2


def rotations(length: int, width: int, theta: float = 10000.0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Cosine and sine of each position's angles, shape (2, length, width // 2)."""
    rates = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), rates)
    return torch.stack([angles.cos(), angles.sin()]).to(dtype)


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Turn pairs (i, i + half) of the last dimension of x, (..., width), by `rotation`, (2, ..., width // 2)."""
    cos, sin = rotation
    left, right = x.chunk(2, dim=-1)
    # In the angles' own precision: bfloat16 positions would be too coarse to tell neighbours apart.
    return torch.cat([left * cos - right * sin, left * sin + right * cos], dim=-1).to(x.dtype)


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
        q, k = (torch.empty_like(part, memory_format=torch.contiguous_format) for part in _queries_and_keys(split))
        for part, into in zip(_queries_and_keys(split), (q, k), strict=True):
            _turn(part, rotation[0], rotation[1], into)
        return q.flatten(2, 3), k.flatten(2, 3), split[:, :, :, -1].contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (rotation,) = ctx.saved_tensors
        batch, length, groups, head_width = grads[2].shape
        into = grads[2].new_empty(batch, length, groups, ctx.heads + 2, head_width)
        back = -rotation[1]
        for grad, part in zip(grads, _queries_and_keys(into), strict=False):
            _turn(grad.reshape(part.shape), rotation[0], back, part)
        into[:, :, :, -1] = grads[2]
        return into.flatten(3), None, None


def _queries_and_keys(split: Tensor) -> tuple[Tensor, Tensor]:
    return split[:, :, :, :-2], split[:, :, :, -2:-1]


def _turn(x: Tensor, cos: Tensor, sin: Tensor, into: Tensor) -> None:
    """`rotate` of x, (..., width), into memory that is there."""
    left, right = x.chunk(2, dim=-1)
    into_left, into_right = into.chunk(2, dim=-1)
    torch.mul(left, cos, out=into_left).addcmul_(right, sin, value=-1)
    torch.mul(left, sin, out=into_right).addcmul_(right, cos)


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
