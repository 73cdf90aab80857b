"""One rank of a job without the others: its collectives give nothing, and are counted. Needs torch.

For what a rank holds, and how often it meets the others. What it computes is worthless.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from holdfast.trainer.mesh.mesh import RankMesh
from holdfast.trainer.settings.layout import TrainerLayout


@contextmanager
def rank_of(layout: TrainerLayout, rank: int = 0) -> Iterator[RankMesh]:
    """A rank of such a job, on torch's fake backend. Only where no process group exists yet."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    store = FakeStore()
    dist.init_process_group("fake", store=store, rank=rank, world_size=layout.world)
    try:
        ranks = torch.arange(layout.world).view(layout.pp, layout.dp, layout.tp)
        mesh = DeviceMesh("cpu", ranks, mesh_dim_names=("pp", "dp", "tp"))
        yield RankMesh(layout, torch.device("cpu"), mesh, *layout.coordinate(rank), store, timedelta(seconds=60))
    finally:
        dist.destroy_process_group()


def tensor_bytes() -> int:
    """Of all tensors that Python can reach and their gradients, shared memory counted once."""
    gc.collect()
    storages: dict[int, int] = {}
    for thing in gc.get_objects():
        if not issubclass(type(thing), torch.Tensor) or type(thing).__name__ == "FakeTensor":
            continue
        for tensor in (thing, thing.grad if thing.is_leaf else None):
            if tensor is None:
                continue
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            if local.layout is not torch.strided:  # a sparse one has no storage of its own
                continue
            storage = local.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
