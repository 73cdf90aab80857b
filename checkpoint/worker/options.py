"""What a run of any kind passes to its manager: where and when, its identity, and what watches it. No torch."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """Where the state goes, and when. Each means what the key of the same name in `docs/trainer.md` means."""

    store: str
    every: int = 50
    keep: int = 3
    keep_every: int = 0
    timeout_s: float = 30.0
    max_mb_per_s: float = 0.0
    mirrors: tuple[str, ...] = ()
    every_s: float = 0.0
    snapshot_every: int = 1
    slots: int = 3
    peers: bool = True


@dataclass(frozen=True, slots=True)
class Run:
    """One worker's place in a job."""

    rank: int = 0
    world: int = 1
    job: str = ""
    generation: int = 0
    """How often the job was started again before this."""


def _say(text: str) -> None:
    print(f"holdfast: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class CheckpointWatch:
    """Callbacks to whatever watches this process; by default nothing does."""

    operation: Callable[[str], contextlib.AbstractContextManager[object]] = contextlib.nullcontext
    """Marks what blocks, by name."""
    phase: Callable[[str], None] = lambda name: None
    requested: Callable[[], bool] = lambda: False
    """True once after a checkpoint was asked for."""
    restored: Callable[[int, str, float, int, int], None] = lambda step, source, seconds, read, sent: None
    warn: Callable[[str], None] = _say
    """Gets one line."""
