"""Whose gradients were the first that are not finite: DDP's all-reduce spreads a NaN to every rank's parameters in the
same step, so a rank's own gradients are looked at before it.

A few small parameters' gradients are summed as they arrive, for each step into a row of a ring that stays on the
device. The ring is read only once parameters look spoilt (`finite.py`): the rank whose row alone went bad first is
the origin. The hooks are on autograd's nodes, as DDP's own are, and on no tensor of the script. As many parameters are
watched as cost `SHARE` of a step, one at least.
"""

import functools
import json
import math
import time
import weakref
from collections.abc import Callable
from typing import Any

from holdfast.agent.probe_file import side_files

SUFFIX = ".gradients"
"""Suffix of the file beside the probe's in which a worker says since which step its own gradients are not finite."""
SHARE = 0.003
RING = 256
"""Steps."""
MOST = 32
"""Parameters that are watched."""
SMALL = 1 << 16
"""Elements: of a bias every sample of a batch reaches each; of larger parameters a part is looked at, and later."""
_ELEMENTS = 1024
_MEASURED = 16  # steps after which the number of watched parameters follows from what one costs


class LocalGradients:
    """The gradients of all DDP modules of a process, before any reduction."""

    def __init__(self, torch: Any, clock: Callable[[], float] = time.perf_counter) -> None:
        self._torch, self._clock = torch, clock
        self._rings: dict[Any, Any] = {}  # device -> (RING, MOST) sums
        self._rows: dict[Any, Any] = {}
        self._waiting: list[weakref.ref[Any]] = []
        """Parameters of which none is watched yet, the most telling first."""
        self._first: weakref.ref[Any] | None = None
        self._reading: tuple[list[Any], Any, int] | None = None
        self._spent = 0.0
        self._calls = 0
        self._began = math.nan
        self._said: int | None = None
        self.count = 0
        """Steps of the first optimizer: in data-parallel training the same on all ranks."""
        self.watched = 0

    def watch_ddp(self) -> None:
        """Every DDP module that is built from now on."""
        ddp = self._torch.nn.parallel.DistributedDataParallel
        build = ddp.__init__

        @functools.wraps(build)
        def watched(module: Any, *args: Any, **kwargs: Any) -> None:
            build(module, *args, **kwargs)
            self.attach(module)

        ddp.__init__ = watched

    def attach(self, module: Any) -> None:
        """Its all-reduces begin with the hooks that it has on the same nodes."""
        try:
            ignored = getattr(module, "parameters_to_ignore", ())
            trained = [p for name, p in module.module.named_parameters() if p.requires_grad and name not in ignored]
            found = [p for p in trained if p.is_floating_point() and p.device.type in ("cpu", "cuda")]
            small = [p for p in found if p.numel() <= SMALL]
            large = [p for p in found if p.numel() > SMALL]
            self._waiting += [weakref.ref(p) for p in [*spread(small), *spread(large)]]
            self._grow(1)
        except Exception:  # no training run may fail because it is watched
            self._waiting = []

    def _grow(self, to: int) -> None:
        while self._waiting and self.watched < min(to, MOST):
            parameter = self._waiting.pop(0)()
            if parameter is None:
                continue
            with self._torch.enable_grad():
                node = parameter.view_as(parameter).grad_fn.next_functions[0][0]
            node.register_prehook(functools.partial(self._seen, self.watched, weakref.ref(parameter)))
            self.watched += 1

    def _seen(self, column: int, parameter: Callable[[], Any], gradients: Any) -> None:
        """Before the gradient is added to what the parameter has, and DDP takes it."""
        began = self._clock()
        try:
            self._add(column, parameter(), gradients[0])
        except Exception:
            return
        self._spent += self._clock() - began
        self._calls += 1

    def _add(self, column: int, parameter: Any, gradient: Any) -> None:
        torch = self._torch
        if gradient is None or gradient.layout is not torch.strided or torch.compiler.is_compiling():
            return
        if gradient.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        local = gradient.detach()
        row = self._rows.get(local.device)
        if row is None:
            ring = self._rings[local.device] = torch.zeros(RING, MOST, device=local.device)
            row = self._rows[local.device] = ring[self.count % RING]
        if local.numel() > SMALL:
            while local.dim() > 1 and local.numel() > _ELEMENTS:
                local = local[..., 0]
            local = local[:: max(1, local.numel() // _ELEMENTS)]
        total = local.sum(dtype=torch.float32)
        if parameter is None or parameter.grad is None:
            row[column].copy_(total)  # after a step that AMP left out, what made it do so counts no longer
        else:
            row[column].add_(total)

    def stepped(self, optimizer: Any) -> None:
        """A step of this optimizer was done."""
        first = self._first() if self._first is not None else None
        if first is None:
            self._first = weakref.ref(optimizer)
        elif first is not optimizer:
            return
        self.count += 1
        for device, ring in self._rings.items():
            row = self._rows[device] = ring[self.count % RING]
            row.zero_()
        if self.count % _MEASURED == 0 and self._waiting:
            now = self._clock()
            if self._calls and now > self._began:
                each, step = self._spent / self._calls, (now - self._began) / _MEASURED
                self._grow(min(2 * self.watched, int(SHARE * step / max(each, 1e-7))))
            self._began, self._spent, self._calls = now, 0.0, 0

    def report(self) -> None:
        """The parameters look spoilt: leave word since which step this rank's own gradients are not finite, or that
        they never were so. On a GPU the ring is copied first, and read in a later call."""
        if self._reading is None:
            sums = [ring.sum(dim=1) for ring in self._rings.values()]
            event = None
            if any(one.is_cuda for one in sums):
                sums = [one.to("cpu", non_blocking=True) if one.is_cuda else one for one in sums]
                event = self._torch.cuda.Event()
                event.record()
            self._reading = sums, event, self.count
        sums, event, count = self._reading
        if event is not None and not event.query():
            return
        self._reading = None
        good = [all(map(math.isfinite, row)) for row in zip(*(one.tolist() for one in sums), strict=True)]
        if (since := bad_since(good, count)) != self._said:
            self._said = since
            said = json.dumps({"since": since, "steps": count, "watched": self.watched}).encode()
            side_files.leave_file(SUFFIX, said, "it is not reported whose gradients were not finite")


def bad_since(good: list[bool], count: int) -> int:
    """The first of the newest steps whose sums are not finite without a break, -1 where the newest is good, and where
    the ring does not hold the first. `good`: of step n at n modulo its length, of which `count` are done."""
    step = count - 1
    while step >= 0 and step > count - len(good) and not good[step % len(good)]:
        step -= 1
    is_lost = step >= 0 and step <= count - len(good)
    return -1 if is_lost or step == count - 1 else step + 1


def spread(items: list[Any]) -> list[Any]:
    """The first, the last, the middle one, and so on: any beginning of it is spread over all of them."""
    order: dict[int, None] = {}
    parts = 1
    while len(order) < len(items):
        order |= dict.fromkeys(i * (len(items) - 1) // parts for i in range(parts + 1))
        parts *= 2
    return [items[at] for at in order]
