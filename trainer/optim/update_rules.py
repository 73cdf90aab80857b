"""What every optimizer is to the trainer, and what most have in common. Which there are: settings/optimizers.py.

A rule works on plain tensors in place and keeps its averages by the parameter's place in the list. Elementwise rules
need no more than their own shards' gradients; others (LAMB, DP-KFAC) ask their peers.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from holdfast.plan.plan import Action
from holdfast.trainer.settings.config import OptimConfig
from holdfast.trainer.settings.optimizers import OPTIMIZERS

Watcher = Callable[[Tensor, Tensor], None]
"""Takes input (..., in) and gradient of the output (..., out) of a matrix, once for each product in backward."""
InputWatcher = Callable[[Tensor], None]
"""Takes input (..., in) of a matrix, once for each product in forward."""


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
    name: str = ""
    """Of the parameter, the same in every layout."""
    parameter: nn.Parameter | None = None
    """What the model computes with, where that is not `shard`."""
    stage: int = 0
    """Of the pipeline, of which it is a part."""


@dataclass(frozen=True, slots=True)
class Peers:
    """Whom a rule may ask."""

    stage: dist.ProcessGroup
    """All ranks that hold parts of the same parameters: the replicas, where nothing is split over tp."""
    pipeline: dist.ProcessGroup | None = None
    """The ranks that together hold the whole model once. None: this one does."""
    rows: int = 0
    """Tokens that go through each matrix of this rank in a step."""


@dataclass(frozen=True, slots=True)
class Elements:
    """Some elements of one target, in one dimension, which an elementwise rule updates without the others."""

    values: Tensor
    grad: Tensor
    averages: Mapping[str, Tensor]
    """By key of the rule."""
    is_matrix: bool
    """As `Target` has it."""


class InBubbles(Protocol):
    """Work of a rule that a pipeline's plan has between computations."""

    def inputs(self) -> Mapping[int, InputWatcher]:
        """What wants to see inputs in the step's forwards, by id of the model's parameter: behind `watchers`."""

    def do(self, action: Action) -> None:
        """One action, in the order of the list."""

    def settle(self) -> None:
        """Between two steps: do what was left for the next one, so that `owned` is all there is."""


class UpdateRule:
    """One way to update. Steps count how many were applied before."""

    heeds_bad: bool = False
    """Whether `update` can take `bad`."""
    keys: tuple[str, ...] = ()
    """Names of the averages that it keeps of each shard."""

    def __init__(self, config: OptimConfig, targets: Sequence[Target], peers: Peers) -> None:
        """Called by all ranks together. A target may be empty where dp is larger than its first dimension."""

    def update(self, lr: float, applied: int, bad: Tensor | None = None) -> None:
        """Apply the gradients once. Called by all ranks together.

        `bad`, float32 of no dimension on the device of the shards: 1 leaves everything as it is, whatever the
        gradients are, and the host need not know.
        """
        raise NotImplementedError

    def averages(self, index: int) -> Mapping[str, Tensor]:
        """What is kept of target `index` in its shape, by name; zeros before the first update. Not copied."""
        raise NotImplementedError

    def restore(self, index: int, averages: Mapping[str, Tensor], applied: int) -> None:
        """Put back what `averages` gave after `applied` updates."""
        raise NotImplementedError

    def watchers(self, applied: int) -> Mapping[int, Watcher]:
        """What wants to see the products of the step after `applied` updates, by id of the model's parameter."""
        return {}

    def owned(self) -> Mapping[str, Tensor]:
        """State that this rank keeps for all its peers, in whatever shape, by name. Not copied: a checkpoint is read
        into these tensors. No other rank has one of these names, and together they are the same in every layout."""
        return {}

    def in_bubbles(self, actions: Sequence[Action]) -> InBubbles | None:
        """Leave to the pipeline what `actions`, its list on this rank, have of the rule's work; each step then does
        them. None: it has no such work."""
        return None

    @staticmethod
    def update_elements(
        config: OptimConfig, elements: Sequence[Elements], lr: float, applied: int, bad: Tensor | None = None
    ) -> None:
        """Do to these what `update` does to whole targets, by the same bits: values and averages change in place.

        For rules that are `elementwise` in settings/optimizers.py.
        """
        raise NotImplementedError


def rule(config: OptimConfig, targets: Sequence[Target], peers: Peers) -> UpdateRule:
    """The rule that the settings ask for."""
    return rule_class(config)(config, targets, peers)


def rule_class(config: OptimConfig) -> type[UpdateRule]:
    """Its class."""
    module, _, name = OPTIMIZERS[config.name].rule.partition(":")
    found: type[UpdateRule] = getattr(importlib.import_module(module), name)
    return found


class Averaging(UpdateRule):
    """Averages in lists of our own, for the rules that torch does not have in a form to shard."""

    def __init__(self, config: OptimConfig, targets: Sequence[Target], peers: Peers) -> None:
        self.config = config
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
