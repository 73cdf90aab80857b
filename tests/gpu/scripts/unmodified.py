"""A script without instrumentation on a GPU: unmodified.py FOLDER WHAT

"pause" is for one rank: an evaluation that it hands to the GPU as a whole, and one long kernel. The others are for two
ranks on one GPU: "ddp" trains to its end and goes on from its own checkpoint, in "lock" rank 1 stops before an
all-reduce, in "skip" it leaves one out. NAME.begun in FOLDER shows that something has begun.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

RANK = int(os.environ["RANK"])
# Ranks that share a GPU are hosts of their own to NCCL.
os.environ.update(NCCL_HOSTID=f"pretended-host-{RANK}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
FOLDER, WHAT = Path(sys.argv[1]), sys.argv[2]
BETWEEN = 60
"""Steps between two pauses: what is longer than usual is judged by the last 50 steps."""
EVALUATION_S, KERNEL_S = 7.0, 5.0
torch.cuda.set_device(0)
torch.manual_seed(0)
model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU(), torch.nn.Linear(256, 1)).cuda()


def begins(name: str) -> None:
    (FOLDER / f"{name}.begun").touch()


def step() -> None:
    loss = model(torch.randn(64, 256, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    loss.item()
    time.sleep(0.02)


def seconds(work: Callable[[], object], times: int = 1) -> float:
    torch.cuda.synchronize()
    began = time.monotonic()
    for _ in range(times):
        work()
    torch.cuda.synchronize()
    return max(time.monotonic() - began, 1e-6)


def pause() -> None:
    for _ in range(BETWEEN):
        step()
    a = torch.randn(16384, 16384, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(a)

    def evaluate() -> None:
        torch.mm(a, a, out=out)

    evaluate()
    each = seconds(evaluate, 5) / 5
    begins("evaluation")
    print(f"evaluation: {seconds(evaluate, min(900, int(EVALUATION_S / each) + 1)):.1f} s", flush=True)
    begins("steps")
    for _ in range(BETWEEN):
        step()
    cycles = 100_000_000
    each = seconds(lambda: torch.cuda._sleep(cycles))
    begins("kernel")
    print(f"kernel: {seconds(lambda: torch.cuda._sleep(int(cycles * KERNEL_S / each))):.1f} s", flush=True)
    begins("last")
    for _ in range(BETWEEN):
        step()


def pair() -> None:
    global model, optimizer
    dist.init_process_group("nccl")
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    model = DistributedDataParallel(model, device_ids=[0])
    optimizer = torch.optim.AdamW(model.parameters())
    path, begin = FOLDER / "state.pt", 0
    if path.exists():
        state = torch.load(path, map_location="cuda")
        model.load_state_dict(state["model"])
        begin = state["step"]
    print(f"begins at {begin}", flush=True)
    for number in range(begin, 150):
        step()
        if number == BETWEEN and WHAT in ("lock", "skip"):
            if RANK == 1:
                begins(WHAT)
            if RANK == 1 and WHAT == "lock":
                lock = threading.Lock()
                lock.acquire()
                lock.acquire()
        for group in (first, second):
            if number == BETWEEN and WHAT == "skip" and RANK == 1 and group is first:
                continue
            dist.all_reduce(torch.ones(3, device="cuda"), group=group)
            torch.cuda.synchronize()
        if RANK == 0 and number % 10 == 9:
            torch.save({"model": model.state_dict(), "step": number + 1}, FOLDER / "part.pt")
            (FOLDER / "part.pt").replace(path)
    dist.destroy_process_group()


optimizer = torch.optim.AdamW(model.parameters())
pause() if WHAT == "pause" else pair()
print("ends", flush=True)
