"""The optimizer by bucket: what the device has, what is copied, and that it changes the same. Needs torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.trainer.rows.row import Row

if TYPE_CHECKING:
    from holdfast.trainer.optim.host.states import HostStates
    from holdfast.trainer.optim.optimizer import Optimizer

SHAPES = ((300, 257), (1000,), (64, 64), (1,), (513, 3))
PHI = sum(math.prod(shape) for shape in SHAPES)
BUCKETS = (128, 16_001, PHI)
STEPS = 4


def by_bucket() -> Iterator[Row]:
    """AdamW on bfloat16 parameters (Singh and Bhatele, IPDPS 2022, section V): 20 phi bytes become 4 phi + 16 bsize.

    The device is an arena, into which copies are really made.
    """
    for bucket in BUCKETS:
        case = f"phi {PHI}, bsize {bucket}"
        plain, optimizer = _optimizer("device", bucket), _optimizer("host", bucket)
        for step in range(STEPS):
            _step(plain, step)
            _step(optimizer, step)
        states = _host(optimizer)
        yield Row(f"bytes on the device, {case}", 4 * PHI + 16 * bucket, states.arena.peak)
        # Float32 parameter and two averages, there and back.
        both = states.staging.copied_in + states.staging.copied_out
        yield Row(f"bytes copied in a step, {case}", 2 * 12 * PHI, both / STEPS)
        yield Row(
            f"elements unlike those of the plain optimizer after {STEPS} steps, {case}", 0, _unlike(plain, optimizer)
        )


def _host(optimizer: Optimizer) -> HostStates:
    from holdfast.trainer.optim.host.states import HostStates

    assert isinstance(optimizer.states, HostStates)
    return optimizer.states


def _optimizer(state: str, bucket: int) -> Optimizer:
    import torch

    from holdfast.trainer.mesh.pretended import rank_of
    from holdfast.trainer.optim.optimizer import Optimizer
    from holdfast.trainer.optim.slices import Slice
    from holdfast.trainer.settings.config import OptimConfig
    from holdfast.trainer.settings.layout import TrainerLayout

    slices = []
    for number, shape in enumerate(SHAPES):
        values = torch.arange(math.prod(shape)).mul(0.7).add(number).cos().to(torch.bfloat16)
        shard = torch.nn.Parameter(values.view(shape))
        slices.append(Slice(f"t{number}", shard, shard, 1, False, False, False))
    config = OptimConfig(state=state, bucket=bucket)  # type: ignore[arg-type]
    with rank_of(TrainerLayout(1, 1, 1, 1, 1)) as mesh:
        return Optimizer(config, slices, mesh, lambda: None)


def _step(optimizer: Optimizer, step: int) -> None:
    import torch

    for piece in optimizer.all:
        values = torch.arange(piece.shard.numel()).mul(0.3).add(step).sin()
        piece.shard.grad = values.to(torch.bfloat16).view(piece.shard.shape)
    optimizer.states.update(optimizer.config.lr, step, 0.5, None)
    optimizer.drop()


def _unlike(plain: Optimizer, optimizer: Optimizer) -> int:
    found = 0
    for a, b in zip(plain.all, optimizer.all, strict=True):
        ours = optimizer.state(b)
        found += int((a.shard != b.shard).sum()) + sum(
            int((value != ours[name]).sum()) for name, value in plain.state(a).items()
        )
    return found
