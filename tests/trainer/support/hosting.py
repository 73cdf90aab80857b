"""What forked ranks do in the tests of pipeline ranks that differ in tp."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import tasks

from holdfast.agent import probe
from holdfast.trainer.__main__ import parse
from holdfast.trainer.run import loop
from holdfast.trainer.settings.launch import from_environment


def gradients_on_1(folder: Path, argv: list[str]) -> dict[str, Any]:
    """`tasks.gradients` of ranks that take each to be on a host of its own."""
    return _gradients_on(1, folder, argv)


def gradients_on_2(folder: Path, argv: list[str]) -> dict[str, Any]:
    """The same with two on each host."""
    return _gradients_on(2, folder, argv)


def _gradients_on(local: int, folder: Path, argv: list[str]) -> dict[str, Any]:
    os.environ["LOCAL_RANK"] = str(int(os.environ["RANK"]) % local)
    return tasks.gradients(folder, argv)


def tokens(folder: Path, argv: list[str]) -> dict[str, Any]:
    """Train; the tokens of the first step that this rank reports."""
    reported: list[int] = []

    def report(n: int, loss: float | None = None, tokens: int | None = None) -> None:
        reported.append(tokens or 0)

    probe.step = report  # type: ignore[assignment]
    loop.run(parse(argv), from_environment(os.environ))
    return {"tokens": reported[0]}
