"""What forked ranks do in the tests of group timeouts: train until one of them stops, without ending."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch.distributed as dist
from joining import joined
from tasks import command
from torch.distributed.distributed_c10d import _world

from holdfast.trainer.run import loop
from holdfast.trainer.telemetry import spans


def stopped(folder: Path, argv: list[str], rank: int, before: str) -> dict[str, Any]:
    """The command line; in its second step, one rank stops right before its part of an operation of this group."""
    if os.environ["RANK"] == str(rank):
        _stop_before(before)
    return command(folder, argv)


def _stop_before(group: str) -> None:
    operation, start_sum, step = spans.operation, loop.start_sum, loop.Trainer.step
    steps = 0

    def counting(self: loop.Trainer, number: int) -> Any:
        nonlocal steps
        steps += 1
        return step(self, number)

    def stop() -> None:
        if steps == 2:
            os.kill(os.getpid(), signal.SIGSTOP)

    def watched(name: str, num_bytes: int = 0) -> Any:
        if name.startswith(f"{group}:"):
            stop()
        return operation(name, num_bytes)

    def summing(*args: Any) -> Any:
        stop()
        return start_sum(*args)

    loop.Trainer.step = counting  # type: ignore[method-assign]
    if group == "world":
        loop.start_sum = summing  # the wait for it begins after the rank has sent its part
    else:
        spans.operation = watched


def timeouts(folder: Path, argv: list[str]) -> dict[str, list[float]]:
    """Timeouts of all groups that a rank has once its trainer stands, in seconds; a group's name is what made it."""
    found: dict[str, list[float]] = {}
    with joined(argv) as rank:
        rank.trainer()
        for group in _world.pg_map:
            name = "world" if group is dist.group.WORLD else group.group_desc
            options = group._get_backend(rank.mesh.device).options
            found.setdefault(name, []).append(options._timeout.total_seconds())
    return found
