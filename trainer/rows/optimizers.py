"""LAMB against its algorithm written down a second time, in float64. Needs torch."""

from __future__ import annotations

import math
from collections.abc import Iterator

from holdfast.trainer.rows.row import Row

STEPS = 5
LR = 0.01


def lamb() -> Iterator[Row]:
    """You et al., ICLR 2020, algorithm 2: every tensor's change has the length lr * |x| where nothing decays."""
    for name, moved, length in _changes(decay=0.0):
        yield Row(f"first change over lr times the norm, {name}", 1.0, moved / (LR * length), 1e-6)
    for decay in (0.0, 0.1):
        yield Row(f"largest difference after {STEPS} steps, decay {decay:g}", 0.0, _apart(decay), 1e-9)
    # Four steps of N micro-batches, or one of 4N, which LAMB makes as good: (p - 1) / v bubbles each (MegaScale, 3.1).
    yield Row("bubble time of four steps over one of four times the batch, D 8", 4.0, _bubbles())


def _changes(decay: float) -> Iterator[tuple[str, float, float]]:
    for name, before, after in zip(("matrix", "vector"), *_trained(decay, 1), strict=True):
        yield name, math.dist(before, after), math.hypot(*before)


def _trained(decay: float, steps: int) -> tuple[list[list[float]], list[list[float]]]:
    """A matrix and a vector, flat, before and after."""
    import torch

    from holdfast.trainer.mesh.mesh import everyone
    from holdfast.trainer.mesh.pretended import rank_of
    from holdfast.trainer.optim.update_rules import Peers, Target, rule
    from holdfast.trainer.settings.config import OptimConfig
    from holdfast.trainer.settings.layout import TrainerLayout

    shards = [torch.nn.Parameter(torch.tensor(values, dtype=torch.float64)) for values in _start()]
    before = [shard.flatten().tolist() for shard in shards]
    with rank_of(TrainerLayout(1, 1, 1, 1, 1)):
        config = OptimConfig(name="lamb", weight_decay=decay, eps=1e-12)
        update = rule(config, [Target(shard, shard.dim() > 1, 1) for shard in shards], Peers(everyone()))
        for step in range(steps):
            for shard, grad in zip(shards, _gradients(step), strict=True):
                shard.grad = torch.tensor(grad, dtype=torch.float64).view_as(shard)
            update.update(LR, step)
    return before, [shard.flatten().tolist() for shard in shards]


def _apart(decay: float) -> float:
    """From the algorithm in plain numbers."""
    from holdfast.trainer.settings.config import OptimConfig

    b1, b2 = OptimConfig().beta1, OptimConfig().beta2
    before, after = _trained(decay, STEPS)
    worst = 0.0
    for place, (x, found) in enumerate(zip(before, after, strict=True)):
        x, m, v = list(x), [0.0] * len(x), [0.0] * len(x)
        for t in range(STEPS):
            g = _gradients(t)[place]
            m = [b1 * a + (1 - b1) * b for a, b in zip(m, g, strict=True)]
            v = [b2 * a + (1 - b2) * b * b for a, b in zip(v, g, strict=True)]
            r = [
                a / (1 - b1 ** (t + 1)) / (math.sqrt(b / (1 - b2 ** (t + 1))) + 1e-12)
                for a, b in zip(m, v, strict=True)
            ]
            u = [a + decay * b if place == 0 else a for a, b in zip(r, x, strict=True)]
            ratio = math.hypot(*x) / math.hypot(*u)
            x = [a - LR * ratio * b for a, b in zip(x, u, strict=True)]
        worst = max(worst, *(abs(a - b) for a, b in zip(x, found, strict=True)))
    return worst


def _start() -> tuple[list[list[float]], list[float]]:
    return [[math.sin(3 * i + j) for j in range(4)] for i in range(3)], [math.cos(i) for i in range(5)]


def _gradients(step: int) -> tuple[list[float], list[float]]:
    return [math.cos(i + step) for i in range(12)], [math.sin(2 * i + step) + 0.1 for i in range(5)]


def _bubbles() -> float:
    from holdfast.plan.schedules.table import SCHEDULES
    from holdfast.plan.simulate import durations, simulate

    lines = [simulate(SCHEDULES["1f1b"].plan(8, 1, n), durations(1, 2)) for n in (8, 32)]
    few, many = (sum(line.makespan - busy for busy in line.busy) for line in lines)
    return 4 * few / many
