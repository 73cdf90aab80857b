"""What stops a training run.

HoldfastError
├── TrainingError
│   ├── NonFiniteLoss   a step produced NaN or infinity; nothing of it was kept
│   └── Disagreement    ranks of one job were started with different settings or data
└── UsageError
    └── ConfigError     a setting, flag or data folder is wrong: exit code 2
"""

from __future__ import annotations

from holdfast.base.errors import HoldfastError, UsageError


class ConfigError(UsageError):
    """A setting, flag or data folder is wrong; the text says where and what would be right.

    `is_local` marks what one rank alone finds out, so that it and not rank 0 must say it.
    """

    def __init__(self, text: str, *, is_local: bool = False) -> None:
        super().__init__(text)
        self.is_local = is_local


class TrainingError(HoldfastError):
    """Training cannot go on from here."""


class NonFiniteLoss(TrainingError):
    """A step produced NaN or infinity. The step was not applied."""

    def __init__(self, step: int, loss: float, ranks: list[int]) -> None:
        where = f" first seen on rank {', '.join(map(str, ranks))}" if ranks else ""
        super().__init__(f"step {step}: loss {loss} or a gradient is not finite,{where or ' on no single rank'}")
        self.step = step
        self.loss = loss
        self.ranks = ranks


class Disagreement(TrainingError):
    """Ranks of one job were started with different settings or data."""
