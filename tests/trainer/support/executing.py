"""One trainer twice in one process of each rank: on torch's runtime, and on the trainer's own executor."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
import torch_runtime
from joining import Joined, joined
from torch.distributed.tensor import DTensor

from holdfast.trainer.pipeline import pipeline
from holdfast.trainer.run import loop
from holdfast.trainer.telemetry import spans


def both(folder: Path, argv: list[str], steps: int) -> dict[str, Any]:
    """Losses and a digest of gradients of each step, and the spans of actions, by executor."""
    kept = pipeline.build_executor
    found = {}
    with joined(argv) as rank:
        for name, build in (("torch", torch_runtime.build), ("own", kept)):
            pipeline.build_executor = build  # type: ignore[assignment]
            found[name] = _trained(rank, steps)
    return found


def _trained(rank: Joined, steps: int) -> dict[str, Any]:
    trainer = rank.trainer()
    seen: list[list[Any]] = []
    original = spans.action

    def action(op: Any, stage: int, micro_batch: int = -1, turn: int = 0, num_bytes: int = 0) -> Any:
        seen[-1].append([op, stage, micro_batch, turn, num_bytes])
        return original(op, stage, micro_batch, turn, num_bytes)

    spans.action = action
    losses, digests = [], digested(trainer)
    for step in range(steps):
        seen.append([])
        losses.append(trainer.step(step).loss.hex())
    spans.action = original
    order = [[a.op, a.stage, a.micro_batch, a.turn] for a in trainer.plan.order_of(rank.launch.rank)]
    return {"losses": losses, "digests": digests, "spans": seen, "order": order}


def digested(trainer: loop.Trainer) -> list[list[str]]:
    """By step that `trainer` does from now on, digests of its gradients as backward has left them."""
    found: list[list[str]] = []
    gradients = trainer.gradients

    def noted(step: int) -> None:
        gradients(step)
        found.append([digest(piece.shard.grad) for piece in trainer.optimizer.slices])

    trainer.gradients = noted  # type: ignore[method-assign]
    return found


def digest(tensor: torch.Tensor | None) -> str:
    assert tensor is not None
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return hashlib.sha256(local.detach().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
