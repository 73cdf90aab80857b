"""A plain DDP script that every launcher can start: steps of 50 ms, a checkpoint by rank 0 every ten, no Holdfast.

    torchrun --nproc-per-node 2 benchmarks/workers/toy_ddp.py --folder DIR

Each rank appends a line for every step that it finished to DIR/rankR.log: step, process, Unix time. A file DIR/gil-R
makes rank R hold its interpreter's lock for ever. Under NVIDIA's ft_launcher it beats as that asks for.
"""

import argparse
import ctypes
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

EVERY = 10


def main() -> None:
    cli = argparse.ArgumentParser()
    cli.add_argument("--folder", type=Path, required=True)
    folder = cli.parse_args().folder
    beat = heartbeats()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    newest, first = folder / "newest.pt", 0
    if newest.exists():
        state = torch.load(newest)
        model.module.load_state_dict(state["model"])
        first = state["step"]
    with open(folder / f"rank{rank}.log", "a", buffering=1) as log:
        for step in range(first, 1_000_000):
            x = batch(folder, rank, step)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            beat()
            log.write(done(step))
            if rank == 0 and (step + 1) % EVERY == 0:
                torch.save({"model": model.module.state_dict(), "step": step + 1}, folder / "aside.pt")
                os.replace(folder / "aside.pt", newest)


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))


def batch(folder: Path, rank: int, step: int) -> torch.Tensor:
    """Takes 50 ms, or for ever, if a test asked for it."""
    time.sleep(0.05)
    if (folder / f"gil-{rank}").exists():
        (folder / f"gil-{rank}").unlink()
        libc = ctypes.PyDLL(None)  # which keeps the lock
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # which would end a sleep
        while True:
            libc.sleep(1_000_000)
    return torch.randn(8, 64, generator=torch.Generator().manual_seed(step * 64 + rank))


def done(step: int) -> str:
    return f"{step} {os.getpid()} {time.time():.4f}\n"


def heartbeats():  # type: ignore[no-untyped-def]
    """What NVIDIA's launcher wants to hear after each step; elsewhere nothing."""
    if "FT_RANK_MONITOR_IPC_SOCKET" not in os.environ:
        return lambda: None
    from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

    client = RankMonitorClient()
    client.init_workload_monitoring()
    return client.send_heartbeat


if __name__ == "__main__":
    main()
