"""The frameworks of random scripts: each is a training loop of three ranks on gloo, which says at which place it is.

`framework(name)(at, folder)` sets one up; what it returns makes one step. `at` is called with the name of the place.
Those that need more of torch than DDP are in random_parallel.py.
"""

import os
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

At = Callable[[str], None]
Step = Callable[[int], None]
RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
WIDTH = 30
"""Divisible by the number of ranks."""

FINISH: list[Callable[[], None]] = []
"""Functions that are called instead of `destroy_process_group`."""


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, at: At) -> Tensor:
        ctx.at = at
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.at("backward")
        return gradient, None


class Place(nn.Module):
    """In the middle of a net: the places `forward` and `backward`."""

    def __init__(self, at: At) -> None:
        super().__init__()
        self.at = at

    def forward(self, x: Tensor) -> Tensor:
        self.at("forward")
        return _Backward.apply(x, self.at)


def net(at: At, width_out: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), Place(at), nn.Linear(WIDTH, width_out))


def init() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))


def optimizer_of(model: nn.Module, at: At) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    optimizer.register_step_pre_hook(lambda *_: at("optimizer"))
    return optimizer


def _watched(model: nn.Module, at: At) -> nn.Module:
    """The place `gradient`: in a hook of a parameter."""
    next(model.parameters()).register_hook(lambda gradient: at("gradient"))
    return model


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, at: At, size: Callable[[], int] = lambda: 8) -> Step:
    def step(number: int) -> None:
        optimizer.zero_grad()
        model(torch.randn(size(), WIDTH)).square().mean().backward()
        at("after-backward")
        optimizer.step()

    return step


def ddp(at: At, folder: Path) -> Step:
    init()
    model = DistributedDataParallel(_watched(net(at), at))
    return plain_step(model, optimizer_of(model, at), at)


def accumulate(at: At, folder: Path) -> Step:
    init()
    model = DistributedDataParallel(_watched(net(at), at))
    optimizer = optimizer_of(model, at)

    def step(number: int) -> None:
        for micro in range(3):
            with model.no_sync() if micro < 2 else nullcontext():
                model(torch.randn(8, WIDTH)).square().mean().backward()
            if micro < 2:
                at("micro")
        at("after-backward")
        optimizer.step()
        optimizer.zero_grad()

    return step


def own_update(at: At, folder: Path) -> Step:
    init()
    model = DistributedDataParallel(_watched(net(at), at))

    def step(number: int) -> None:
        model(torch.randn(8, WIDTH)).square().mean().backward()
        at("after-backward")
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 1e-3 * weight.grad
                weight.grad = None

    return step


def subgroup(at: At, folder: Path) -> Step:
    """Ranks 0 and 1 train; rank 2 ends with 0 after its third step, as its authors meant it to."""
    init()
    pair = dist.new_group([0, 1])
    if RANK > 1:
        return lambda number: _leave() if number == 3 else None
    model = DistributedDataParallel(_watched(net(at), at), process_group=pair)
    return plain_step(model, optimizer_of(model, at), at)


def _leave() -> None:
    raise SystemExit(0)


def collectives(at: At, folder: Path) -> Step:
    init()
    model = _watched(net(at), at)
    optimizer, ranks = optimizer_of(model, at), range(WORLD)

    def step(number: int) -> None:
        optimizer.zero_grad()
        loss = model(torch.randn(8, WIDTH)).square().mean()
        loss.backward()
        at("after-backward")
        for weight in model.parameters():
            dist.all_reduce(weight.grad)
        optimizer.step()
        if number % 3 == 0:
            dist.all_gather([torch.zeros(()) for _ in ranks], loss.detach())
            dist.broadcast(loss.data, src=number % WORLD)
        if number % 4 == 0:
            dist.barrier()

    return step


BATCH = [8]
"""Batch size of `compiled`, in this process: another size is compiled anew."""


def compiled(at: At, folder: Path) -> Step:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / f"inductor-{RANK}")
    init()
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 1))
    model = DistributedDataParallel(torch.compile(inner, dynamic=False))
    return plain_step(model, optimizer_of(model, at), at, lambda: BATCH[0])


PLAIN: dict[str, Callable[[At, Path], Step]] = {
    "ddp": ddp, "accumulate": accumulate, "own-update": own_update, "subgroup": subgroup, "collectives": collectives,
    "compiled": compiled,
}  # fmt: skip


def framework(name: str) -> Callable[[At, Path], Step]:
    """The others take seconds to import."""
    if name in PLAIN:
        return PLAIN[name]
    from random_parallel import PARALLEL

    return PARALLEL[name]
