"""Tensor parallelism in sub-batches: the sum of one over the ranks is on its way while another is computed.

Merak (Lai et al., TPDS 2023, sub-pipelined tensor model parallelism). A micro-batch is cut along its samples once for
all layers of a stage. In each half of a layer, every sub-batch in turn waits for its last sum, is computed, and starts
its next one; backward is the mirror of that. A stage of n such halves, with K sub-batches of which each takes g to
compute and c to sum up, takes K n max(g, c) + min(g, c) instead of K n (g + c).

autograd alone would wait for a sum as soon as it is started: what needs it is next in its order. So each computation
has a graph of its own, and backward goes through them in the order above.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from holdfast.trainer.model.tensor_parallel import OPERATION
from holdfast.trainer.telemetry import spans

Compute = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Section:
    """Half of a layer: x + the sum over ranks of work(norm(x))."""

    norm: Compute
    work: Compute
    """From a whole activation to this rank's share of the sum."""
    parameters: Sequence[nn.Parameter]
    """Those that the two use, and maybe others."""


def pipelined(x: Tensor, sections: Sequence[Section], group: dist.ProcessGroup, count: int) -> Tensor:
    """`x` (batch, sequence, width) through all sections, in `count` parts of the batch, which it divides."""
    parameters = list(dict.fromkeys(p for section in sections for p in section.parameters))
    run = _Run(sections, group, count, torch.is_grad_enabled())
    result: Tensor = _Pipelined.apply(x, run, *parameters)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return result


class _Pipelined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, run: _Run, *parameters: Tensor) -> Tensor:
        ctx.run, ctx.parameters = run, parameters
        return run.forward(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        of_x, sums = ctx.run.backward(grads[0])
        return of_x, None, *(sums.get(parameter) for parameter in ctx.parameters)


@dataclass(slots=True)
class _Graphs:
    """Of one sub-batch in one section."""

    x: Tensor
    normed: Tensor
    h: Tensor
    """`normed`, as a beginning."""
    share: Tensor


class _Run:
    """One micro-batch on its way through all sections and back."""

    def __init__(self, sections: Sequence[Section], group: dist.ProcessGroup, count: int, is_recorded: bool) -> None:
        self._sections, self._group, self._count, self._is_recorded = sections, group, count, is_recorded
        self._graphs: list[list[_Graphs]] = []
        self._sums: dict[Tensor, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        xs = list(x.detach().chunk(self._count))
        sums: list[Callable[[], Tensor] | None] = [None] * self._count
        for section in self._sections:
            self._graphs.append([])
            for i, wait in enumerate(sums):
                xs[i] = xs[i] if wait is None else xs[i] + wait()
                sums[i] = self._start(self._computed(section, xs[i]))
        return torch.cat([x if wait is None else x + wait() for x, wait in zip(xs, sums, strict=True)])

    def backward(self, of_output: Tensor) -> tuple[Tensor, dict[Tensor, Tensor]]:
        """The gradient of x, and of each parameter that has one."""
        grads = list(of_output.chunk(self._count))
        coming: list[Callable[[], Tensor] | None] = [None] * self._count
        for section in reversed(self._sections):
            graphs = self._graphs.pop()
            for i in reversed(range(self._count)):
                wait, one = coming[i], graphs[i]
                grads[i] = grads[i] if wait is None else wait()
                of_h = self._back(one.share, one.h, grads[i], section.parameters)
                coming[i] = self._normed_back(section, one, grads[i], self._start(of_h))
        return torch.cat(
            [grad if wait is None else wait() for grad, wait in zip(grads, coming, strict=True)]
        ), self._sums

    def _computed(self, section: Section, x: Tensor) -> Tensor:
        """This rank's share, detached."""
        with torch.set_grad_enabled(self._is_recorded):
            x = x.requires_grad_(self._is_recorded)
            normed = section.norm(x)
            h = normed.detach().requires_grad_(self._is_recorded)
            share = section.work(h)
        if self._is_recorded:
            self._graphs[-1].append(_Graphs(x, normed, h, share))
        return share.detach()

    def _normed_back(
        self, section: Section, one: _Graphs, of_output: Tensor, wait: Callable[[], Tensor]
    ) -> Callable[[], Tensor]:
        """What, when its sum is needed, goes back through the norm, and adds what went past the section."""
        return lambda: of_output + self._back(one.normed, one.x, wait(), section.parameters)

    def _back(self, output: Tensor, x: Tensor, grad: Tensor, parameters: Sequence[Tensor]) -> Tensor:
        """The gradient of x; those of parameters are added up over sub-batches."""
        of_x, *others = torch.autograd.grad([output], [x, *parameters], [grad], allow_unused=True)
        for parameter, found in zip(parameters, others, strict=True):
            if found is None:
                continue
            if parameter in self._sums:
                _local(self._sums[parameter]).add_(_local(found))
            else:
                self._sums[parameter] = found
        return of_x

    def _start(self, share: Tensor) -> Callable[[], Tensor]:
        """Begin to sum it up over the ranks, in place; what is returned waits for it."""
        share = share.contiguous()
        work = dist.all_reduce(share, group=self._group, async_op=True)

        def wait() -> Tensor:
            assert work is not None
            with spans.operation(OPERATION, share.nbytes):
                work.wait()
            return share

        return wait


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
