"""The learning rate as a function of the step, so that a restart has nothing to restore."""

from __future__ import annotations

import math

from holdfast.trainer.settings.config import OptimConfig


def learning_rate(config: OptimConfig, step: int) -> float:
    """Learning rate of step `step`: linear warm-up, then as `decay` says down to `final_lr` of its peak."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    if not config.decay_steps or config.decay == "constant":
        return config.lr
    done = min(1.0, (step - config.warmup_steps) / max(1, config.decay_steps - config.warmup_steps))
    left = 1 - done if config.decay == "linear" else (1 + math.cos(math.pi * done)) / 2
    return config.lr * (config.final_lr + (1 - config.final_lr) * left)
