"""A group all of whose ranks hold what this one holds, over a link in virtual time. Needs torch.

For what overlaps: a collective is on its way while matrices are multiplied, waiting for it takes what is left of it.
Collectives take the link one after another, in proportion to their bytes; products take time in proportion to their
operations, all else none. Results are right, as every peer is a copy of this rank.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class Clock(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Virtual time: goes on by products under it, at `rate` operations a unit of time, and by waits."""

    def __init__(self, rate: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.now, self.rate = 0.0, rate

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.now += count(*args, **(kwargs or {}), out_val=out) / self.rate
        return out


class Mirrored(dist.ProcessGroup):
    """Rank `rank` of `ranks` that are alike. `sent` counts the bytes that this one sends to others."""

    def __init__(self, rank: int, ranks: int, clock: Clock, bytes_per_time: float) -> None:
        super().__init__(rank, ranks)  # type: ignore[call-arg]  # torch has this form too
        self.place, self.ranks, self.clock, self.speed = rank, ranks, clock, bytes_per_time
        self.free, self.sent = 0.0, 0

    def _allgather_base(self, into: Tensor, x: Tensor, opts: Any = None) -> dist.Work:
        into.view(self.ranks, -1).copy_(x.view(1, -1).expand(self.ranks, -1))
        return self._over_link(x.nbytes * (self.ranks - 1))

    def alltoall_base(self, into: Tensor, x: Tensor, into_sizes: Any, sizes: Any, opts: Any = None) -> dist.Work:
        into.view(self.ranks, -1).copy_(x.view(self.ranks, -1)[self.place].expand(self.ranks, -1))
        return self._over_link(x.nbytes // self.ranks * (self.ranks - 1))

    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:  # type: ignore[override]  # one of its forms
        for tensor in tensors:
            tensor.mul_(self.ranks)
        num_bytes = sum(tensor.nbytes for tensor in tensors)
        return self._over_link(2 * num_bytes * (self.ranks - 1) // self.ranks)  # as a ring sends them

    # By another name in older torch.
    all_gather_single = _allgather_base  # type: ignore[assignment]  # its names of arguments
    all_to_all_single = alltoall_base  # type: ignore[assignment]  # one of its two forms

    def getBackendName(self) -> str:
        return "mirrored"

    def _over_link(self, num_bytes: int) -> dist.Work:
        self.sent += num_bytes
        self.free = max(self.free, self.clock.now) + num_bytes / self.speed
        return _Coming(self.clock, self.free)


class _Coming(dist.Work):
    def __init__(self, clock: Clock, due: float) -> None:
        super().__init__()
        self.clock, self.due = clock, due

    def wait(self, *args: Any) -> bool:
        self.clock.now = max(self.clock.now, self.due)
        return True
