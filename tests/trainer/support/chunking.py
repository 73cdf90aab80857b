"""What forked ranks do in the tests of model data in chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from joining import joined


def steps(folder: Path, argv: list[str]) -> dict[str, Any]:
    """All steps: losses, what this rank moved and received in each, and its own parameters into a file."""
    torch.set_num_threads(1)
    losses, moved = [], []
    with joined(argv) as rank:
        trainer = rank.trainer()
        for step in range(rank.config.train.steps):
            losses.append(trainer.step(step).loss)
            if trainer.chunks is not None:
                done = trainer.chunks.moved()
                moved.append([done.fetched, done.evicted, done.received, done.device])
        values = {
            piece.name: (trainer.optimizer.value(piece).detach().clone(), *_where(piece.parameter))
            for piece in trainer.slices
        }
    torch.save(values, folder / f"values-{rank.launch.rank}.pt")
    return {"losses": losses, "moved": moved}


def _where(parameter: torch.Tensor) -> tuple[list[int], list[int]]:
    """Shape and offset in it."""
    from holdfast.checkpoint.worker.torch_state import place

    tensor, shard = place("", parameter)
    return list(tensor.shape), list(shard.offset)
