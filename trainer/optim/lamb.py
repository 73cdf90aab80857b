"""LAMB on shards: the norms are of whole tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast.trainer.optim.update_rules import Averaging, Peers, Target
from holdfast.trainer.settings.config import OptimConfig
from holdfast.trainer.telemetry import spans


class Lamb(Averaging):
    """Adam's direction, scaled for each tensor by its own norm (arXiv 1904.00962, algorithm 2).

    r = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps); u = r + decay * x; x -= lr * phi(|x|) / |u| * u,
    with |.| over the whole tensor wherever its parts lie, and phi(|x|) / |u| = 1 when either is 0.
    """

    keys: tuple[str, ...] = ("exp_avg", "exp_avg_sq")

    def __init__(self, config: OptimConfig, targets: Sequence[Target], peers: Peers) -> None:
        super().__init__(config, targets, peers)
        self._group = peers.stage
        copies = [target.copies for target in targets] * 2
        self._copies = torch.tensor(copies, dtype=torch.float64, device=self._shards[0].device if copies else None)

    @torch.no_grad()
    def update(self, lr: float, applied: int, bad: Tensor | None = None) -> None:
        assert bad is None
        config, grads = self.config, self._grads()
        first, second = self._averages["exp_avg"], self._averages["exp_avg_sq"]
        torch._foreach_lerp_(first, grads, 1 - config.beta1)
        torch._foreach_mul_(second, config.beta2)
        torch._foreach_addcmul_(second, grads, grads, 1 - config.beta2)
        scale = torch._foreach_div(second, 1 - config.beta2 ** (applied + 1))
        torch._foreach_sqrt_(scale)
        torch._foreach_add_(scale, config.eps)
        moves = torch._foreach_div(first, 1 - config.beta1 ** (applied + 1))
        torch._foreach_div_(moves, scale)
        for move, target, shard in zip(moves, self._targets, self._shards, strict=True):
            if target.is_matrix and config.weight_decay:
                move.add_(shard, alpha=config.weight_decay)
        ratios = self._ratios(list(moves))
        for shard, move, ratio in zip(self._shards, moves, ratios.unbind(), strict=True):
            shard.sub_(move * (lr * ratio).to(shard.dtype))

    def _ratios(self, moves: list[Tensor]) -> Tensor:
        """phi(|x|) / |u| of every whole tensor, in float64. One collective for all of them."""
        squares = torch.stack([_square(t) for t in (*self._shards, *moves)])
        squares /= self._copies
        if self._group.size() > 1:
            tied = [at for at, target in enumerate(self._targets) if target.is_tied]
            pairs = squares[[*tied, *(at + len(self._targets) for at in tied)]]
            with spans.operation("lamb:all_reduce", squares.nbytes):
                dist.all_reduce(squares, group=self._group)
                if tied:
                    # The order of a sum depends on the place in the vector, which the other stage has otherwise.
                    dist.all_reduce(pairs, group=self._group)
                    squares[[*tied, *(at + len(self._targets) for at in tied)]] = pairs
        size, length = squares.sqrt().chunk(2)
        bounded = size.clamp(self.config.trust_low, self.config.trust_high or math.inf)
        return torch.where((size > 0) & (length > 0), bounded / length, torch.ones_like(size))


def _square(x: Tensor) -> Tensor:
    """Sum of squares in float64, as a tensor of no dimension."""
    length: Tensor = torch.linalg.vector_norm(x, dtype=torch.float64)
    return length.square()
