"""The optimizer on this rank's own shards.

Loss and norm stay on the device until the one place of a step where the host reads them (`Sums.read`). A GPU's update
is in its queue by then, and does nothing by itself if the step is not finite.
It works on plain tensors that share memory with the DTensor parameters, which costs no DTensor dispatch.
Of bfloat16 parameters it keeps float32 ones of its own, which it updates and then rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from holdfast.plan.plan import Op
from holdfast.trainer.mesh.mesh import RankMesh
from holdfast.trainer.optim.slices import Slice
from holdfast.trainer.optim.update_rules import Peers, Target, Watcher, rule
from holdfast.trainer.settings.config import OptimConfig
from holdfast.trainer.settings.learning_rate import learning_rate
from holdfast.trainer.telemetry import spans
from holdfast.trainer.telemetry.totals import Pending, Totals

MASTER = "master"


class Optimizer:
    """Updates slices. The learning rate is a function of the step, counted from 0."""

    def __init__(
        self, config: OptimConfig, slices: Sequence[Slice], mesh: RankMesh, sums: Callable[[], None], rows: int = 0
    ) -> None:
        """`sums` completes gradients of which other ranks have a part; `rows`: tokens of this rank in a step. Called by
        all ranks together."""
        self.config, self.all, self._sums = config, list(slices), sums
        self._stages = mesh.layout.held_by(mesh.pp_rank)
        # A rank can hold nothing of a small parameter when dp is larger than its first dimension.
        self.slices = [piece for piece in slices if piece.shard.numel()]
        self.applied = 0
        """Updates done: one a step, but for steps that were skipped."""
        self._updated = [_master(piece) for piece in self.all]
        self._place = {id(piece): index for index, piece in enumerate(self.all)}
        targets = [
            Target(shard, piece.parameter.dim() > 1, piece.holders, piece.is_tied, piece.name, piece.parameter)
            for piece, shard in zip(self.all, self._updated, strict=True)
        ]
        pipeline = mesh.pp_group if mesh.layout.pp > 1 else None
        self._rule = rule(config, targets, Peers(mesh.whole_stages(), pipeline, rows))
        self.skips_on_device = mesh.device.type == "cuda" and self._rule.heeds_bad
        """Whether an update is started before the host knows that it is wanted."""
        self.holds_all = mesh.layout.pp == mesh.layout.tp == 1 and not any(piece.is_sharded for piece in slices)
        """Whether the gradients here are all there are, the same on every rank."""
        copies = [1 if self.holds_all else piece.copies for piece in self.slices]
        self._copies = torch.tensor(copies, dtype=torch.float64, device=mesh.device)

    def watchers(self) -> Mapping[int, Watcher]:
        """What wants to see the next step's products, by id of a model's parameter."""
        return self._rule.watchers(self.applied)

    def owned(self) -> Mapping[str, Tensor]:
        """State that this rank keeps for all that hold the same parameters, whole and in whatever shape, by name."""
        return self._rule.owned()

    def collect(self) -> None:
        """Move the gradients of the step to the shards, and complete them."""
        with torch.no_grad():
            for piece in self.slices:
                grad = piece.parameter.grad
                piece.shard.grad = grad.to_local() if isinstance(grad, DTensor) else grad
            self._sums()

    def squares(self) -> Tensor:
        """This rank's share of the squared gradient norm: summed over all ranks, or with `holds_all` by itself, it is
        the whole. float64."""
        if not self.slices:
            return torch.zeros((), dtype=torch.float64, device=self._copies.device)
        grads = [_grad(s) for s in self.slices]
        precision = torch.float32 if any(g.dtype == torch.bfloat16 for g in grads) else None
        norms = torch.stack(torch._foreach_norm(grads, 2, precision)).double()
        return (norms.square() / self._copies).sum()

    def step(self, step: int, pending: Pending) -> Totals:
        """Clip, update and drop the gradients, unless the step is not finite: then only drop them.

        Called by all ranks together.
        """
        sums = pending.wait(self.squares() if self.holds_all else None)
        with spans.actions(Op.STEP, self._stages):
            if self.skips_on_device:
                self._update(step, self._clipping(sums.norm), sums.bad())
                totals = sums.read()
            else:
                totals = sums.read()
                if totals.is_finite:
                    self._update(step, self._clipping(totals.norm), None)
        self.applied += totals.is_finite
        self.drop()
        return totals

    def _clipping(self, norm: Any) -> Any:
        """What gradients are multiplied with, a number or a tensor as `norm` is; None: nothing."""
        limit = self.config.clip_norm
        if isinstance(norm, Tensor):
            return (limit / norm).clamp(max=1.0) if limit else None
        return limit / norm if limit and norm > limit else None

    def _update(self, step: int, clipping: Any, bad: Tensor | None) -> None:
        """Change the parameters, but for a device that finds `bad` to be 1."""
        for piece, updated in zip(self.all, self._updated, strict=True):
            if updated is not piece.shard and piece.shard.grad is not None:
                updated.grad = piece.shard.grad.to(updated.dtype)
        if clipping is not None:
            grads = [updated.grad for updated in self._updated if updated.grad is not None]
            factor = clipping.to(grads[0].dtype) if grads and isinstance(clipping, Tensor) else clipping
            torch._foreach_mul_(grads, factor)
        self._rule.update(learning_rate(self.config, step), self.applied, bad)
        self._round()

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


def _master(piece: Slice) -> nn.Parameter:
    """What the rule updates: the shard itself, or a finer copy of a bfloat16 one."""
    if piece.shard.dtype != torch.bfloat16:
        return piece.shard
    return nn.Parameter(piece.shard.detach().float())


def _grad(piece: Slice) -> Tensor:
    grad = piece.shard.grad
    assert grad is not None, f"{piece.name} got no gradient"
    return grad
