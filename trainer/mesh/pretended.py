"""One rank of a job without the others: its collectives give nothing. Needs torch.

For what a rank holds, and how often it meets the others. What it computes is worthless.
"""

from __future__ import annotations

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
