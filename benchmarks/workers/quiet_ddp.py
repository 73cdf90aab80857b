"""A small model under DDP that nothing is wrong with, for so many seconds: python quiet_ddp.py SECONDS WIDTH"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    until, width = time.monotonic() + float(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = TensorDataset(torch.randn(2048, width))
    over = torch.zeros(1)
    while not over.item():
        for (x,) in DataLoader(data, batch_size=16):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        over.fill_(time.monotonic() > until)
        dist.all_reduce(over)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
