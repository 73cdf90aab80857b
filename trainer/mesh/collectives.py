"""Collectives that gloo lacks, or does in twice the bytes; by another name in older torch.

All of them are called by every rank of the group, in the same order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast.trainer.telemetry import spans


def all_gather(into: Tensor, x: Tensor, group: dist.ProcessGroup, async_op: bool = False) -> dist.Work | None:
    """The flat `x` of all ranks side by side in the flat `into`, in rank order."""
    gather = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor
    work: dist.Work | None = gather(into, x, group=group, async_op=async_op)
    return work


def reduce_scatter(pieces: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum over ranks of row r of `pieces` (ranks, ...), for rank r.

    gloo's own is an all-reduce inside, 2(d-1)/d of the bytes a rank. Here each row goes to its rank, (d-1)/d, and
    is added up there in rank order, in float32 or finer: the same bits each time.
    """
    return start_reduce_scatter(pieces, group)()


def start_reduce_scatter(pieces: Tensor, group: dist.ProcessGroup) -> Callable[[], Tensor]:
    """As `reduce_scatter`; what is returned waits for the sum. `pieces` must be left alone until then."""
    into = torch.empty_like(pieces[0] if pieces.is_cuda else pieces)
    if pieces.is_cuda:
        scatter = dist.reduce_scatter_single if hasattr(dist, "reduce_scatter_single") else dist.reduce_scatter_tensor
        work = scatter(into.view(-1), pieces.view(-1), group=group, async_op=True)
    else:
        work = dist.all_to_all_single(into.view(-1), pieces.view(-1), group=group, async_op=True)

    def finish() -> Tensor:
        assert work is not None
        work.wait()
        return into if pieces.is_cuda else _added_up(into).to(pieces.dtype)

    return finish


_local = threading.local()


@contextmanager
def reported_to(begun: Callable[[int], None]) -> Iterator[None]:
    """In this thread, a `ReduceScatter` calls `begun` with the bytes of its buffer once peers need nothing more of it
    but time. Its wait is then no operation of the probe: that is the wait of whoever began the thread."""
    _local.begun = begun
    try:
        yield
    finally:
        del _local.begun


class ReduceScatter:
    """`reduce_scatter` in the form in which FSDP2 takes one (`FSDPModule.set_custom_reduce_scatter`)."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> None:
        pieces = input_tensor.view(group.size(), -1)
        begun: Callable[[int], None] | None = getattr(_local, "begun", None)
        if begun is None:
            with spans.operation("dp:reduce_scatter", input_tensor.nbytes):
                total = reduce_scatter(pieces, group)
        else:
            finish = start_reduce_scatter(pieces, group)
            begun(input_tensor.nbytes)
            total = finish()
        if op == dist.ReduceOp.AVG:
            total /= group.size()
        output_tensor.copy_(total)


class AllGather:
    """`all_gather` for FSDP2, with the wait for it as an operation of the probe."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        if async_op:
            work = all_gather(output_tensor, input_tensor, group, async_op=True)
            assert work is not None
            return _Watched(work, output_tensor.nbytes)
        with spans.operation("dp:all_gather", output_tensor.nbytes):
            return all_gather(output_tensor, input_tensor, group)


class _Watched(dist.Work):
    """Work under way; only the wait for it counts, as what computation has not hidden."""

    def __init__(self, work: dist.Work, num_bytes: int) -> None:
        super().__init__()
        self._work, self._num_bytes = work, num_bytes

    def wait(self, *args: Any) -> bool:
        with spans.operation("dp:all_gather", self._num_bytes):
            return self._work.wait(*args)


def _added_up(rows: Tensor) -> Tensor:
    total = rows[0].to(torch.promote_types(rows.dtype, torch.float32), copy=True)
    for row in rows[1:]:
        total += row
    return total
