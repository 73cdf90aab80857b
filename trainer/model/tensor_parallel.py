"""Tensor parallelism on local shards.

Parameters of more than one rank are stored as DTensors, so that optimizers, checkpoints and FSDP know what they
hold; compute works on their local shards with the two collectives below. DTensor's own dispatch would cost more
than the mathematics of a small layer, and even its gradients cost several percent of it: where a rank has no tp
peers, parameters are plain tensors.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from holdfast.trainer.telemetry import spans

OPERATION = "tp:all_reduce"


def all_reduce(tensor: Tensor, group: dist.ProcessGroup, op: Any = dist.ReduceOp.SUM) -> Tensor:
    """Reduce `tensor` in place over the group; returns it. No collective in a group of one."""
    if group.size() > 1:
        with spans.operation(OPERATION, tensor.nbytes):
            dist.all_reduce(tensor, op, group=group)
    return tensor


class _Fan(torch.autograd.Function):
    """Identity forward; backward sums what the shards send back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return all_reduce(grads[0].contiguous().clone(), ctx.group), None


class _Sum(torch.autograd.Function):
    """Sums the shards' results forward; identity backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        return all_reduce(x.contiguous().clone(), group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def fan_out(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Give a replicated activation to the shards of the next layer; its gradient is their sum."""
    return x if group.size() == 1 else _call(_Fan, x, group)


def sum_up(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Add the shards' partial results; every rank gets the sum."""
    return x if group.size() == 1 else _call(_Sum, x, group)


def local(weight: Tensor) -> Tensor:
    """This rank's shard of a parameter, differentiable, without communication."""
    if not isinstance(weight, DTensor):
        return weight
    return weight.to_local(grad_placements=list(weight.placements))


@dataclass(frozen=True, slots=True)
class Packed:
    """One of the matrices that share a parameter. Its values depend on the seed and its name alone."""

    name: str
    shape: tuple[int, ...]
    std: float


@dataclass(frozen=True, slots=True)
class Parameters:
    """Makes parameters whose full values depend on the seed and their global name only."""

    seed: int
    mesh: DeviceMesh
    """The tp dimension."""
    device: torch.device
    dtype: torch.dtype = torch.float32
    """Of the parameters; values are drawn in float32 whatever it is."""
    at_once: int = 1
    """Layers whose values are drawn at the same time, a thread each."""

    def normal(self, name: str, shape: tuple[int, ...], std: float, shard: int | None = None) -> nn.Parameter:
        """A parameter of normal values; split along dimension `shard` over tp, None: the same on all."""
        return self._place(self._draw(Packed(name, shape, std)), shard)

    def packed(self, pieces: list[Packed], shard: int, groups: int) -> nn.Parameter:
        """Matrices side by side along dimension `shard`, group by group, split along it over tp.

        Each piece's dimension divides into `groups`: group 0 of every piece, then group 1 of every piece...
        """
        drawn = [self._draw(piece) for piece in pieces]
        parts = [full.view(*full.shape[:shard], groups, -1, *full.shape[shard + 1 :]) for full in drawn]
        return self._place(torch.cat(parts, dim=shard + 1).flatten(shard, shard + 1), shard)

    def constant(self, shape: tuple[int, ...], value: float) -> nn.Parameter:
        """A replicated parameter with the same value everywhere."""
        return self._place(torch.full(shape, value), None)

    def _draw(self, piece: Packed) -> Tensor:
        generator = torch.Generator().manual_seed(hash_of(self.seed, piece.name))
        return torch.empty(piece.shape, dtype=torch.float32).normal_(0.0, piece.std, generator=generator)

    def _place(self, full: Tensor, shard: int | None) -> nn.Parameter:
        placement: tuple[Placement, ...]
        if self.mesh.size() == 1:
            return nn.Parameter(full.to(self.device, self.dtype))
        if shard is None:
            piece, placement = full, (Replicate(),)
        else:
            # Layout checks have made sure that it divides, so every rank's piece is of one size.
            piece = full.chunk(self.mesh.size(), dim=shard)[self.mesh.get_local_rank()].clone()
            placement = (Shard(shard),)
        placed = DTensor.from_local(piece.to(self.device, self.dtype), self.mesh, placement, run_check=False)
        return nn.Parameter(placed)


def hash_of(*parts: int | str) -> int:
    """A seed of 63 bits from numbers and names, the same on every machine."""
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def _call(function: type[torch.autograd.Function], x: Tensor, group: dist.ProcessGroup) -> Tensor:
    result: Tensor = function.apply(x, group)  # type: ignore[no-untyped-call]  # torch leaves apply untyped
    return result
