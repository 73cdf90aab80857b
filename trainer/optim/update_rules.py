"""How a step changes parameters: AdamW, LAMB and SGD on this rank's shards.

A rule works on plain tensors in place and keeps its averages by the parameter's place in the list. All
but LAMB are elementwise, so shards need no more than their own gradients; LAMB's norms are of whole tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from holdfast.trainer.settings.config import OptimConfig
from holdfast.trainer.telemetry import spans


@dataclass(frozen=True, slots=True)
class Target:
    """A shard that a rule updates; its gradient lies on it."""

    shard: nn.Parameter
    is_matrix: bool
    """Weight decay is for matrices only."""
    copies: int
    """How many ranks of the group that LAMB sums over hold this same shard."""
    is_tied: bool = False
    """Whether another pipeline stage has a copy, which must change by the very same bits."""


class UpdateRule(Protocol):
    """One way to update. Steps count how many were applied before."""

    keys: tuple[str, ...]
    """Names of the averages that it keeps of each shard."""
    heeds_bad: bool
    """Whether `update` can take `bad`."""

    def update(self, lr: float, applied: int, bad: Tensor | None = None) -> None:
        """Apply the gradients once. Called by all ranks together.

        `bad`, float32 of no dimension on the device of the shards: 1 leaves everything as it is, whatever the
        gradients are, and the host need not know.
        """

    def averages(self, index: int) -> Mapping[str, Tensor]:
        """Those of target `index`, by name; zeros before the first update. Not copied."""

    def restore(self, index: int, averages: Mapping[str, Tensor], applied: int) -> None:
        """Put back what `averages` gave after `applied` updates."""


def rule(config: OptimConfig, targets: Sequence[Target], group: dist.ProcessGroup) -> UpdateRule:
    """The rule that the settings ask for. `group`: all ranks that hold parts of the same parameters."""
    match config.name:
        case "adamw":
            return AdamW(config, targets)
        case "lamb":
            return Lamb(config, targets, group)
        case "sgd":
            return Sgd(config, targets)


class AdamW:
    """Adam with decoupled weight decay (arXiv 1711.05101), in torch's fused form."""

    keys: tuple[str, ...] = ("exp_avg", "exp_avg_sq")
    heeds_bad = True

    def __init__(self, config: OptimConfig, targets: Sequence[Target]) -> None:
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


class _Own:
    """Averages in lists of our own, for the rules that torch does not have in a form to shard."""

    keys: tuple[str, ...]
    heeds_bad = False

    def __init__(self, targets: Sequence[Target]) -> None:
        self._targets = targets
        self._shards = [target.shard.detach() for target in targets]
        self._averages = {key: [torch.zeros_like(shard) for shard in self._shards] for key in self.keys}

    def _grads(self) -> list[Tensor]:
        """Gradients; nothing of a parameter has none, and then neither has its gradient."""
        return [t.shard.grad if t.shard.grad is not None else torch.zeros_like(t.shard) for t in self._targets]

    def averages(self, index: int) -> Mapping[str, Tensor]:
        return {key: held[index] for key, held in self._averages.items()}

    def restore(self, index: int, averages: Mapping[str, Tensor], applied: int) -> None:
        for key, held in self._averages.items():
            held[index].copy_(averages[key])


class Lamb(_Own):
    """Adam's direction, scaled for each tensor by its own norm (arXiv 1904.00962, algorithm 2).

    r = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps); u = r + decay * x; x -= lr * phi(|x|) / |u| * u,
    with |.| over the whole tensor wherever its parts lie, and phi(|x|) / |u| = 1 when either is 0.
    """

    keys: tuple[str, ...] = ("exp_avg", "exp_avg_sq")

    def __init__(self, config: OptimConfig, targets: Sequence[Target], group: dist.ProcessGroup) -> None:
        super().__init__(targets)
        self.config, self._group = config, group
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


class Sgd(_Own):
    """Momentum: b = momentum * b + (gradient + decay * x); x -= lr * b."""

    keys: tuple[str, ...] = ("momentum",)

    def __init__(self, config: OptimConfig, targets: Sequence[Target]) -> None:
        super().__init__(targets)
        self.config = config

    @torch.no_grad()
    def update(self, lr: float, applied: int, bad: Tensor | None = None) -> None:
        assert bad is None
        held = self._averages["momentum"]
        torch._foreach_mul_(held, self.config.momentum)
        torch._foreach_add_(held, self._grads())
        for average, target, shard in zip(held, self._targets, self._shards, strict=True):
            if target.is_matrix and self.config.weight_decay:
                average.add_(shard, alpha=self.config.weight_decay)
        torch._foreach_add_(self._shards, held, alpha=-lr)


def _square(x: Tensor) -> Tensor:
    """Sum of squares in float64, as a tensor of no dimension."""
    length: Tensor = torch.linalg.vector_norm(x, dtype=torch.float64)
    return length.square()
