"""One rank's trainer under several settings of train.recompute. Imported in the fork server, run in its children."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from executing import digested
from joining import Joined, joined
from torch import nn

from holdfast.trainer.pipeline.recompute import Saved
from holdfast.trainer.run import loop


def each(folder: Path, argv: list[str], settings: list[str], steps: int) -> dict[str, Any]:
    """Gradients and losses by setting, the most bytes that graphs held, and what was planned."""
    with joined(argv) as rank:
        return {setting: _trained(rank, setting, steps) for setting in settings}


def _trained(rank: Joined, setting: str, steps: int) -> dict[str, Any]:
    config = replace(rank.config, train=replace(rank.config.train, recompute=setting))
    trainer = loop.Trainer(config, rank.mesh, rank.corpus)
    digests, losses = digested(trainer), []
    counter = _Peak(nn.ModuleList(trainer.stages))
    # Gathered parameters are others each time, and would be counted.
    with counter if rank.mesh.layout.dp == 1 else nullcontext():
        for step in range(steps):
            losses.append(trainer.step(step).loss.hex())
    planned = trainer.recomputation
    return {
        "digests": digests, "losses": losses, "most": counter.most,
        "planned": planned and planned.bytes[rank.mesh.pp_rank], "spread": planned and planned.spread,
        "kept": planned and sorted({sum(kept) for kept in planned.kept.values()}),
        "actions": [action.text for action in trainer.plan.order_of(rank.launch.rank)],
    }  # fmt: skip


class _Peak(Saved):
    most = 0

    def add(self, place: int, num_bytes: int) -> None:
        super().add(place, num_bytes)
        self.most = max(self.most, self.bytes)
