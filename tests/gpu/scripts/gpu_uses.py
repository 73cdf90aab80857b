"""A process that uses its GPU in one way: gpu_uses.py FOLDER NAME [RANK PORT]

It begins when the file go-NAME is in FOLDER, and ends when stop-NAME is. "nccl" is for two ranks: rank 1 does not enter
the second all-reduce before that.
"""

import os
import sys
import time
from pathlib import Path

import torch

FOLDER, NAME = Path(sys.argv[1]), sys.argv[2]
stop = FOLDER / f"stop-{NAME}"


def is_over() -> bool:
    return stop.exists()


def matmul() -> None:
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    while not is_over():
        for _ in range(20):
            a @ a
        torch.cuda.synchronize()


def idle() -> None:
    while not is_over():
        time.sleep(0.02)


def spin() -> None:
    """One small block that counts cycles and touches no memory."""
    while not is_over():
        torch.cuda._sleep(100_000_000)
        torch.cuda.synchronize()


def copy() -> None:
    host = torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True)
    device = torch.empty_like(host, device="cuda")
    while not is_over():
        for _ in range(10):
            device.copy_(host, non_blocking=True)
            host.copy_(device, non_blocking=True)
        torch.cuda.synchronize()


def nccl() -> None:
    if RANK == 1:
        idle()
    distributed.all_reduce(number)
    torch.cuda.synchronize()


torch.cuda.set_device(0)
number = torch.ones(1 << 20, device="cuda")
if NAME == "nccl":
    from torch import distributed

    RANK, port = int(sys.argv[3]), sys.argv[4]
    distributed.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=RANK, world_size=2)
    distributed.all_reduce(number)
torch.cuda.synchronize()
print("ready", flush=True)
while not (FOLDER / f"go-{NAME}").exists():
    time.sleep(0.02)
globals()[NAME]()
print("done", flush=True)
os._exit(0)  # without what NCCL does at the end
