"""Each rank of a job of dp x tp in a process of its own: where its part of a row-split, FSDP-sharded matrix lies.

Prints one JSON line for each rank and number of rows: that number, offset, size, and the first column of the part,
which counts the rows of the whole.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

from holdfast.checkpoint.worker.torch_state import place


def work(rank: int, dp: int, tp: int, all_rows: list[int]) -> None:
    dist.init_process_group("fake", rank=rank, world_size=dp * tp)
    mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    for rows in all_rows:
        module = nn.Linear(2, rows, bias=False)
        part = torch.arange(rows).float()[:, None].repeat(1, 2).chunk(tp)[rank % tp].clone()
        module.weight = nn.Parameter(DTensor.from_local(part, mesh["tp"], [Shard(0)], run_check=False))
        fully_shard(module, mesh=mesh["dp"])
        assert isinstance(module.weight, DTensor)
        _, shard = place("w", module.weight)
        print(json.dumps([rows, shard.offset, shard.size, module.weight.to_local()[:, 0].tolist()]), flush=True)


if __name__ == "__main__":
    dp, tp, *all_rows = map(int, sys.argv[1:])
    for rank in range(dp * tp):
        pid = os.fork()
        if pid == 0:
            work(rank, dp, tp, all_rows)
            os._exit(0)
        os.waitpid(pid, 0)
