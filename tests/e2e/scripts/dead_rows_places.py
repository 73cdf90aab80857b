"""Rows of dead_rows.py in which one rank pauses at a place of its step."""

import ctypes
import os
import subprocess
import sys
import threading
import time
from contextlib import nullcontext

import dead_rows_loop as loop
import torch
from dead_rows_loop import (
    FOLDER,
    LONG_S,
    PAUSE_AT,
    PLACES,
    RANK,
    SHORT_S,
    STEPS,
    computes,
    ddp,
    init,
    late_reply,
    net,
    numbered,
    on,
    reads,
    row,
    train,
)
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@row
def idle_in_forward() -> None:
    def waits(seconds: float) -> None:
        """For a reply, for an event, for a child."""
        reads(seconds)
        done = threading.Event()
        threading.Timer(seconds, done.set).start()
        done.wait()
        subprocess.run(["sleep", str(seconds)], check=True)

    ddp(forward=on(0, waits, 4.0))


@row
def computes_in_forward() -> None:
    ddp(forward=on(0, computes, 8.0))


@row
def recompiles_in_forward() -> None:
    """Another shape, on the one rank that compiles."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(FOLDER / "inductor")
    init()
    torch.manual_seed(0)
    inner: nn.Module = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1))
    if RANK == 0:
        inner = torch.compile(inner, dynamic=False)
    train(DistributedDataParallel(inner), size=lambda: 9 if (loop.now, RANK) == (PAUSE_AT, 0) else 8)


@row
def idle_in_backward() -> None:
    ddp(backward=on(0, reads, LONG_S))


@row
def idle_in_a_hook_of_backward() -> None:
    ddp(gradient=on(1, time.sleep, LONG_S))


@row
def idle_between_backward_and_step() -> None:
    ddp(after_backward=on(0, reads, LONG_S))


@row
def idle_before_the_next_micro_batch() -> None:
    init()
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for number in numbered(STEPS):
        for micro in range(2):
            if (number, micro, RANK) == (PAUSE_AT, 1, 0):
                reads(LONG_S)
            with nullcontext() if micro else model.no_sync():
                model(torch.randn(8, 32)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@row
def idle_with_an_update_of_its_own() -> None:
    init()
    model = DistributedDataParallel(net())
    for number in numbered(STEPS):
        model(torch.randn(8, 32)).square().mean().backward()
        if (number, RANK) == (PAUSE_AT, 0):
            reads(LONG_S)
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 1e-3 * weight.grad
                weight.grad = None


@row
def executes_itself_again() -> None:
    """And trains for longer than it took until the old image's silence was held against the new one."""
    if "DEAD_ROWS_AGAIN" not in os.environ:
        os.environ["DEAD_ROWS_AGAIN"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    init()
    PLACES["between"] = on(0, time.sleep, 2.0)
    train(DistributedDataParallel(net()), 700)


@row
def reads_with_the_interpreters_lock() -> None:
    def native(seconds: float) -> None:
        with late_reply(seconds) as connection:
            ctypes.PyDLL(None).recv(connection.fileno(), ctypes.create_string_buffer(1), 1, 0)

    ddp(between=on(0, native, SHORT_S))
