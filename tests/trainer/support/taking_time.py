"""Layers and sums over ranks that take virtual time: exact, and over at once."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from holdfast.trainer.model.sub_batches import Section, pipelined


class Clock:
    """The rank's time."""

    def __init__(self) -> None:
        self.now = 0


def took(sections: int, parts: int, computation: int, sum_: int) -> tuple[int, int]:
    """Time of a forward and of a backward, which takes twice the computation."""
    clock = Clock()
    scale = nn.Parameter(torch.ones(1))
    section = Section(lambda x: x * scale, lambda h: _Slow.apply(h, clock, computation), [scale])  # type: ignore[no-untyped-call]
    x = torch.ones(6, 1, 1, requires_grad=True)
    out = pipelined(x, [section] * sections, Link(clock, sum_), parts)
    forward = clock.now
    torch.autograd.backward(out.sum())
    return forward, clock.now - forward


class _Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, clock: Clock, takes: int) -> Tensor:
        ctx.clock, ctx.takes = clock, takes
        clock.now += takes
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        ctx.clock.now += 2 * ctx.takes
        return grads[0].clone(), None, None


class Link(dist.ProcessGroup):
    """Two ranks with one link: sums take it one after another."""

    def __init__(self, clock: Clock, takes: int) -> None:
        super().__init__(0, 2)  # type: ignore[call-arg]  # torch has this form too
        self._clock, self._takes, self._free = clock, takes, 0

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:  # type: ignore[override]  # one of its forms
        self._free = max(self._free, self._clock.now) + self._takes
        return _UnderWay(self._clock, self._free)

    def getBackendName(self) -> str:
        return "virtual"


class _UnderWay(dist.Work):
    def __init__(self, clock: Clock, due: int) -> None:
        super().__init__()
        self._clock, self._due = clock, due

    def wait(self, *args: Any) -> bool:
        self._clock.now = max(self._clock.now, self._due)
        return True
