"""SGD with momentum."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.trainer.optim.update_rules import Averaging, Elements
from holdfast.trainer.settings.config import OptimConfig


class Sgd(Averaging):
    """Momentum: b = momentum * b + (gradient + decay * x); x -= lr * b."""

    keys: tuple[str, ...] = ("momentum",)

    def update(self, lr: float, applied: int, bad: Tensor | None = None) -> None:
        targets = zip(self._shards, self._grads(), self._averages["momentum"], self._targets, strict=True)
        whole = [Elements(x, grad, {"momentum": b}, target.is_matrix) for x, grad, b, target in targets]
        self.update_elements(self.config, whole, lr, applied, bad)

    @staticmethod
    @torch.no_grad()
    def update_elements(
        config: OptimConfig, elements: Sequence[Elements], lr: float, applied: int, bad: Tensor | None = None
    ) -> None:
        assert bad is None
        if not elements:
            return
        held = [one.averages["momentum"] for one in elements]
        torch._foreach_mul_(held, config.momentum)
        torch._foreach_add_(held, [one.grad for one in elements])
        for average, one in zip(held, elements, strict=True):
            if one.is_matrix and config.weight_decay:
                average.add_(one.values, alpha=config.weight_decay)
        torch._foreach_add_([one.values for one in elements], held, alpha=-lr)
