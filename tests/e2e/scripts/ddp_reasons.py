"""A training script as third parties write them, in which rank 1 takes longer for one reason after the other.

ddp_reasons.py STEPS REASON...: each holds for so many steps, after as many without one: asleep in its forward, a lock
that a thread holds, a dataset that is slow, asleep between steps, and other processes on its processor.
"""

import os
import subprocess
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

REASONS = ("none", *sys.argv[2:])
"""Each is sleep, lock, data, between or host."""
LONGER_S = 0.05
IS_SLOW = int(os.environ["RANK"]) == 1
reason = "none"
lock = threading.Lock()


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if reason == "sleep":
            time.sleep(LONGER_S)
        if reason == "lock":
            taken = threading.Event()
            threading.Thread(target=hold, args=(taken,)).start()
            taken.wait()
            with lock:
                pass
        return self.linear(x)


def hold(taken: threading.Event) -> None:
    with lock:
        taken.set()
        time.sleep(LONGER_S)


class Data(Dataset[torch.Tensor]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, at: int) -> torch.Tensor:
        if reason == "data":
            time.sleep(LONGER_S / 4)
        return torch.randn(256)


def main() -> None:
    global reason
    steps = int(sys.argv[1])
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0)) if IS_SLOW else max(os.sched_getaffinity(0))})
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(nn.Sequential(Layer(), nn.GELU(), nn.Linear(256, 256), nn.Linear(256, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    other = None
    for step, x in enumerate(DataLoader(Data(4 * steps * len(REASONS)), batch_size=4)):
        now = REASONS[step // steps] if IS_SLOW else "none"
        if now == "host" and other is None:  # on this processor, as any process started here
            other = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(5)]
        reason = now
        if reason == "between":
            time.sleep(LONGER_S)
        loss = model(x.repeat(512, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for process in other or []:
        process.kill()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
