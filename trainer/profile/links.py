"""Seconds of collectives among ranks of this machine: gloo on CPUs, NCCL on GPUs. Needs torch.

Ranks are forked, so a GPU must not be in use yet in this process. All groups of one size send at the same time, as they
do in a job: on shared cores, or shared links, that is what a collective takes there.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist

from holdfast.base.errors import HoldfastError
from holdfast.planner.cost.collectives import Collective
from holdfast.planner.cost.measured import Line, fit
from holdfast.trainer.mesh import collectives

BYTES = (1 << 14, 1 << 18, 1 << 21, 1 << 23)
"""Sizes of the whole array: latency at one end, bandwidth at the other."""
DEADLINE_S = 300.0
OPS = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.SEND)
Points = dict[str, dict[int, list[tuple[float, float]]]]
"""By collective and ranks of a group: (bytes, seconds)."""


def measure_links(ranks: int, backend: str, repeats: int, sizes: Sequence[int] = BYTES) -> dict[str, dict[int, Line]]:
    """Lines through what was measured, for groups of 2, 4, ... of so many ranks. HoldfastError if ranks fail."""
    if ranks < 2:
        return {}
    points = _measured(ranks, backend, repeats, sizes)
    return {op: {size: fit(found) for size, found in each.items()} for op, each in points.items()}


def group_sizes(ranks: int) -> list[int]:
    """Divisors of two or more: what layouts of so many ranks can have."""
    return [size for size in range(2, ranks + 1) if ranks % size == 0]


def _measured(ranks: int, backend: str, repeats: int, sizes: Sequence[int]) -> Points:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="holdfast-links-") as folder:
        meet = f"file://{folder}/meet"
        made = [
            context.Process(target=_rank, args=(rank, ranks, backend, meet, repeats, tuple(sizes), sender), daemon=True)
            for rank in range(ranks)
        ]
        for one in made:
            one.start()
        sender.close()
        try:
            if not receiver.poll(DEADLINE_S):
                raise HoldfastError(f"measuring links among {ranks} ranks took more than {DEADLINE_S:g} s")
            try:
                found: Points = receiver.recv()
            except EOFError:
                raise HoldfastError(f"measuring links among {ranks} ranks failed: no rank has an answer") from None
            deadline = time.monotonic() + 30
            for one in made:
                one.join(max(0.0, deadline - time.monotonic()))
            return found
        finally:
            for one in made:
                if one.is_alive():
                    one.kill()
                one.join()


def _rank(
    rank: int, ranks: int, backend: str, meet: str, repeats: int, sizes: tuple[int, ...],
    sender: multiprocessing.connection.Connection,
) -> None:  # fmt: skip
    if backend == "nccl":
        torch.cuda.set_device(rank)
    elif os.path.exists("/sys/class/net/lo"):
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    dist.init_process_group(
        backend, init_method=meet, rank=rank, world_size=ranks, timeout=timedelta(seconds=DEADLINE_S)
    )
    try:
        found: Points = {op.value: {} for op in OPS}
        for size in group_sizes(ranks):
            groups = [dist.new_group(list(range(first, first + size))) for first in range(0, ranks, size)]
            own = groups[rank // size]
            for op in OPS:
                if op is not Collective.SEND or size == 2:
                    found[op.value][size] = [
                        (float(one), _seconds(_operation(op, one, rank, size, own, device), device, repeats))
                        for one in sizes
                    ]
        if rank == 0:
            sender.send({op: each for op, each in found.items() if each})
    finally:
        with suppress(RuntimeError):
            dist.barrier()
        dist.destroy_process_group()


def _operation(
    op: Collective, num_bytes: int, rank: int, size: int, group: dist.ProcessGroup, device: torch.device
) -> Callable[[], object]:
    count = num_bytes // 4 // size * size
    whole, part = torch.ones(count, device=device), torch.ones(count // size, device=device)
    match op:
        case Collective.ALL_REDUCE:
            return lambda: dist.all_reduce(whole, group=group)
        case Collective.ALL_GATHER:
            return lambda: collectives.all_gather(whole, part, group)
        case Collective.REDUCE_SCATTER:
            return lambda: collectives.reduce_scatter(whole.view(size, -1), group)
        case _:
            peer = rank ^ 1
            return (lambda: dist.send(whole, peer)) if rank % 2 == 0 else (lambda: dist.recv(whole, peer))


def _seconds(do: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The least of several rounds, each as long as the slowest rank's: other load only adds."""
    do()
    best = float("inf")
    for _ in range(repeats):
        dist.barrier()
        begun = time.perf_counter()
        do()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        took = torch.tensor([time.perf_counter() - begun], device=device)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        best = min(best, float(took))
    return best
