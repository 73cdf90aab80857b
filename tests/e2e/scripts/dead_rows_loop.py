"""Shared by the rows of dead_rows.py: the ways in which a rank waits, and a training loop that says where it is."""

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

ROW, FOLDER = sys.argv[1], Path(sys.argv[2])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STEPS, PAUSE_AT = 24, 12
SHORT_S, LONG_S = 5.0, 13.0
"""Longer than 1 to 4 s, and than 10 s, after which healthy ranks were ended."""
ROWS: dict[str, Callable[[], None]] = {}
PLACES: dict[str, Callable[[], None]] = {}
"""Functions that a rank runs at a place of step PAUSE_AT; the place is the key."""
now = -1
"""The step."""


def row(script: Callable[[], None]) -> Callable[[], None]:
    ROWS[script.__name__.replace("_", "-")] = script
    return script


def at(place: str) -> None:
    if now == PAUSE_AT and place in PLACES:
        PLACES.pop(place)()


# --- how a rank waits ----------------------------------------------------------------------------------------------


def late_reply(seconds: float) -> socket.socket:
    """A connection to a process that sends a byte after so long."""
    listener = socket.create_server(("127.0.0.1", 0))
    if not os.fork():
        peer = listener.accept()[0]
        time.sleep(seconds)
        peer.sendall(b"x")
        os._exit(0)
    connection = socket.create_connection(listener.getsockname())
    listener.close()
    return connection


def reads(seconds: float) -> None:
    with late_reply(seconds) as connection:
        connection.recv(1)


def computes(seconds: float) -> None:
    a, end = torch.randn(200, 200), time.monotonic() + seconds
    with torch.no_grad():
        while time.monotonic() < end:
            a @ a


def on(rank: int, action: Callable[[float], None], seconds: float) -> Callable[[], None]:
    return lambda: action(seconds) if rank == RANK else None


# --- the training loop ---------------------------------------------------------------------------------------------


class _Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        at("backward")
        return gradient


class Place(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        at("forward")
        return _Backward.apply(x)


def net() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(32, 32), Place(), nn.Linear(32, 1))
    made[0].weight.register_hook(lambda gradient: at("gradient"))
    return made


def init() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))


def numbered(count: int) -> Iterator[int]:
    global now
    for now in range(count):
        time.sleep(0.02)
        yield now


def train(model: nn.Module, count: int = STEPS, size: Callable[[], int] = lambda: 8) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in numbered(count):
        at("loader")
        optimizer.zero_grad()
        model(torch.randn(size(), 32)).square().mean().backward()
        at("after-backward")
        optimizer.step()
        at("between")


def ddp(**places: Callable[[], None]) -> None:
    """Plain DDP, which pauses at these places."""
    init()
    PLACES.update({name.replace("_", "-"): action for name, action in places.items()})
    train(DistributedDataParallel(net()))
