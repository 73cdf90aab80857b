"""What forked ranks do in the tests of training with batches read ahead."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import tasks

from holdfast.trainer.run import loop


def loaders() -> list[int]:
    """Loader processes that this process has started."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        children = ""
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            children = (task / "children").read_text()
        for pid in children.split():
            with suppress(FileNotFoundError, ProcessLookupError):  # a child that has
                if b"holdfast.trainer.data.loader" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(int(pid))
    return found


def train(folder: Path, argv: list[str], kill_loader_at: int = -1) -> dict[str, Any]:
    """The whole trainer, marking its steps; the node's first rank kills the loader at the end of a step."""
    original = loop.Trainer.step
    killed: list[int] = []

    def striking(self: loop.Trainer, step: int) -> Any:
        totals = original(self, step)
        if step == kill_loader_at:
            for pid in loaders():
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        return totals

    loop.Trainer.step = striking  # type: ignore[method-assign]
    return tasks.train(folder, argv, mark=True) | {"killed": len(killed), "left": len(loaders())}
