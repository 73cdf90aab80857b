"""Where the optimizer keeps what it keeps: on the device, beside the parameters. The other way: host/states.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from holdfast.plan.plan import Action
from holdfast.trainer.optim.slices import Slice
from holdfast.trainer.optim.update_rules import InBubbles, Peers, Target, Watcher, rule
from holdfast.trainer.settings.config import OptimConfig

MASTER = "master"
Clipping = float | Tensor | None
"""What gradients are multiplied with before the update; None: they stay as they are."""


class States(Protocol):
    """Averages, and float32 forms of bfloat16 parameters, of slices; by their place in the list."""

    heeds_bad: bool
    """Whether `update` can take `bad`."""

    def update(self, lr: float, applied: int, clipping: Clipping, bad: Tensor | None) -> None:
        """Scale the gradients and apply them once. Called by all ranks together. `bad`: as in `UpdateRule.update`."""

    def drop(self) -> None:
        """Forget the gradients."""

    def state(self, index: int) -> dict[str, Tensor]:
        """What is kept of slice `index`, by name. Not copied."""

    def set_state(self, index: int, state: Mapping[str, Tensor], applied: int) -> None:
        """Put back what `state` gave after `applied` updates."""

    def owned(self) -> Mapping[str, Tensor]:
        """State that this rank keeps for all that hold the same parameters, whole and in whatever shape, by name."""

    def on_device(self) -> Sequence[Tensor]:
        """All that is kept on the device, shared memory more than once."""

    def watchers(self, applied: int) -> Mapping[int, Watcher]:
        """What wants to see the products of the step after `applied` updates, by id of a model's parameter."""

    def in_bubbles(self, actions: Sequence[Action]) -> InBubbles | None:
        """As `UpdateRule` has it."""


class DeviceStates:
    """Of bfloat16 parameters it keeps float32 ones of its own, which it updates and then rounds."""

    def __init__(self, config: OptimConfig, slices: Sequence[Slice], peers: Peers) -> None:
        """Called by all ranks together."""
        self._slices = slices
        self._updated = [_master(piece) for piece in slices]
        targets = [
            Target(
                shard, piece.parameter.dim() > 1, piece.holders, piece.is_tied, piece.name, piece.parameter, piece.stage
            )
            for piece, shard in zip(slices, self._updated, strict=True)
        ]
        self._rule = rule(config, targets, peers)
        self.heeds_bad = self._rule.heeds_bad

    def watchers(self, applied: int) -> Mapping[int, Watcher]:
        return self._rule.watchers(applied)

    def owned(self) -> Mapping[str, Tensor]:
        return self._rule.owned()

    def in_bubbles(self, actions: Sequence[Action]) -> InBubbles | None:
        return self._rule.in_bubbles(actions)

    def update(self, lr: float, applied: int, clipping: Clipping, bad: Tensor | None) -> None:
        for piece, updated in zip(self._slices, self._updated, strict=True):
            if updated is not piece.shard and piece.shard.grad is not None:
                updated.grad = piece.shard.grad.to(updated.dtype)
        if clipping is not None:
            grads = [updated.grad for updated in self._updated if updated.grad is not None]
            factor = clipping.to(grads[0].dtype) if grads and isinstance(clipping, Tensor) else clipping
            torch._foreach_mul_(grads, factor)
        self._rule.update(lr, applied, bad)
        self._round()

    def drop(self) -> None:
        for piece, updated in zip(self._slices, self._updated, strict=True):
            piece.shard.grad = piece.parameter.grad = updated.grad = None

    def state(self, index: int) -> dict[str, Tensor]:
        held = dict(self._rule.averages(index))
        if self._updated[index] is not self._slices[index].shard:
            held[MASTER] = self._updated[index].detach()
        return held

    def set_state(self, index: int, state: Mapping[str, Tensor], applied: int) -> None:
        self._rule.restore(index, state, applied)
        if self._updated[index] is not self._slices[index].shard:
            with torch.no_grad():
                self._updated[index].copy_(state[MASTER])

    def on_device(self) -> Sequence[Tensor]:
        held = [
            tensor
            for index, piece in enumerate(self._slices)
            if piece.shard.numel()
            for tensor in self.state(index).values()
        ]
        return [*held, *self.owned().values()]

    def _round(self) -> None:
        with torch.no_grad():
            for piece, updated in zip(self._slices, self._updated, strict=True):
                if updated is not piece.shard:
                    piece.shard.copy_(updated)


def _master(piece: Slice) -> nn.Parameter:
    """What the rule updates: the shard itself, or a finer copy of a bfloat16 one."""
    if piece.shard.dtype != torch.bfloat16:
        return piece.shard
    return nn.Parameter(piece.shard.detach().float())
