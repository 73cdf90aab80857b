"""DP-KFAC: each matrix's curvature is estimated by one replica, from its own micro-batches (arXiv 2206.15143).

The owner of a matrix among the replicas keeps its factors, inverts them and preconditions the gradient, which all have;
only the result goes to the others. So factors never do, and each replica has its share of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from holdfast.plan.plan import Action, Op
from holdfast.trainer.optim.adamw import AdamW
from holdfast.trainer.optim.bubbles import CurvatureInBubbles, Owned
from holdfast.trainer.optim.factors import Factors, Statistics
from holdfast.trainer.optim.matrices import cost, is_preconditioned, owners, rounds
from holdfast.trainer.optim.sgd import Sgd
from holdfast.trainer.optim.update_rules import Peers, Target, UpdateRule, Watcher
from holdfast.trainer.settings.config import OptimConfig
from holdfast.trainer.telemetry import spans


class DpKfac(UpdateRule):
    """Preconditioned gradients of matrices, then SGD with momentum; other parameters by SGD or AdamW.

    All v_l are scaled by nu = min(1, sqrt(kappa / |sum_l <v_l, D_l>| / lr^2)), over all matrices of the model.
    """

    def __init__(self, config: OptimConfig, targets: Sequence[Target], peers: Peers) -> None:
        self.config, self._peers = config, peers
        self._device = targets[0].shard.device
        self._matrices = [t for t in targets if is_preconditioned(config, t.name, t.shard.shape)]
        chosen = {id(target) for target in self._matrices}
        others = [target for target in targets if id(target) not in chosen]
        self._lr_of_others = config.kfac_others_lr / config.lr if config.kfac_others_lr and config.lr else 1.0
        apart = AdamW if config.kfac_others == "adamw" else Sgd
        self._rules: tuple[UpdateRule, UpdateRule] = Sgd(config, self._matrices, peers), apart(config, others, peers)
        places = [iter(range(len(targets))), iter(range(len(targets)))]
        self._places = [(0, next(places[0])) if id(t) in chosen else (1, next(places[1])) for t in targets]
        costs = [cost(target.shard.shape, peers.rows) for target in self._matrices]
        self.owners = owners(costs, peers.stage.size(), config.kfac_owners)
        """By matrix, a rank of the replicas."""
        rank = peers.stage.rank()
        self._factors = {
            number: Factors(target.shard.shape, config.kfac_form, target.shard)
            for number, (target, owner) in enumerate(zip(self._matrices, self.owners, strict=True))
            if owner == rank
        }
        self._statistics: dict[int, Statistics] = {}
        self._bubbles: CurvatureInBubbles | None = None

    def in_bubbles(self, actions: Sequence[Action]) -> CurvatureInBubbles:
        turns = rounds([target.stage for target in self._matrices], self.owners)
        owned = [
            Owned(id(_model_parameter(target)), self._factors[number], target.shard.dtype, target.stage, turns[number])
            for number, target in enumerate(self._matrices)
            if number in self._factors
        ]
        self._bubbles = CurvatureInBubbles(self.config, owned, actions)
        return self._bubbles

    def watchers(self, applied: int) -> Mapping[int, Watcher]:
        if self._bubbles is not None:
            self._bubbles.begin(applied)
            return self._bubbles.outputs()
        self._statistics = {}
        if applied % self.config.factor_every == 0:
            self._statistics = {number: Statistics(self._matrices[number].shard.dtype) for number in self._factors}
        return {id(_model_parameter(self._matrices[number])): seen for number, seen in self._statistics.items()}

    @torch.no_grad()
    def update(self, lr: float, applied: int, bad: Tensor | None = None) -> None:
        assert bad is None
        if self._bubbles is not None:
            self._bubbles.accept(applied)
        else:
            self._refresh(applied)
        directions = self._spread()
        scale = self._scale(directions, lr)
        for target, direction in zip(self._matrices, directions, strict=True):
            target.shard.grad = direction.mul_(scale)
        self._rules[0].update(lr, applied)
        self._rules[1].update(lr * self._lr_of_others, applied)

    def _refresh(self, applied: int) -> None:
        """Bring factors, and what is made of them, up to date with the step."""
        for number, statistics in self._statistics.items():
            self._factors[number].absorb(statistics, self.config.factor_decay)
        self._statistics = {}
        if applied % self.config.invert_every == 0:
            for factors in self._factors.values():
                factors.invert(self.config.damping)

    def _spread(self) -> list[Tensor]:
        """By matrix, the preconditioned gradient: each from its owner, in one message to all others."""
        group, rank = self._peers.stage, self._peers.stage.rank()
        found = [_grad(target) for target in self._matrices]
        with spans.actions(Op.PRECOND, [(stage, 0) for stage in sorted({one.stage for one in self._matrices})]):
            for number, factors in self._factors.items():
                found[number] = factors.precondition(found[number], self.config.damping)
        if group.size() == 1:
            return found
        of_owner: dict[int, list[int]] = {}
        for number, owner in enumerate(self.owners):
            of_owner.setdefault(owner, []).append(number)
        flat = {
            owner: torch.cat([found[number].flatten() for number in numbers])
            if owner == rank
            else found[numbers[0]].new_empty(sum(found[number].numel() for number in numbers))
            for owner, numbers in sorted(of_owner.items())  # in one order on all ranks
        }
        with spans.operation("dp:broadcast", sum(one.nbytes for one in flat.values())):
            works = [
                dist.broadcast(one, dist.get_global_rank(group, owner), group=group, async_op=True)
                for owner, one in flat.items()
            ]
            for work in works:
                assert work is not None
                work.wait()
        for owner, one in flat.items():
            parts = torch.split(one, [found[number].numel() for number in of_owner[owner]])
            for number, part in zip(of_owner[owner], parts, strict=True):
                found[number] = part.view_as(found[number])
        return found

    def _scale(self, directions: Sequence[Tensor], lr: float) -> float:
        """nu. In float64, and the same on all ranks."""
        if not self.config.kl_clip:
            return 1.0
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        for target, direction in zip(self._matrices, directions, strict=True):
            total += (_grad(target) * direction).sum(dtype=torch.float64)
        pipeline = self._peers.pipeline
        if pipeline is not None and pipeline.size() > 1:
            with spans.operation("pp:all_reduce", total.nbytes):
                dist.all_reduce(total, group=pipeline)
        length = abs(float(total)) * lr**2
        return min(1.0, math.sqrt(self.config.kl_clip / length)) if length else 1.0

    def averages(self, index: int) -> Mapping[str, Tensor]:
        which, place = self._places[index]
        return self._rules[which].averages(place)

    def restore(self, index: int, averages: Mapping[str, Tensor], applied: int) -> None:
        which, place = self._places[index]
        self._rules[which].restore(place, averages, applied)

    def owned(self) -> Mapping[str, Tensor]:
        return {
            f"{self._matrices[number].name}@{key}": tensor
            for number, factors in self._factors.items()
            for key, tensor in factors.state.items()
        }


def _model_parameter(target: Target) -> Tensor:
    return target.shard if target.parameter is None else target.parameter


def _grad(target: Target) -> Tensor:
    grad = target.shard.grad
    assert grad is not None, f"{target.name} got no gradient"
    return grad
