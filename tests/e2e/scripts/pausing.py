"""An instrumented script. At step 8 of its first attempt, rank 1 stalls in the phase that is asked for.

pausing.py PHASE quiet|loop SECONDS MARK [mesh]: SECONDS 0 is for ever; MARK is a file that the first attempt leaves;
`mesh`: it reports its place in a mesh, as code does in which nothing waits between two operations.
"""

import os
import sys
import threading
import time

import torch
import torch.distributed as dist

from holdfast.agent import probe

phase, how, seconds, mark = sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4]


def stand() -> None:
    if how == "loop":
        while True:
            pass
    read, write = os.pipe()
    if seconds:  # the kernel knows of no end: another thread's timer wakes this one
        threading.Timer(seconds, os.write, (write, b"x")).start()
    os.read(read, 1)


dist.init_process_group("gloo")
rank = dist.get_rank()
is_first = not os.path.exists(mark)
dist.barrier()
if rank == 0:
    open(mark, "a").close()
probe.attach()
if sys.argv[5:] == ["mesh"]:
    probe.mesh(dp=rank, sizes=(1, 2, 1))
probe.phase("train")
for step in range(40):
    if step == 8 and rank == 1 and is_first:
        probe.phase(phase)
        stand()
        probe.phase("train")
    dist.all_reduce(torch.ones(3))
    probe.step(step)
    time.sleep(0.05)
print("rank", rank, "is done", flush=True)
dist.destroy_process_group()
