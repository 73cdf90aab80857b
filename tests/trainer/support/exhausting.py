"""A run whose device runs out of memory in its second step. Imported in the fork server, run in its children."""

from __future__ import annotations

import os
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import torch

from holdfast.trainer.__main__ import main
from holdfast.trainer.run import loop


def second_step(folder: Path, argv: list[str]) -> dict[str, Any]:
    """The exit code of a run in which every rank's second step asks for more than there is, and what it said."""
    real = loop.Trainer.step

    def step(self: loop.Trainer, number: int) -> Any:
        if number == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.50 GiB. GPU 0 has 1 GiB free.")
        return real(self, number)

    loop.Trainer.step = step  # type: ignore[method-assign]  # of this process, which ends
    path = folder / f"said-{os.environ['RANK']}"
    with path.open("w") as said, redirect_stderr(said):
        code = main(argv)
    return {"code": code, "said": path.read_text().splitlines()}
