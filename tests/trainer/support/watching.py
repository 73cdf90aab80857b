"""Ranks that a probe watches. Imported in the fork server, run in its children."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from holdfast.agent.probe_file.layout import ENV_PATH
from holdfast.trainer.__main__ import parse
from holdfast.trainer.run import loop
from holdfast.trainer.settings.launch import from_environment


def train(folder: Path, argv: list[str]) -> dict[str, Any]:
    """The whole trainer with a probe file of this rank; the rank's list of the plan, and losses."""
    launch = from_environment(os.environ)
    os.environ[ENV_PATH] = str(folder / f"probe-{launch.rank}")
    found: list[Any] = []
    original = loop.Trainer.step

    def watched(self: loop.Trainer, step: int) -> Any:
        found[:] = self.plan.order_of(launch.rank)
        return original(self, step)

    loop.Trainer.step = watched  # type: ignore[method-assign]
    outcome = loop.run(parse(argv), launch)
    order = [(action.op, action.stage, action.micro_batch, action.turn) for action in found]
    return {"order": order, "losses": outcome.losses}
