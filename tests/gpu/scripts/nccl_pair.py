"""One of two ranks that reduce again and again: nccl_pair.py FOLDER RANK PORT

While the file `lag` is in FOLDER, rank 1 begins no operation, and has written into `lags` how many it has begun. Both
end when `stop` is there.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed

folder, rank, port = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.cuda.set_device(0)
meet = f"tcp://127.0.0.1:{port}"
distributed.init_process_group("nccl", init_method=meet, rank=rank, world_size=2, timeout=timedelta(seconds=90))
number = torch.ones(1, device="cuda")
begun = 0
while True:
    stop = number.fill_(float((folder / "stop").exists()))
    if rank == 1 and (folder / "lag").exists():
        (folder / "lags").write_text(str(begun))
        while (folder / "lag").exists():
            time.sleep(0.01)
    distributed.all_reduce(stop)
    begun += 1
    if stop.item():  # the same at both
        break
    if begun == 1:
        print("ready", flush=True)
    time.sleep(0.02)
print("done", begun, flush=True)
os._exit(0)
