"""The parameters of a rank as plain tensors, and the sums that their gradients still need after backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from holdfast.trainer.mesh.mesh import RankMesh, group_of
from holdfast.trainer.model.tensor_parallel import all_reduce
from holdfast.trainer.modules.stage import AnyStage
from holdfast.trainer.telemetry import spans


@dataclass(frozen=True, slots=True)
class Slice:
    """One parameter as this rank holds it."""

    name: str
    """Global name, the same in every layout."""
    parameter: nn.Parameter
    """What the model computes with, a DTensor unless all of it lies here; gradients arrive here."""
    shard: nn.Parameter
    """The same memory as a plain tensor, for the optimizer and checkpoints."""
    holders: int
    """How many ranks hold this same slice of the same stage."""
    is_split: bool
    """Whether tp ranks hold different parts of it."""
    is_tied: bool
    """Whether another stage holds it too."""
    is_sharded: bool
    """Whether replicas hold different rows of it. With tp alone, or ZeRO stage 0, they do not."""
    stage: int = 0
    """Number of the pipeline's stage that it is a part of."""

    @property
    def copies(self) -> int:
        """How many ranks hold it, those with its copy in the other stage included."""
        return self.holders * (2 if self.is_tied else 1)


def slices_of(stages: Sequence[AnyStage], mesh: RankMesh) -> list[Slice]:
    """All parameters of the rank's stages, in order. Call after sharding."""
    found = []
    for (number, _), stage in zip(mesh.layout.held_by(mesh.pp_rank), stages, strict=True):
        for name, parameter in stage.named_parameters():
            placed = parameter if isinstance(parameter, DTensor) else None
            with torch.no_grad():
                shard = nn.Parameter((parameter if placed is None else placed.to_local()).detach())
            # The tp dimension is the last one; without tp peers there is none.
            is_split = placed is not None and mesh.tp_size > 1 and placed.placements[-1].is_shard()
            is_tied = name == stage.tied and mesh.layout.stages > 1
            dims = 0 if placed is None else placed.device_mesh.ndim
            is_sharded = mesh.layout.replicas > 1 and dims > (1 if mesh.tp_size > 1 else 0)
            holders = (1 if is_split else mesh.tp_size) * (1 if is_sharded else mesh.layout.replicas)
            found.append(Slice(name, parameter, shard, holders, is_split, is_tied, is_sharded, number))
    return found


class GradientSums:
    """Adds up gradients of which several ranks have a part each, once a step.

    Under sequence parallelism a tp rank's gradients of what is not split come from its own positions only.
    Tied embeddings get a gradient in the first stage and another one in the last.
    """

    def __init__(self, slices: Sequence[Slice], mesh: RankMesh, is_sequence: bool) -> None:
        """Called by all ranks together."""
        # Peers of one replica and stage hold the same shards, so they agree on which ones are empty.
        held = [piece for piece in slices if piece.shard.numel()]
        self._partial = [p for p in held if is_sequence and mesh.tp_size > 1 and not p.is_split]
        self._tp = mesh.tp.get_group()
        self._tied = [piece for piece in held if piece.is_tied]
        self._pair = _pair_group(mesh) if any(piece.is_tied for piece in slices) else None
        self._is_second = self._pair is not None and self._pair.size() > 2 and mesh.tp_rank > 0
        """Whether this rank's copy of a tied gradient is in the sum by another rank already."""

    def __call__(self) -> None:
        """Sum in place the gradients that lie on the shards."""
        self._sum_partial()
        if len(self._tied) == 2:
            first, last = (_grad(piece) for piece in self._tied)
            last.copy_(first.add_(last))
        elif self._tied and self._pair is not None:
            grad = _grad(self._tied[0])
            if self._is_second:
                grad.zero_()
            with spans.operation("pp:all_reduce", grad.nbytes):
                dist.all_reduce(grad, group=self._pair)

    def _sum_partial(self) -> None:
        if not self._partial:
            return
        grads = [_grad(piece) for piece in self._partial]
        flat = all_reduce(torch.cat([grad.flatten() for grad in grads]), self._tp)
        for grad, total in zip(grads, torch.split(flat, [grad.numel() for grad in grads]), strict=True):
            grad.copy_(total.view_as(grad))


def _pair_group(mesh: RankMesh) -> dist.ProcessGroup | None:
    """The ranks that hold the two copies of a tied embedding, None when this rank holds both.

    A tp rank has its peer in the other stage; where that is of another tp, all ranks of both stages are one group.
    """
    layout = mesh.layout
    ends = [next(p for p in range(layout.pp) if s in layout.stages_of(p)) for s in (0, layout.stages - 1)]
    if ends[0] == ends[1]:
        return None
    if layout.tps[ends[0]] != layout.tps[ends[1]]:
        ranks = [rank for p in ends for rank in layout.line(p, mesh.dp_rank)]
    else:
        ranks = [layout.rank(p, mesh.dp_rank, mesh.tp_rank) for p in ends]
    return group_of(ranks, mesh.timeout, "tied", mesh.networks)


def _grad(piece: Slice) -> Tensor:
    grad = piece.shard.grad
    assert grad is not None, f"{piece.name} got no gradient"
    return grad
