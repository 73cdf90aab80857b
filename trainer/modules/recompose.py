"""A partition in one process: its stages one after the other, with the messages between them, forward and back.

What a job's ranks do, without ranks: for checks that stages compute what the module does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from holdfast.trainer.modules.split import Partition, Piece


class Recomposed:
    """The stages of a partition."""

    def __init__(self, whole: Partition) -> None:
        self.whole = whole
        self.pieces = [Piece(whole, stage) for stage in range(whole.stages)]

    def forward(self, *inputs: Any) -> tuple[Any, list[Tensor]]:
        """What the module returns, and the results that it is made of. Keeps the graphs of all stages."""
        self._ends: list[tuple[Tensor, Tensor]] = []
        values: Sequence[Any] = inputs
        for piece, message in zip(self.pieces[:-1], self.whole.messages, strict=True):
            sent = message.pack(piece(*values))
            arrived = sent.detach().requires_grad_()
            self._ends.append((sent, arrived))
            values = message.unpack(arrived)
        results = list(self.pieces[-1](*values))
        return self.whole.trace.results_of(results), results

    def backward(self, results: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        """The way back through all stages, from the gradients of the results."""
        torch.autograd.backward(list(results), list(grads))
        for sent, arrived in reversed(self._ends):
            torch.autograd.backward([sent], [arrived.grad])

    def gradients(self) -> dict[str, Tensor]:
        """By parameter; of one that two stages hold, the sum."""
        found: dict[str, Tensor] = {}
        for piece in self.pieces:
            for name, parameter in piece.named_parameters():
                assert parameter.grad is not None, f"{name} got no gradient"
                found[name] = parameter.grad  # a shared one is one tensor here, to which both stages add
        return found
