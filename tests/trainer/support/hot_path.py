"""What forked ranks do in the tests of the hot path: train, and count how often the host asks for a number."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import torch
from calls import Calls

from holdfast.agent import probe
from holdfast.trainer.__main__ import parse
from holdfast.trainer.run import loop
from holdfast.trainer.settings.launch import from_environment


def reads(folder: Path, argv: list[str]) -> dict[str, Any]:
    """In each step: how often one number is read from a tensor, and how often totals are read."""
    scalars: list[int] = []
    totals: list[int] = []
    step, read = loop.Trainer.step, loop.Optimizer.step

    def counted(self: loop.Trainer, number: int) -> Any:
        with Calls(torch.ops.aten._local_scalar_dense.default) as seen:
            done = step(self, number)
        scalars.append(seen.count)
        return done

    def once(self: loop.Optimizer, *args: Any) -> Any:
        totals.append(args[0])
        return read(self, *args)

    loop.Trainer.step, loop.Optimizer.step = counted, once  # type: ignore[method-assign]
    loop.run(parse(argv), from_environment(os.environ))
    return {"scalars": scalars, "totals": totals}


def skipping(folder: Path, argv: list[str], on_device: bool, bad: list[int]) -> dict[str, Any]:
    """Losses with a NaN in some steps on rank 0, which a GPU's update would leave out by itself, or the host does."""
    made, step = loop.Trainer.__init__, loop.Trainer.step
    norms: list[float | None] = []
    now = -1

    def set_up(self: loop.Trainer, *args: Any) -> None:
        made(self, *args)
        self.optimizer.skips_on_device = on_device

    def counted(self: loop.Trainer, number: int) -> Any:
        nonlocal now
        now = number
        done = step(self, number)
        norms.append(done.norm if done.is_finite else None)
        return done

    loop.Trainer.__init__, loop.Trainer.step = set_up, counted  # type: ignore[method-assign]
    probe.poisoned = lambda: os.environ["RANK"] == "0" and now in bad  # type: ignore[assignment]
    outcome = loop.run(parse(argv), from_environment(os.environ))
    return {"losses": [None if math.isnan(loss) else loss for loss in outcome.losses], "norms": norms}
