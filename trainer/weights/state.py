"""What a checkpoint holds of a rank, and what must be equal for it to be of use again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from holdfast.checkpoint.format.arrays import HeldShard
from holdfast.checkpoint.format.tiles import GlobalTensor
from holdfast.checkpoint.worker.torch_state import dtype_name, of_local, place
from holdfast.plan.tiles import TensorShard
from holdfast.trainer.optim.optimizer import Optimizer
from holdfast.trainer.optim.slices import Slice
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.optimizers import OPTIMIZERS

APPLIED = "optimizer.applied"
"""Name of the number of updates done."""


def settings(config: Config, data_digest: int) -> dict[str, Any]:
    """Settings that decide what the state means and what the next step computes, by name: not how it is spread."""
    return {
        **(
            {"module.build": config.module.build}
            if config.module.build
            else {f"model.{key}": value for key, value in asdict(config.model).items()}
        ),
        "data.tokenizer": config.data.tokenizer,
        "data.seq_len": config.data.seq_len,
        "data.digest": data_digest,
        "optim.name": config.optim.name,
        **{f"optim.{key}": getattr(config.optim, key) for key in OPTIMIZERS[config.optim.name].fixed},
        # By default it is not named: older checkpoints do not have it.
        **(
            {"parallel.partial_backward": config.parallel.partial_backward}
            if config.parallel.partial_backward > 1
            else {}
        ),
        "train.dtype": config.train.dtype,
        "train.seed": config.train.seed,
        "train.micro_batches": config.train.micro_batches,
        "train.micro_batch_size": config.train.micro_batch_size,
    }


def tensors(slices: Sequence[Slice], optimizer: Optimizer) -> dict[str, tuple[GlobalTensor, TensorShard, Tensor]]:
    """What this rank holds, by name: parameters, and for each what the optimizer keeps. Not copied."""
    found: dict[str, tuple[GlobalTensor, TensorShard, Tensor]] = {}
    for piece in slices:
        tensor, shard = place(piece.name, piece.parameter)
        # Both copies of a tied embedding may lie on one rank; they are equal.
        found[piece.name] = (tensor, shard, optimizer.value(piece))
        for key, value in optimizer.state(piece).items():
            more = GlobalTensor(f"{piece.name}@{key}", tensor.shape, dtype_name(value.dtype))
            found[more.name] = (more, shard, value)
    for name, value in optimizer.owned().items():
        found[name] = (*place(name, value), value)
    return found


def capture(slices: Sequence[Slice], optimizer: Optimizer) -> dict[str, list[HeldShard]]:
    """The same as bytes with a place. On a CPU not copied."""
    return {name: [of_local(*one)] for name, one in tensors(slices, optimizer).items()}


def values(optimizer: Optimizer) -> dict[str, Any]:
    """State that is no tensor. Random numbers and the place in the data follow from the step alone."""
    return {APPLIED: optimizer.applied}


def put_back(
    found: Mapping[str, Tensor], values: Mapping[str, Any], slices: Sequence[Slice], optimizer: Optimizer
) -> None:
    """Undo `tensors` and `values`. What is the trainer's own memory, is in place already."""
    optimizer.applied = int(values[APPLIED])
    with torch.no_grad():
        for piece in slices:
            optimizer.set_value(piece, found[piece.name])
            state = {key: found[f"{piece.name}@{key}"] for key in optimizer.state(piece)}
            optimizer.set_state(piece, state)
        for name, value in optimizer.owned().items():
            if found[name].data_ptr() != value.data_ptr():
                value.copy_(found[name])


def shards(slices: Sequence[Slice]) -> dict[str, tuple[GlobalTensor, TensorShard]]:
    """Where each slice lies in its whole parameter."""
    return {piece.name: place(piece.name, piece.parameter) for piece in slices}
