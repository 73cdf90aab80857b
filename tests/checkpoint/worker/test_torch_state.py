"""Where DTensors lie, against what torch itself puts on each rank; bytes to tensors and back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.format.tiles import GlobalTensor, Layout
from holdfast.checkpoint.format.transfer import write_shares
from holdfast.checkpoint.worker.torch_state import DTYPES, of_local, place, to_torch
from holdfast.plan.tiles import TensorShard

WORLD, DP, TP = 6, 3, 2


@pytest.fixture
def ranks() -> Iterator[Iterator[int]]:
    """Be each rank of a job in turn, without any process: nothing is ever communicated."""

    def each() -> Iterator[int]:
        for rank in range(WORLD):
            dist.init_process_group("fake", rank=rank, world_size=WORLD)
            try:
                yield rank
            finally:
                dist.destroy_process_group()

    walk = each()
    yield walk
    walk.close()


@pytest.mark.parametrize("shape", [(7, 5), (6, 4), (1, 8), (2,), (3, 2, 5)])
@pytest.mark.parametrize("split", [(Shard(0), Replicate()), (Shard(0), Shard(0)), (Replicate(), Shard(0))])
def test_shards_are_what_torch_gives_each_rank(
    ranks: Iterator[int], shape: tuple[int, ...], split: tuple[object, ...]
) -> None:
    whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
    held, tensor = [], None
    for _ in ranks:
        mesh = init_device_mesh("cpu", (DP, TP), mesh_dim_names=("dp", "tp"))
        spread = distribute_tensor(whole, mesh, split, src_data_rank=None)
        tensor, shard = place("w", spread)
        assert torch.equal(whole[(*shard.slices, ...)], spread.to_local())
        held.append({"w": [shard]})
    assert tensor is not None
    assert sum(one.num_bytes for one in write_shares(Layout({"w": tensor}, held))) == tensor.num_bytes


@pytest.mark.slow
def test_fsdp_on_top_of_tensor_parallel_rows() -> None:
    """FSDP cuts the rows of each tensor-parallel part: a strided sharding of the whole, uneven where dp = 3.

    In processes, because torch remembers meshes by what they look like, and all ranks' look the same.
    """
    all_rows = [12, 10, 4, 2]
    command = [
        sys.executable,
        str(Path(__file__).parents[1] / "support" / "fsdp_ranks.py"),
        str(DP),
        str(TP),
        *map(str, all_rows),
    ]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(all_rows) * WORLD
    for rows in all_rows:
        ranks = [line[1:] for line in lines if line[0] == rows]
        for offset, size, values in ranks:
            assert values == list(range(offset[0], offset[0] + size[0]))
        assert sorted(row for *_, values in ranks for row in values) == list(range(rows))


def test_sums_that_are_not_done_are_refused(ranks: Iterator[int]) -> None:
    next(ranks)
    mesh = init_device_mesh("cpu", (WORLD,))
    partial = DTensor.from_local(torch.ones(3), mesh, [Partial()], run_check=False)
    with pytest.raises(CheckpointError, match="w is a partial sum"):
        place("w", partial)
    with pytest.raises(CheckpointError, match="complex128 cannot be saved"):
        place("w", torch.ones(1, dtype=torch.complex128))


@pytest.mark.parametrize("name", DTYPES)
def test_bytes_come_back_as_they_were(name: str) -> None:
    bits = torch.arange(48, dtype=torch.uint8).remainder(2)
    local = bits.view(DTYPES[name]).reshape(2, -1)
    tensor, shard = place("w", local)
    assert tensor == GlobalTensor("w", tuple(local.shape), name)
    one = of_local(tensor, shard, local)
    again = to_torch(one)
    assert again.dtype == local.dtype
    assert again.shape == local.shape
    assert bytes(one.data.tobytes()) == bits.numpy().tobytes()
    empty = of_local(
        GlobalTensor("e", (0, 3), name), TensorShard((0, 0), (0, 3)), torch.empty(0, 3, dtype=DTYPES[name])
    )
    assert to_torch(empty).shape == (0, 3)
