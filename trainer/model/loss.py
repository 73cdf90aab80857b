"""Cross entropy, on whole logits or on logits split over the vocabulary."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from holdfast.trainer.model.sequence_parallel import own_positions
from holdfast.trainer.model.tensor_parallel import all_reduce
from holdfast.trainer.settings.config import ParallelConfig


def cross_entropy(logits: Tensor, targets: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Mean negative log-likelihood of `targets`.

    `logits` is (batch, seq, vocab), `targets` (batch, seq). With `group`, the last dimension holds only
    this rank's share of the vocabulary, in rank order; the result is the same on all its ranks.
    """
    flat, wanted = logits.flatten(0, -2), targets.flatten()
    if group is None or group.size() == 1:
        return F.cross_entropy(flat, wanted)
    losses: Tensor = _SplitCrossEntropy.apply(flat, wanted, group)  # type: ignore[no-untyped-call]
    return losses.mean()


def mean_loss(
    logits: Tensor, targets: Tensor, group: dist.ProcessGroup, parallel: ParallelConfig, micro_batches: int
) -> Tensor:
    """This rank's loss of a micro-batch, as its share of the mean over a replica's `micro_batches`.

    `logits` as the head gives them on a rank of the tp `group`, `targets` (batch, seq) whole.
    """
    if logits.dtype == torch.bfloat16:
        logits = logits.float()
    if parallel.shard_vocabulary:
        return cross_entropy(logits, targets, group) / micro_batches
    if not is_split(parallel):
        return cross_entropy(logits, targets) / micro_batches
    return cross_entropy(logits, own_positions(targets, group)) / (micro_batches * group.size())


def is_split(parallel: ParallelConfig) -> bool:
    """Whether each tp rank has whole logits, but at its own positions only."""
    return parallel.sequence and not parallel.shard_vocabulary


class _SplitCrossEntropy(torch.autograd.Function):
    """Losses of each row from vocabulary shards: two small collectives, whole logits exist nowhere."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, group: dist.ProcessGroup) -> Tensor:
        top = all_reduce(logits.max(dim=-1).values, group, dist.ReduceOp.MAX)
        shifted = logits - top.unsqueeze(-1)
        exps = shifted.exp()
        column = targets - dist.get_rank(group) * logits.shape[-1]
        ours = (column >= 0) & (column < logits.shape[-1])
        column = column.clamp(0, logits.shape[-1] - 1).unsqueeze(-1)
        chosen = shifted.gather(-1, column).squeeze(-1) * ours
        totals = all_reduce(torch.stack([exps.sum(dim=-1), chosen]), group)
        ctx.save_for_backward(exps / totals[0].unsqueeze(-1), column, ours)
        return totals[0].log() - totals[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        share, column, ours = ctx.saved_tensors
        delta = share.clone()
        delta.scatter_add_(-1, column, -ours.to(delta.dtype).unsqueeze(-1))
        return delta * grads[0].unsqueeze(-1), None, None
