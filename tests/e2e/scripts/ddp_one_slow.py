"""A training script as third parties write them, with a flaw: one rank does more in its forward than the others."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Layer(nn.Module):
    def __init__(self, extra: float) -> None:
        super().__init__()
        self.linear = nn.Linear(256, 256)
        self.extra = extra

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        began = time.thread_time()
        y = torch.relu(self.linear(x))
        until = time.thread_time() + self.extra * (time.thread_time() - began)
        while time.thread_time() < until:
            pass
        return y


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    extra = 1.0 if int(os.environ["RANK"]) == int(sys.argv[1]) else 0.0
    model = DDP(nn.Sequential(*(Layer(extra) for _ in range(4))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(512, 256)
    for _ in range(int(sys.argv[2])):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
