"""Matrices whose collectives run while they multiply: the sequence in chunks, one on its way, one in work.

MegaScale, section 3.2 (arXiv 2402.15627): all-gather then GEMM, and GEMM then reduce-scatter, each in k pieces;
without sequence parallelism GEMM then all-reduce. With a time c for all transfers and g for all of the GEMM,
c/k + (k-1)/k max(c, g) + g/k instead of c + g. The weight's gradient needs no transfer and hides what is left of
one. Bytes on the wire are those of one piece. Only waiting counts as an operation for the probe.
With sequence parallelism on GPUs that reach each other's memory, symmetric.py does the pair as one.

All activations are (batch, sequence, width), weights (out, in) as `F.linear` has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from holdfast.trainer.mesh import collectives
from holdfast.trainer.model import symmetric
from holdfast.trainer.model.accumulate import weight_gradient
from holdfast.trainer.model.sequence_parallel import GATHER, SCATTER
from holdfast.trainer.model.tensor_parallel import OPERATION
from holdfast.trainer.telemetry import spans


def gather_multiply(x: Tensor, weights: Sequence[Tensor], group: dist.ProcessGroup, chunks: int) -> tuple[Tensor, ...]:
    """Each of `weights` on all positions, of which `x` (batch, sequence / ranks, in) holds this rank's."""
    return _call(_GatherMultiply, x, group, chunks, *weights)


def multiply_scatter(x: Tensor, weight: Tensor, group: dist.ProcessGroup, chunks: int) -> Tensor:
    """The ranks' `weight` on `x` (batch, sequence, in), added up; each rank keeps its positions."""
    return _call(_MultiplyScatter, x, group, chunks, weight)[0]


def multiply_fanned(x: Tensor, weights: Sequence[Tensor], group: dist.ProcessGroup, chunks: int) -> tuple[Tensor, ...]:
    """Each of `weights` on an `x` that all ranks have whole; backward adds up the gradients of `x` over the ranks."""
    return _call(_MultiplyFanned, x, group, chunks, *weights)


def multiply_sum(x: Tensor, weight: Tensor, group: dist.ProcessGroup, chunks: int) -> Tensor:
    """The ranks' `weight` on `x` (batch, sequence, in), added up: whole on every rank."""
    return _call(_MultiplySum, x, group, chunks, weight)[0]


class _GatherMultiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup, chunks: int, *weights: Tensor) -> tuple[Tensor, ...]:
        whole, products = _gather_multiply(x, weights, group, chunks)
        ctx.save_for_backward(whole, *weights)
        ctx.group, ctx.chunks = group, chunks
        return products

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        whole, *weights = ctx.saved_tensors
        own = _multiply_scatter([grad.contiguous() for grad in grads], _transposed(weights), ctx.group, ctx.chunks)
        of_weights = [weight_gradient(grad, whole) for grad in grads]
        return own(), None, None, *of_weights


class _MultiplyScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup, chunks: int, weight: Tensor) -> tuple[Tensor]:
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.chunks = group, chunks
        return (_multiply_scatter([x.contiguous()], [weight], group, chunks)(),)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        whole, (of_x,) = _gather_multiply(grads[0], [weight.t()], ctx.group, ctx.chunks)
        return of_x, None, None, weight_gradient(whole, x)


class _MultiplyFanned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup, chunks: int, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, *weights)
        ctx.group, ctx.chunks = group, chunks
        return tuple(F.linear(x, weight) for weight in weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        total = _multiply_sum(grads, _transposed(weights), ctx.group, ctx.chunks)
        of_weights = [weight_gradient(grad, x) for grad in grads]
        return total(), None, None, *of_weights


class _MultiplySum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup, chunks: int, weight: Tensor) -> tuple[Tensor]:
        ctx.save_for_backward(x, weight)
        return (_multiply_sum([x], [weight], group, chunks)(),)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return grads[0] @ weight, None, None, weight_gradient(grads[0], x)


def _gather_multiply(
    x: Tensor, weights: Sequence[Tensor], group: dist.ProcessGroup, chunks: int
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """`x` of all ranks, and each of `weights` on it."""
    if symmetric.reaches(x, group):
        return symmetric.gather_multiply(x, weights, group)
    batch, length, width = x.shape
    ranks, step = group.size(), length // chunks
    whole = x.new_empty(batch, ranks, chunks, step, width)
    products = [x.new_empty(batch, ranks, chunks, step, weight.shape[0]) for weight in weights]
    for at, part in enumerate(_arriving(x, group, chunks)):
        for product, weight in zip(products, weights, strict=True):
            product[:, :, at] = F.linear(part, weight).transpose(0, 1)
        whole[:, :, at] = part.transpose(0, 1)
    joined = tuple(product.view(batch, ranks * length, -1) for product in products)
    return whole.view(batch, ranks * length, width), joined


def _arriving(x: Tensor, group: dist.ProcessGroup, chunks: int) -> Iterator[Tensor]:
    """The ranks' chunks of `x`, each (ranks, batch, sequence / ranks / chunks, width), as they come in."""
    pending = []
    for piece in x.chunk(chunks, dim=1):
        into = x.new_empty(group.size(), *piece.shape)
        pending.append((into, collectives.all_gather(into.view(-1), piece.contiguous().view(-1), group, async_op=True)))
    for into, work in pending:
        assert work is not None
        with spans.operation(GATHER, into.nbytes):
            work.wait()
        yield into


def _multiply_scatter(
    xs: Sequence[Tensor], weights: Sequence[Tensor], group: dist.ProcessGroup, chunks: int
) -> Callable[[], Tensor]:
    """Multiply, add up here and send chunk by chunk; what is returned waits for the sums at this rank's positions."""
    if symmetric.reaches(xs[0], group):
        summed = symmetric.multiply_scatter(xs, weights, group)
        return lambda: summed
    batch, length, _ = xs[0].shape
    ranks = group.size()
    split = [x.view(batch, ranks, chunks, length // ranks // chunks, -1) for x in xs]
    pending = [
        collectives.start_reduce_scatter(_summed([x[:, :, at].transpose(0, 1) for x in split], weights), group)
        for at in range(chunks)
    ]

    def finish() -> Tensor:
        with spans.operation(SCATTER):
            return torch.cat([wait() for wait in pending], dim=1)

    return finish


def _multiply_sum(
    xs: Sequence[Tensor], weights: Sequence[Tensor], group: dist.ProcessGroup, chunks: int
) -> Callable[[], Tensor]:
    """Multiply and add up chunk by chunk; what is returned waits for the sums."""
    pending = []
    for pieces in zip(*(x.chunk(chunks, dim=1) for x in xs), strict=True):
        partial = _summed(pieces, weights)
        pending.append((partial, dist.all_reduce(partial, group=group, async_op=True)))

    def finish() -> Tensor:
        with spans.operation(OPERATION, sum(partial.nbytes for partial, _ in pending)):
            for _, work in pending:
                assert work is not None
                work.wait()
        return torch.cat([partial for partial, _ in pending], dim=1)

    return finish


def _summed(xs: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Each matrix on what is its own, added up."""
    total = F.linear(xs[0], weights[0])
    for x, weight in zip(xs[1:], weights[1:], strict=True):
        total += F.linear(x, weight)
    return total


def _transposed(weights: Sequence[Tensor]) -> list[Tensor]:
    return [weight.t() for weight in weights]


def _call(function: type[torch.autograd.Function], *args: Any) -> tuple[Tensor, ...]:
    results: tuple[Tensor, ...] = function.apply(*args)  # type: ignore[no-untyped-call]  # torch leaves apply untyped
    return results
