"""AdamW on this rank's own shards, and the one collective that every step needs.

The optimizer works on plain tensors that share memory with the DTensor parameters: the update is
elementwise, so nothing is lost, and it costs no DTensor dispatch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from holdfast.agent import probe
from holdfast.trainer.config import OptimConfig

_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class Slice:
    """One parameter as this rank holds it."""

    name: str
    """Global name, the same in every layout."""
    parameter: nn.Parameter
    """What the model computes with: a DTensor, gradients arrive here."""
    shard: nn.Parameter
    """The same memory as a plain tensor, for the optimizer and checkpoints."""
    copies: int
    """How many tp ranks hold this same slice."""


def slices_of(modules: Iterable[nn.Module], tp_size: int) -> list[Slice]:
    """All parameters of the rank's stages, in order. Call after sharding."""
    found = []
    for module in modules:
        for name, parameter in module.named_parameters():
            assert isinstance(parameter, DTensor)
            with torch.no_grad():
                shard = nn.Parameter(parameter.to_local().detach())
            is_split = any(place.is_shard() for place in parameter.placements[-1:])
            found.append(Slice(name, parameter, shard, 1 if is_split else tp_size))
    return found


@dataclass(frozen=True, slots=True)
class Totals:
    """What all ranks know after a step's backward."""

    loss: float
    norm: float
    """Of the gradients of all parameters together, before clipping."""
    bad_ranks: list[int]
    """Ranks whose own loss or gradients were not finite."""


class Optimizer:
    """AdamW over slices. Steps are counted from 0; the learning rate is a function of the step."""

    def __init__(self, config: OptimConfig, slices: list[Slice]) -> None:
        self.config = config
        # A rank can hold nothing of a small parameter when dp is larger than its first dimension.
        self.slices = [piece for piece in slices if piece.shard.numel()]
        matrices = [s.shard for s in self.slices if s.parameter.dim() > 1]
        vectors = [s.shard for s in self.slices if s.parameter.dim() == 1]
        groups = [
            {"params": matrices, "weight_decay": config.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self._adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            fused=True,
        )

    def collect(self) -> None:
        """Move the gradients of the step to the shards."""
        with torch.no_grad():
            for piece in self.slices:
                grad = piece.parameter.grad
                piece.shard.grad = grad.to_local() if isinstance(grad, DTensor) else grad

    def squares(self) -> float:
        """This rank's share of the squared gradient norm: summed over all ranks it is the whole."""
        norms = torch._foreach_norm([_grad(s) for s in self.slices])
        return math.fsum(float(n) ** 2 / s.copies for n, s in zip(norms, self.slices, strict=True))

    def apply(self, step: int, norm: float) -> None:
        """Clip by the global `norm`, update, and drop the gradients."""
        limit = self.config.clip_norm
        if limit and norm > limit:
            torch._foreach_mul_([_grad(s) for s in self.slices], limit / norm)
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate(self.config, step)
        self._adamw.step()
        for piece in self.slices:
            piece.shard.grad = piece.parameter.grad = None

    def moments(self, piece: Slice) -> dict[str, Tensor]:
        """AdamW's two averages of a slice, zeros before the first step."""
        held = self._adamw.state.get(piece.shard, {})
        return {key: held.get(key, torch.zeros_like(piece.shard)).detach() for key in _MOMENTS}

    def set_moments(self, piece: Slice, moments: Mapping[str, Tensor], steps: int) -> None:
        """Put back what `moments` gave after `steps` steps."""
        held = {key: moments[key].to(piece.shard.device).clone() for key in _MOMENTS}
        count = torch.tensor(float(steps), device=piece.shard.device)
        self._adamw.state[piece.shard] = {"step": count, **held}


def learning_rate(config: OptimConfig, step: int) -> float:
    """Learning rate of step `step`: linear warm-up, then constant or a cosine down to a tenth."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if not config.decay_steps:
        return config.lr
    done = (step - config.warmup_steps) / max(1, config.decay_steps - config.warmup_steps)
    return config.lr * (0.1 + 0.9 * (1 + math.cos(math.pi * min(1.0, done))) / 2)


def sum_over_ranks(loss: float, squares: float) -> Totals:
    """Add up each rank's share of the loss and of the squared norm, in one collective.

    The numbers add in float64 in a fixed order, so a layout always gives the same bits.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    shares = torch.zeros(2 + world, dtype=torch.float64)
    shares[0], shares[1] = loss, squares
    shares[2 + rank] = 0 if math.isfinite(loss) and math.isfinite(squares) else 1
    if world > 1:
        with probe.operation("world:all_reduce"):
            dist.all_reduce(shares)
    numbers = shares.tolist()
    return Totals(numbers[0], math.sqrt(numbers[1]), [r for r in range(world) if numbers[2 + r]])


def _grad(piece: Slice) -> Tensor:
    grad = piece.shard.grad
    assert grad is not None, f"{piece.name} got no gradient"
    return grad
