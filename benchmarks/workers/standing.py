"""What the scripts of `benchmarks/pauses.py` share: three plain DDP ranks that knew nothing of Holdfast.

Steps of about 30 ms; after `BEFORE` of them something happens, and then come `AFTER` more.
"""

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

BEFORE, AFTER = 40, 40
RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))


class Trainer:
    """One rank. `step` is one optimizer step; without a process group it trains alone."""

    def __init__(self, folder: Path, is_distributed: bool = True) -> None:
        torch.set_num_threads(1)
        self.folder = folder
        if is_distributed and WORLD > 1:
            dist.init_process_group("gloo", timeout=timedelta(minutes=30))
        torch.manual_seed(0)
        plain = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 1))
        self.model = DistributedDataParallel(plain) if is_distributed and WORLD > 1 else plain
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)

    def step(self, inside: Callable[[], None] = lambda: None) -> None:
        time.sleep(0.02)
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(32, 256)).square().mean()
        inside()
        loss.backward()
        self.optimizer.step()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()


def mark(folder: Path, name: str) -> None:
    """Leave a file that says when."""
    (folder / f"{name}-{RANK}").write_text(str(time.time()))


def arguments() -> tuple[str, Path, float]:
    """CASE FOLDER SECONDS."""
    return sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
