"""The optimizer on this rank's own shards, and the one collective that every step needs.

It works on plain tensors that share memory with the DTensor parameters, which costs no DTensor dispatch.
Of bfloat16 parameters it keeps float32 ones of its own, which it updates and then rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from holdfast.trainer import spans
from holdfast.trainer.config import OptimConfig
from holdfast.trainer.learning_rate import learning_rate
from holdfast.trainer.mesh import Mesh
from holdfast.trainer.slices import Slice
from holdfast.trainer.update_rules import Target, rule

MASTER = "master"


@dataclass(frozen=True, slots=True)
class Totals:
    """What all ranks know after a step's backward."""

    loss: float
    norm: float
    """Of the gradients of all parameters together, before clipping."""
    bad_ranks: list[int]
    """Ranks whose own loss or gradients were not finite."""

    @property
    def is_finite(self) -> bool:
        return not self.bad_ranks and math.isfinite(self.loss) and math.isfinite(self.norm)


class Optimizer:
    """Updates slices. The learning rate is a function of the step, counted from 0."""

    def __init__(self, config: OptimConfig, slices: Sequence[Slice], mesh: Mesh, sums: Callable[[], None]) -> None:
        """`sums` completes gradients of which other ranks have a part. Called by all ranks together."""
        self.config, self.all, self._sums = config, list(slices), sums
        # A rank can hold nothing of a small parameter when dp is larger than its first dimension.
        self.slices = [piece for piece in slices if piece.shard.numel()]
        self.applied = 0
        """Updates done: one a step, but for steps that were skipped."""
        self._updated = [_master(piece) for piece in self.all]
        self._place = {id(piece): index for index, piece in enumerate(self.all)}
        targets = [
            Target(shard, piece.parameter.dim() > 1, piece.holders, piece.is_tied)
            for piece, shard in zip(self.all, self._updated, strict=True)
        ]
        self._rule = rule(config, targets, _stage_group(mesh))

    def collect(self) -> None:
        """Move the gradients of the step to the shards, and complete them."""
        with torch.no_grad():
            for piece in self.slices:
                grad = piece.parameter.grad
                piece.shard.grad = grad.to_local() if isinstance(grad, DTensor) else grad
            self._sums()

    def squares(self) -> float:
        """This rank's share of the squared gradient norm: summed over all ranks it is the whole."""
        grads = [_grad(s) for s in self.slices]
        precision = torch.float32 if any(g.dtype == torch.bfloat16 for g in grads) else None
        norms = torch._foreach_norm(grads, 2, precision)
        return math.fsum(float(n) ** 2 / s.copies for n, s in zip(norms, self.slices, strict=True))

    def apply(self, step: int, norm: float) -> None:
        """Clip by the global `norm`, update, and drop the gradients."""
        for piece, updated in zip(self.all, self._updated, strict=True):
            if updated is not piece.shard and piece.shard.grad is not None:
                updated.grad = piece.shard.grad.to(updated.dtype)
        limit = self.config.clip_norm
        if limit and norm > limit:
            grads = [updated.grad for updated in self._updated if updated.grad is not None]
            torch._foreach_mul_(grads, limit / norm)
        self._rule.update(learning_rate(self.config, step), self.applied)
        self.applied += 1
        self._round()
        self.drop()

    def drop(self) -> None:
        """Forget the gradients."""
        for piece, updated in zip(self.all, self._updated, strict=True):
            piece.shard.grad = piece.parameter.grad = updated.grad = None

    def state(self, piece: Slice) -> dict[str, Tensor]:
        """What the optimizer keeps of a slice, by name: averages, and the float32 form of a bfloat16 one."""
        index = self._place[id(piece)]
        held = dict(self._rule.averages(index))
        if self._updated[index] is not piece.shard:
            held[MASTER] = self._updated[index].detach()
        return held

    def set_state(self, piece: Slice, state: Mapping[str, Tensor]) -> None:
        """Put back what `state` gave. Set `applied` first."""
        index = self._place[id(piece)]
        self._rule.restore(index, state, self.applied)
        if self._updated[index] is not piece.shard:
            with torch.no_grad():
                self._updated[index].copy_(state[MASTER])

    def _round(self) -> None:
        with torch.no_grad():
            for piece, updated in zip(self.all, self._updated, strict=True):
                if updated is not piece.shard:
                    piece.shard.copy_(updated)


def sum_over_ranks(loss: float, squares: float) -> Totals:
    """Add up each rank's share of the loss and of the squared norm, in one collective.

    The numbers add in float64 in a fixed order, so a layout always gives the same bits.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    shares = torch.zeros(2 + world, dtype=torch.float64)
    shares[0], shares[1] = loss, squares
    shares[2 + rank] = 0 if math.isfinite(loss) and math.isfinite(squares) else 1
    if world > 1:
        with spans.operation("world:all_reduce"):
            dist.all_reduce(shares)
    numbers = shares.tolist()
    return Totals(numbers[0], math.sqrt(numbers[1]), [r for r in range(world) if numbers[2 + r]])


def _master(piece: Slice) -> nn.Parameter:
    """What the rule updates: the shard itself, or a finer copy of a bfloat16 one."""
    if piece.shard.dtype != torch.bfloat16:
        return piece.shard
    return nn.Parameter(piece.shard.detach().float())


def _stage_group(mesh: Mesh) -> dist.ProcessGroup:
    """All ranks of this pipeline rank: together they hold every part of the same parameters."""
    layout = mesh.layout
    if layout.tp == 1 or layout.dp == 1:
        return (mesh.dp if layout.tp == 1 else mesh.tp).get_group()
    first = mesh.pp_rank * layout.dp * layout.tp
    ranks = list(range(first, first + layout.dp * layout.tp))
    group: dist.ProcessGroup = dist.new_group(ranks, use_local_synchronization=True)
    return group


def _grad(piece: Slice) -> Tensor:
    grad = piece.shard.grad
    assert grad is not None, f"{piece.name} got no gradient"
    return grad
