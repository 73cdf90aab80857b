"""Layers that sleep instead of computing, and ranks that sleep instead of sending."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from holdfast.trainer.model.sub_batches import Section, pipelined


def slept(sections: int, parts: int, computation_s: float, sum_s: float) -> tuple[float, float]:
    """Seconds of a forward and of a backward, which takes twice the computation."""
    scale = nn.Parameter(torch.ones(1))
    section = Section(lambda x: x * scale, lambda h: _Slow.apply(h, computation_s), [scale])  # type: ignore[no-untyped-call]
    group = Sleeping(sum_s)
    x = torch.ones(2, 1, 1, requires_grad=True)
    start = time.monotonic()
    out = pipelined(x, [section] * sections, group, parts)
    middle = time.monotonic()
    torch.autograd.backward(out.sum())
    end = time.monotonic()
    group.close()
    return middle - start, end - middle


class _Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        time.sleep(2 * ctx.seconds)
        return grads[0].clone(), None


class Sleeping(dist.ProcessGroup):
    """Two ranks with one link: sums take it one after another."""

    def __init__(self, seconds: float) -> None:
        super().__init__(0, 2)  # type: ignore[call-arg]  # torch has this form too
        self._link, self._seconds = ThreadPoolExecutor(1), seconds

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:  # type: ignore[override]  # one of its forms
        return _Asleep(self._link.submit(time.sleep, self._seconds))

    def getBackendName(self) -> str:
        return "sleeping"

    def close(self) -> None:
        self._link.shutdown()


class _Asleep(dist.Work):
    def __init__(self, done: Future[None]) -> None:
        super().__init__()
        self._done = done

    def wait(self, *args: Any) -> bool:
        self._done.result()
        return True
