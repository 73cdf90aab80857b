"""A training script as third parties write them, with two flaws: rank 1's optimizer takes 30 ms longer, and rank 2's
forward 200 ms in each tenth step."""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

RANK = int(os.environ["RANK"])


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        time.sleep(0.05)  # an accelerator's time
        if RANK == 2 and self.steps % 10 == 0:
            time.sleep(0.2)
        return self.layers(x)


class Mine(torch.optim.SGD):
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        if RANK == 1:
            time.sleep(0.03)
        return super().step(closure)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(Model())
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.01)  # so torch has hooked the base as well
    optimizer = Mine(model.parameters(), lr=0.01)
    for _ in range(int(sys.argv[1])):
        loss = model(torch.randn(8, 64)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
