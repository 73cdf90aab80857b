"""One stage of the model: computes for a micro-batch, and keeps what the way back needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from holdfast.plan.plan import Action
from holdfast.trainer.model import accumulate
from holdfast.trainer.pipeline.offload.offload import Offload
from holdfast.trainer.pipeline.pieces import Piece
from holdfast.trainer.pipeline.shared_state import SharedState, Sharing
from holdfast.trainer.telemetry import spans


@dataclass(slots=True)
class _Kept:
    """Of a piece on its way."""

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
        self._kept: dict[Piece, _Kept] = {}
        self._graphs = 0
        self.offload: Offload | None = None
        """Where what graphs save goes, if not all stays on the device."""

    def begin(self) -> None:
        """A step begins."""
        self._kept.clear()
        self._graphs = 0

    def kept(self) -> Iterator[Tensor]:
        """What came in and what went out, of each piece on its way."""
        for one in self._kept.values():
            yield one.x
            if one.output is not None:
                yield one.output

    def forward(self, action: Action, xs: Mapping[Piece, Tensor], keep: bool = True) -> dict[Piece, Tensor]:
        """What the stage makes of each. Without `keep` no graph is recorded: `recompute` does that."""
        outputs = {}
        with _span(action), accumulate.first_pass():
            for piece, x in xs.items():
                if not self.is_first:
                    x.requires_grad_()
                if keep:
                    output = self._computed(piece, x)
                else:
                    with torch.no_grad():
                        output = self.module(x, piece[0])
                self._kept[piece] = _Kept(x, output if keep else None)
                outputs[piece] = output
        return outputs

    def recompute(self, action: Action, pieces: Sequence[Piece]) -> dict[Piece, Tensor]:
        """Compute once more what `forward` did not keep."""
        outputs = {}
        with _span(action):
            for piece in pieces:
                kept = self._kept[piece]
                outputs[piece] = kept.output = self._computed(piece, kept.x)
        return outputs

    def end(self, piece: Piece, loss: Tensor) -> None:
        """In the last stage: what the way back begins with."""
        self._kept[piece].output = loss

    def backward(self, action: Action, grads: Mapping[Piece, Tensor | None], is_last: bool) -> dict[Piece, Tensor]:
        """The gradients of what came in, none in the first stage. `grads` are those of the outputs, None in the last.

        `is_last`: nothing of this step comes after this action.
        """
        found = {}
        with _span(action):
            for left, (piece, of_output) in zip(reversed(range(len(grads))), grads.items(), strict=True):
                kept = self._kept.pop(piece)
                with self.state.backward(is_last and not left):
                    _back(kept.output, of_output)
                if kept.x.grad is not None:
                    found[piece], kept.x.grad = kept.x.grad, None
        return found

    def backward_input(self, action: Action, grads: Mapping[Piece, Tensor | None]) -> dict[Piece, Tensor]:
        """The same gradients, and none of weights. The first stage, which has nothing to do, leaves a span as well."""
        found = {}
        with _span(action):
            for piece, of_output in grads.items():
                kept = self._kept[piece]
                assert kept.output is not None
                if self.is_first:
                    kept.of_output = of_output
                    continue
                # Products are gone through again in the other half, and watched there.
                with accumulate.watching({}), self.state.backward(is_last=False, is_whole=False):
                    (grad,), kept.groups = stage_backward_input(
                        [kept.output], None if of_output is None else [of_output], [kept.x], self.module.parameters()
                    )
                kept.output = kept.x.grad = None
                assert grad is not None, "a stage's input got no gradient"
                found[piece] = grad
        return found

    def backward_weight(self, action: Action, pieces: Sequence[Piece], is_last: bool) -> None:
        """The gradients of weights. The first stage does its whole backward here."""
        with _span(action):
            for piece in pieces:
                kept = self._kept.pop(piece)
                with self.state.backward(is_last and piece == pieces[-1], is_whole=kept.groups is None):
                    if kept.groups is None:
                        _back(kept.output, kept.of_output)
                    else:
                        stage_backward_weight(self.module.parameters(), kept.groups)

    def _computed(self, piece: Piece, x: Tensor) -> Tensor:
        # The first of a step has nothing to add to; by layer, nothing is kept.
        is_alone = self._graphs == 0 or bool(self.state.sharing.units)
        self._graphs += 1
        with accumulate.alone(is_alone), self.recording(piece, x):
            output: Tensor = self.module(x, piece[0])
        return output

    def recording(self, piece: Piece, *others: Tensor) -> AbstractContextManager[None]:
        """Around what a piece's graph is made of; memory of `others` stays where it is."""
        if self.offload is None:
            return nullcontext()
        whole = self.state.whole_parameters()
        return self.offload.recording((self.pipe, self.index, piece), self.module, *others, *whole)


def _back(output: Tensor | None, of_output: Tensor | None) -> None:
    assert output is not None, "a backward before what it goes back through"
    torch.autograd.backward([output], [of_output])


def _span(action: Action) -> Any:
    return spans.action(action.op, action.stage, action.micro_batch, action.turn)
