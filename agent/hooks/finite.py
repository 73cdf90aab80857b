"""Whether an unmodified script trains on finite numbers. Samples its parameters after an optimizer's step.

Parameters, not gradients: AMP's GradScaler makes infinite gradients by design and leaves the step out, a script may
clip or replace them. Once a NaN is in a loss, one step later it is in every parameter that the loss depends on. So a
few elements of a few of them show it, and what only some parameters or only some steps have is no fault.

Never waited for: on a GPU the sums go to pinned memory behind the step's own work, and are read by a later step. The
share of a step that this takes is bounded.
"""

import math
import os
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.agent import probe
from holdfast.agent.hooks.gradients import LocalGradients
from holdfast.agent.probe_file import layout

SHARE = 0.003
"""Of the step's time that the samples may take of the processor's."""
TENSORS, LOOKED_AT = 4, 16
"""Parameters in a sample, and those that are looked at for them."""
ELEMENTS = 1024
"""Of one parameter, at most."""
IN_ROW = 3
"""Samples of different steps, one after the other, in which most parameters are spoilt: a script that goes back to
good parameters by itself is left to do so."""


class Finite:
    """Of all optimizers of a process; one training thread calls it."""

    def __init__(
        self, torch: Any, clock: Callable[[], float] = time.monotonic, cpu: Callable[[], float] = time.thread_time
    ) -> None:
        self._torch, self._clock, self._cpu = torch, clock, cpu
        self._models: weakref.WeakKeyDictionary[Any, _Model] = weakref.WeakKeyDictionary()
        self._next = -math.inf
        self._has_good = self._is_first_unread = False
        self.spoilt = False
        """Whether the parameters of some optimizer are not finite any more, for good."""
        self.began_spoilt = False
        """Whether every sample so far was spoilt, and there was one: it goes on from what it had saved of a NaN."""
        self.samples = 0
        self._gradients = LocalGradients(torch)
        if os.environ.get(layout.ENV_PATH):  # else nobody reads what it reports
            self._gradients.watch_ddp()

    def after(self, optimizer: Any) -> None:
        """A step of this optimizer was done."""
        self._gradients.stepped(optimizer)
        now = self._clock()
        is_due = now >= self._next
        if self.spoilt or not (is_due or self._is_first_unread):
            return
        began = self._cpu()
        try:
            model = self._models.get(optimizer)
            if model is None:
                model = self._models[optimizer] = _Model(self._torch)
            self.samples += is_due
            self.spoilt = model.after(optimizer) if is_due else model.read()
            if model.looks_spoilt:
                self._gradients.report()
            self._note(model)
        except Exception:  # unexpected parameters: no training run may fail because it is watched
            self._next, self._is_first_unread, self.began_spoilt = math.inf, False, False
            return
        if is_due:
            self._next = now + (self._cpu() - began) / SHARE

    def _note(self, model: "_Model") -> None:
        self._has_good = self._has_good or model.has_good
        self.began_spoilt = not self._has_good and (self.began_spoilt or model.has_read)
        self._is_first_unread = not (self._has_good or self.began_spoilt)


class _Model:
    """The parameters of one optimizer."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._cursor = 0
        self._in_row = 0
        self._buffer: Any = None
        self._event: Any = None
        """Of a GPU: the sums are in the buffer once it has happened."""
        self._recorded: Any = None
        self.has_read = self.has_good = False
        """Whether any sample was read, and any was good."""

    @property
    def looks_spoilt(self) -> bool:
        """Whether the last sample was."""
        return self._in_row > 0

    def read(self) -> bool:
        """Take the sums that are on their way, if they are there; whether it is spoilt for good."""
        if self._event is not None and self._event.query():
            self._event = None
            if self._recorded is not None:
                self._recorded.done = True
            self._count(self._buffer.tolist())
        return self._in_row >= IN_ROW

    def after(self, optimizer: Any) -> bool:
        self.read()
        if self._event is not None:
            return False
        sums = list(self._sums(optimizer))
        if sums and sums[0].is_cuda:
            self._send(sums)
        elif sums:
            self._count([float(one) for one in sums])
        return self._in_row >= IN_ROW

    def _count(self, sums: list[float]) -> None:
        spoilt = sum(not math.isfinite(one) for one in sums)
        # Of few parameters one may be infinite by design; of four, two are never.
        most = 2 * spoilt > len(sums) or 2 <= spoilt == len(sums) // 2
        self._in_row = self._in_row + 1 if most else 0
        self.has_read, self.has_good = True, self.has_good or not most

    def _send(self, sums: list[Any]) -> None:
        torch = self._torch
        with torch.cuda.device(sums[0].device):
            if torch.cuda.is_current_stream_capturing():
                return  # a graph would repeat the copy, and no code would read it
            together = torch.stack(sums)
            if self._buffer is None or len(self._buffer) != len(sums):
                self._buffer = torch.empty(len(sums), dtype=together.dtype, device="cpu", pin_memory=True)
            self._buffer.copy_(together, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
            self._recorded = probe.recorded(self._event)

    def _sums(self, optimizer: Any) -> Iterator[Any]:
        """Of elements of some parameters with gradients, others every time; all on one device."""
        found = 0
        device = None
        for parameter in self._some(optimizer):
            if not parameter.requires_grad or parameter.grad is None:
                continue  # what is not trained stays as it is
            local = (parameter.to_local() if hasattr(parameter, "to_local") else parameter).detach()
            if not local.numel() or not local.is_floating_point() or local.device.type not in ("cpu", "cuda"):
                continue
            if device not in (None, local.device):
                continue
            if local.is_cuda and self._torch.cuda.is_current_stream_capturing():
                return
            device = local.device
            yield self._sum(local)
            found += 1
            if found == TENSORS:
                return

    def _sum(self, tensor: Any) -> Any:
        while tensor.dim() > 1 and tensor.numel() > ELEMENTS:
            tensor = tensor[..., 0]
        if tensor.dim() and tensor.numel() > ELEMENTS:
            tensor = tensor[:: -(-tensor.numel() // ELEMENTS)]
        return tensor.sum(dtype=self._torch.float32)  # finite if all are: no model has parameters near 1e38

    def _some(self, optimizer: Any) -> Iterator[Any]:
        groups = [group["params"] for group in optimizer.param_groups]
        count = sum(map(len, groups))
        for _ in range(min(count, LOOKED_AT)):
            at = self._cursor % count
            self._cursor += 1
            for group in groups:
                if at < len(group):
                    yield group[at]
                    break
                at -= len(group)
