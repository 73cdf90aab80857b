"""Gather-and-multiply and multiply-and-scatter as single operations of GPUs that reach each other's memory.

torch's symmetric memory: peers' pieces are copied over NVLink while others are multiplied, without NCCL's kernels
taking part of the GPU. No CPU has them, nor GPUs of different hosts; overlap.py has its chunks for those.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_OPS = ("fused_all_gather_matmul", "fused_matmul_reduce_scatter")


def suits(kind: str, dtype: torch.dtype, has_ops: bool, ranks: Sequence[int], local_world: int, direct: bool) -> bool:
    """Whether these operations can do a group's matrices. Pure.

    `kind` is the type of device, `ranks` the group's, of which hosts have `local_world` each, numbered host by host;
    `direct`: this GPU reaches the memory of all others of its host.
    """
    is_one_host = len({rank // max(local_world, 1) for rank in ranks}) == 1
    return (
        kind == "cuda"
        and dtype in (torch.bfloat16, torch.float16, torch.float32)
        and has_ops
        and is_one_host
        and len(ranks) > 1
        and direct
    )


def reaches(x: Tensor, group: dist.ProcessGroup) -> bool:
    """Whether this activation and this group are for them. The same on all ranks of a job on hosts that are alike."""
    return x.is_cuda and _reaches(x.dtype, group)


def gather_multiply(
    x: Tensor, weights: Sequence[Tensor], group: dist.ProcessGroup
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """`x` (batch, sequence / ranks, in) of all ranks, and each of `weights` (out, in) on it."""
    transposed = [weight.t() for weight in weights]
    whole, products = _ops().fused_all_gather_matmul(x.contiguous(), transposed, 1, group.group_name)
    return whole, tuple(products)


def multiply_scatter(xs: Sequence[Tensor], weights: Sequence[Tensor], group: dist.ProcessGroup) -> Tensor:
    """The ranks' `weights` (out, in), each on its own of `xs` (batch, sequence, in), all added up; each rank keeps its
    positions."""
    # The operation takes one matrix: of several, side by side, the product is the sum of theirs.
    x, weight = (xs[0], weights[0]) if len(xs) == 1 else (torch.cat(list(xs), dim=-1), torch.cat(list(weights), dim=1))
    summed: Tensor = _ops().fused_matmul_reduce_scatter(x.contiguous(), weight.t(), "sum", 1, group.group_name)
    return summed


def _ops() -> Any:
    return torch.ops.symm_mem


@functools.cache
def _reaches(dtype: torch.dtype, group: dist.ProcessGroup) -> bool:
    try:
        import torch.distributed._symmetric_memory  # it defines the operations
    except ImportError:
        return False
    here, count = torch.cuda.current_device(), torch.cuda.device_count()
    direct = all(other == here or torch.cuda.can_device_access_peer(here, other) for other in range(count))
    has_ops = all(hasattr(_ops(), name) for name in _OPS)
    local_world = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return suits("cuda", dtype, has_ops, dist.get_process_group_ranks(group), local_world, direct)
