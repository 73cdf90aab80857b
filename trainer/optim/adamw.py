"""AdamW, in torch's own form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from holdfast.trainer.optim.update_rules import Elements, Peers, Target, UpdateRule
from holdfast.trainer.settings.config import OptimConfig


class AdamW(UpdateRule):
    """Adam with decoupled weight decay (arXiv 1711.05101), in torch's fused form."""

    keys: tuple[str, ...] = ("exp_avg", "exp_avg_sq")
    heeds_bad = True

    def __init__(self, config: OptimConfig, targets: Sequence[Target], peers: Peers) -> None:
        # A rank can hold nothing of a small parameter when dp is larger than its first dimension.
        self._shards = [target.shard for target in targets]
        held = [target for target in targets if target.shard.numel()]
        groups = [
            {"params": [t.shard for t in held if t.is_matrix], "weight_decay": config.weight_decay},
            {"params": [t.shard for t in held if not t.is_matrix], "weight_decay": 0.0},
        ]
        self._torch: torch.optim.AdamW | None = None
        if held:
            self._torch = torch.optim.AdamW(
                [group for group in groups if group["params"]],
                lr=config.lr,
                betas=(config.beta1, config.beta2),
                eps=config.eps,
                fused=True,
            )

    def update(self, lr: float, applied: int, bad: Tensor | None = None) -> None:
        if self._torch is not None:
            # What torch's gradient scaler hands to fused optimizers, for the same purpose.
            self._torch.found_inf = bad  # type: ignore[attr-defined]
            for group in self._torch.param_groups:
                group["lr"] = lr
            self._torch.step()

    @staticmethod
    def update_elements(
        config: OptimConfig, elements: Sequence[Elements], lr: float, applied: int, bad: Tensor | None = None
    ) -> None:
        for is_matrix in (True, False):
            own = [one for one in elements if one.is_matrix == is_matrix]
            if not own:
                continue
            # Not `torch.tensor`, for which the host would wait until the device has taken the number.
            count = torch.full((), float(applied + 1), device=own[0].values.device)
            # What torch's own `step` calls; it keeps the count of each parameter itself.
            torch._fused_adamw_(
                [one.values for one in own],
                [one.grad for one in own],
                [one.averages["exp_avg"] for one in own],
                [one.averages["exp_avg_sq"] for one in own],
                [],
                [count] * len(own),
                lr=lr,
                beta1=config.beta1,
                beta2=config.beta2,
                weight_decay=config.weight_decay if is_matrix else 0.0,
                eps=config.eps,
                amsgrad=False,
                maximize=False,
                found_inf=bad,
            )

    def averages(self, index: int) -> Mapping[str, Tensor]:
        shard = self._shards[index]
        held = self._torch.state.get(shard, {}) if self._torch is not None else {}
        return {key: held.get(key, torch.zeros_like(shard)).detach() for key in self.keys}

    def restore(self, index: int, averages: Mapping[str, Tensor], applied: int) -> None:
        shard = self._shards[index]
        if self._torch is None or not shard.numel():
            return
        held = {key: averages[key].to(shard.device) for key in self.keys}  # ours from now on
        count = torch.tensor(float(applied), device=shard.device)
        self._torch.state[shard] = {"step": count, **held}
