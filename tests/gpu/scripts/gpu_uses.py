"""A process that uses its GPU in one way, until it is killed: gpu_uses.py FOLDER NAME [RANK PORT]

It prints "is-ready", begins when the file go-NAME is in FOLDER, and prints "it-goes". Names that begin with "nccl" are
for two ranks: in "nccl" and "nccl-32" (channels) rank 0 waits in an all-reduce that rank 1 does not enter, in
"nccl-two" each waits in one of another communicator.
"""

import os
import sys
import time
from pathlib import Path

FOLDER, NAME = Path(sys.argv[1]), sys.argv[2]
if NAME.startswith("nccl"):
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,GRAPH")
if NAME == "nccl-32":
    os.environ.update(NCCL_MIN_NCHANNELS="32", NCCL_MAX_NCHANNELS="32", NCCL_MIN_CTAS="32", NCCL_MAX_CTAS="32")

import torch  # noqa: E402 - it reads its environment


def matmul() -> None:
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    while True:
        for _ in range(20):
            a @ a
        torch.cuda.synchronize()


def idle() -> None:
    while True:
        time.sleep(0.02)


def spin() -> None:
    """One small block that counts cycles and touches no memory."""
    while True:
        torch.cuda._sleep(100_000_000)
        torch.cuda.synchronize()


def copy(pin: bool = True) -> None:
    host = torch.empty(64 << 20, dtype=torch.uint8, pin_memory=pin)
    device = torch.empty_like(host, device="cuda")
    while True:
        for _ in range(10):
            device.copy_(host, non_blocking=True)
            host.copy_(device, non_blocking=True)
        torch.cuda.synchronize()


def nccl() -> None:
    if RANK == 1 and NAME != "nccl-two":
        idle()
    distributed.all_reduce(number, group=GROUPS[RANK if NAME == "nccl-two" else 0])
    torch.cuda.synchronize()


torch.cuda.set_device(0)
number = torch.ones(1 << 22, device="cuda")
if NAME.startswith("nccl"):
    from torch import distributed

    RANK, port = int(sys.argv[3]), sys.argv[4]
    distributed.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=RANK, world_size=2)
    GROUPS = [distributed.new_group([0, 1]) for _ in range(2)]
    for group in GROUPS:
        distributed.all_reduce(number, group=group)
torch.cuda.synchronize()
print("is-ready", flush=True)
while not (FOLDER / f"go-{NAME}").exists():
    time.sleep(0.02)
print("it-goes", flush=True)
{"matmul": matmul, "idle": idle, "spin": spin, "copy": copy, "pageable": lambda: copy(pin=False)}.get(NAME, nccl)()
