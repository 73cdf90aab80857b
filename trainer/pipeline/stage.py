"""One stage of the model: computes for a micro-batch, and keeps what the way back needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from holdfast.plan.plan import Action
from holdfast.trainer.model import accumulate
from holdfast.trainer.pipeline.shared_state import SharedState, Sharing
from holdfast.trainer.telemetry import spans


@dataclass(slots=True)
class _Kept:
    """Of a micro-batch on its way."""

    x: Tensor
    output: Tensor | None
    """With its graph; in the last stage the loss. None: to be computed again."""
    of_output: Tensor | None = None
    """Between the halves of a backward: the gradient that came in..."""
    groups: list[dict[str, Any]] | None = None
    """... and what torch has to know of the first half."""


class Stage:
    """Consecutive layers as an executor sees them. `module` takes what comes in and the number of the micro-batch."""

    def __init__(
        self, module: nn.Module, index: int, stages: int, device: torch.device, sharing: Sharing, pipe: int = 0
    ) -> None:
        self.module, self.index, self.pipe = module, index, pipe
        self.is_first, self.is_last = index == 0, index == stages - 1
        self.state = SharedState(module, sharing, device)
        self._kept: dict[int, _Kept] = {}
        self._graphs = 0

    def begin(self) -> None:
        """A step begins."""
        self._kept.clear()
        self._graphs = 0

    def forward(self, action: Action, x: Tensor, keep: bool = True) -> Tensor:
        """What the stage makes of `x`. Without `keep` no graph is recorded: `recompute` does that."""
        if not self.is_first:
            x.requires_grad_()
        with _span(action):
            if keep:
                output = self._computed(action.micro_batch, x)
            else:
                with torch.no_grad():
                    output = self.module(x, action.micro_batch)
        self._kept[action.micro_batch] = _Kept(x, output if keep else None)
        return output

    def recompute(self, action: Action) -> Tensor:
        """Compute once more what `forward` did not keep."""
        kept = self._kept[action.micro_batch]
        with _span(action):
            kept.output = self._computed(action.micro_batch, kept.x)
        return kept.output

    def end(self, action: Action, loss: Tensor) -> None:
        """In the last stage: what the way back begins with."""
        self._kept[action.micro_batch].output = loss

    def backward(self, action: Action, of_output: Tensor | None, is_last: bool) -> Tensor | None:
        """The gradient of what came in, None in the first stage. `of_output` is None in the last one."""
        kept = self._kept.pop(action.micro_batch)
        with _span(action), self.state.backward(is_last):
            _back(kept.output, of_output)
        grad, kept.x.grad = kept.x.grad, None
        return grad

    def backward_input(self, action: Action, of_output: Tensor | None) -> Tensor | None:
        """The same gradient, and none of weights. The first stage, which has nothing to do, leaves a span as well."""
        kept = self._kept[action.micro_batch]
        assert kept.output is not None
        with _span(action):
            if self.is_first:
                kept.of_output = of_output
                return None
            with self.state.backward(is_last=False, is_whole=False):
                grads = None if of_output is None else [of_output]
                (grad,), kept.groups = stage_backward_input([kept.output], grads, [kept.x], self.module.parameters())
        kept.output = kept.x.grad = None
        return grad

    def backward_weight(self, action: Action, is_last: bool) -> None:
        """The gradients of weights. The first stage does its whole backward here."""
        kept = self._kept.pop(action.micro_batch)
        with _span(action), self.state.backward(is_last, is_whole=kept.groups is None):
            if kept.groups is None:
                _back(kept.output, kept.of_output)
            else:
                stage_backward_weight(self.module.parameters(), kept.groups)

    def _computed(self, micro_batch: int, x: Tensor) -> Tensor:
        # The first of a step has nothing to add to; by layer, nothing is kept.
        is_alone = self._graphs == 0 or bool(self.state.sharing.units)
        self._graphs += 1
        with accumulate.alone(is_alone):
            output: Tensor = self.module(x, micro_batch)
        return output


def _back(output: Tensor | None, of_output: Tensor | None) -> None:
    assert output is not None, "a backward before what it goes back through"
    torch.autograd.backward([output], [of_output])


def _span(action: Action) -> Any:
    return spans.action(action.op, action.stage, action.micro_batch)
