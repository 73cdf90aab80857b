"""A script without instrumentation, in which rank 1 hangs at step 8 in the way given by the argument.

group: it makes a group that the others do not make.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
what = sys.argv[1]

for step in range(1000):
    if step == 8 and rank == 1:
        match what:
            case "loop":
                while True:
                    pass
            case "pipe":
                read, _write = os.pipe()
                os.read(read, 1)
            case "group":
                dist.new_group()
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    groups = [first, second]
    if step == 8 and rank == 1 and what == "order":
        groups.reverse()
    for group in groups:
        dist.all_reduce(torch.ones(3), group=group)
    time.sleep(0.05)
