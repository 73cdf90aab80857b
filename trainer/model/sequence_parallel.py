"""Sequence parallelism: between the matrices of a layer, each tp rank holds its share of the positions.

All activations are (batch, sequence, width) with the sequence split in rank order. A gather forward is a
reduce-scatter backward and the other way round, so a layer moves no more bytes than with all-reduces, and
norms, dropout and residuals are done once instead of tp times (Megatron, arXiv 2205.05198, section 4.2.2).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast.trainer.mesh import collectives
from holdfast.trainer.telemetry import spans

GATHER = "tp:all_gather"
SCATTER = "tp:reduce_scatter"


def all_gather(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The shards (batch, sequence / ranks, width) of all ranks as one (batch, sequence, width)."""
    batch, length, width = x.shape
    ranks = group.size()
    parts = x.new_empty(ranks, batch, length, width)
    with spans.operation(GATHER, parts.nbytes):
        collectives.all_gather(parts.view(-1), x.contiguous().view(-1), group)
    return parts.transpose(0, 1).reshape(batch, ranks * length, width)


def reduce_scatter(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum over ranks of (batch, sequence, width), of which each keeps (batch, sequence / ranks, width)."""
    batch, length, width = x.shape
    ranks = group.size()
    parts = x.view(batch, ranks, length // ranks, width).transpose(0, 1).contiguous()
    with spans.operation(SCATTER, parts.nbytes):
        return collectives.reduce_scatter(parts, group)


def own_positions(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """This rank's positions of `x`, whose second dimension is the whole sequence. No communication."""
    ranks = group.size()
    return x if ranks == 1 else x.chunk(ranks, dim=1)[dist.get_rank(group)]


class _Gather(torch.autograd.Function):
    """Whole sequence forward; backward adds up the gradients and keeps this rank's positions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return all_gather(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return reduce_scatter(grads[0].contiguous(), ctx.group), None


class _Scatter(torch.autograd.Function):
    """Partial results added up forward, this rank's positions kept; backward gathers the gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return reduce_scatter(x.contiguous(), group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return all_gather(grads[0], ctx.group), None


def gather_sequence(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """All positions of an activation, for the shards of the next layer to work on."""
    if group.size() == 1:
        return x
    result: Tensor = _Gather.apply(x, group)  # type: ignore[no-untyped-call]  # torch leaves apply untyped
    return result


def scatter_sum(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Add the shards' partial results; every rank gets the sum at its own positions."""
    if group.size() == 1:
        return x
    result: Tensor = _Scatter.apply(x, group)  # type: ignore[no-untyped-call]  # torch leaves apply untyped
    return result
