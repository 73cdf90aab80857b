"""SGD with momentum."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.trainer.optim.update_rules import Averaging


class Sgd(Averaging):
    """Momentum: b = momentum * b + (gradient + decay * x); x -= lr * b."""

    keys: tuple[str, ...] = ("momentum",)

    @torch.no_grad()
    def update(self, lr: float, applied: int, bad: Tensor | None = None) -> None:
        assert bad is None
        if not self._shards:
            return
        held = self._averages["momentum"]
        torch._foreach_mul_(held, self.config.momentum)
        torch._foreach_add_(held, self._grads())
        for average, target, shard in zip(held, self._targets, self._shards, strict=True):
            if target.is_matrix and self.config.weight_decay:
                average.add_(shard, alpha=self.config.weight_decay)
        torch._foreach_add_(self._shards, held, alpha=-lr)
