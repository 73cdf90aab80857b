"""What a checkpoint holds of a rank, and what must be equal for it to be of use again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from holdfast.trainer.config import Config
from holdfast.trainer.layout import Layout
from holdfast.trainer.mesh import Mesh
from holdfast.trainer.optimizer import Optimizer
from holdfast.trainer.slices import Slice

APPLIED = "optimizer@applied"
"""Name of the number of updates done."""


def settings(config: Config, layout: Layout, data_digest: int) -> dict[str, Any]:
    """Settings that decide what a part holds and what the next step computes, by name."""
    return {
        **{f"model.{key}": value for key, value in asdict(config.model).items()},
        "data.tokenizer": config.data.tokenizer,
        "data.seq_len": config.data.seq_len,
        "data.digest": data_digest,
        "parallel.chunks": f"{layout.chunks} folded" if layout.folded else layout.chunks,
        "parallel.shard_vocabulary": config.parallel.shard_vocabulary,
        "optim.name": config.optim.name,
        "train.dtype": config.train.dtype,
        "train.seed": config.train.seed,
        "train.micro_batches": config.train.micro_batches,
        "train.micro_batch_size": config.train.micro_batch_size,
    }


def capture(slices: list[Slice], optimizer: Optimizer) -> dict[str, Tensor]:
    """This rank's tensors by name: parameters, and for each what the optimizer keeps. Not copied."""
    tensors = {APPLIED: torch.tensor(optimizer.applied)}
    for piece in slices:
        tensors[piece.name] = piece.shard.detach()
        for key, value in optimizer.state(piece).items():
            tensors[f"{piece.name}@{key}"] = value
    return tensors


def put_back(tensors: Mapping[str, Tensor], slices: list[Slice], optimizer: Optimizer) -> None:
    """Undo `capture`."""
    optimizer.applied = int(tensors[APPLIED])
    with torch.no_grad():
        for piece in slices:
            piece.shard.copy_(tensors[piece.name])
            state = {key: tensors[f"{piece.name}@{key}"] for key in optimizer.state(piece)}
            optimizer.set_state(piece, state)


def tiles(slices: list[Slice], mesh: Mesh) -> dict[str, str]:
    """Where each slice lies in its whole parameter, as metadata of a part: shape, offset, size by name."""
    table = {}
    for piece in slices:
        shape = list(piece.parameter.shape)
        offset, size = [0] * len(shape), list(shape)
        if piece.is_split:
            assert isinstance(piece.parameter, DTensor)
            dim = piece.parameter.placements[-1].dim  # type: ignore[attr-defined]
            size[dim] //= mesh.layout.tp
            offset[dim] = mesh.tp_rank * size[dim]
        if piece.is_sharded:
            # FSDP cuts the rows of a tp shard as torch.chunk does: full pieces first, then what is left.
            rows = -(-size[0] // mesh.layout.dp)
            skipped = min(mesh.dp_rank * rows, size[0])
            offset[0], size[0] = offset[0] + skipped, min(rows, size[0] - skipped)
        assert size == list(piece.shard.shape), f"{piece.name}: tile {size}, shard {list(piece.shard.shape)}"
        table[piece.name] = {"shape": shape, "offset": offset, "size": size}
    return {"tiles": json.dumps(table)}
