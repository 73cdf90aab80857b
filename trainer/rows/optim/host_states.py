"""The optimizer by bucket: what the device has, what is copied, and that it changes the same. Needs torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast.trainer.rows.row import Row

if TYPE_CHECKING:
    from holdfast.trainer.optim.host.states import HostStates
    from holdfast.trainer.optim.optimizer import Optimizer

SHAPES = ((300, 257), (1000,), (64, 64), (1,), (513, 3))
PHI = sum(math.prod(shape) for shape in SHAPES)
BUCKETS = (128, 16_001, PHI)
STEPS = 4
LONG, BUCKET = 8192, 256
"""Elements of a tensor whose update is waited for, and of a bucket."""


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


def beside() -> Iterator[Row]:
    """Sums of gradients in pieces of k buckets, beside the updates of those that have come (section V).

    A piece takes S seconds on a link that has one at a time, its update U. What is waited for is the first piece, and
    of each further one what it takes longer than an update: S + (m - 1) max(0, S - U) of m pieces. The updates are
    real, on a clock that does not run by itself.
    """
    for k in (1, 4):
        for ratio in (0.5, 1.0, 3.0):
            pieces, seconds = LONG // (k * BUCKET), float(k * BUCKET)
            formula = ratio * seconds + (pieces - 1) * max(0.0, ratio * seconds - seconds)
            case = f"k {k}, {pieces} pieces, S/U {ratio}"
            yield Row(f"seconds waited for sums, {case}", formula, _waited(k, ratio), 1e-9)


def _waited(k: int, ratio: float) -> float:
    import torch

    from holdfast.trainer.optim.host.lanes import AtOnce, Lane
    from holdfast.trainer.optim.host.states import HostStates
    from holdfast.trainer.optim.slices import Slice
    from holdfast.trainer.settings.config import OptimConfig

    now = waited = 0.0

    class Clocked(AtOnce):
        def do(self, lane: Lane, work: Any) -> None:
            nonlocal now
            work()
            now += work.args[0].size if lane is Lane.COMPUTE else 0

    def bring(piece: Slice, stop: int) -> None:
        nonlocal now, waited
        there = ratio * k * BUCKET * math.ceil(stop / (k * BUCKET))
        waited += max(0.0, there - now)
        now = max(now, there)

    shard = torch.nn.Parameter(torch.zeros(LONG))
    shard.grad = torch.ones(LONG)
    config = OptimConfig(state="host", bucket=BUCKET, reduce_pieces=k)
    whole = [Slice("t", shard, shard, 1, False, False, False)]
    HostStates(config, whole, torch.device("cpu"), Clocked()).update(1.0, 0, None, None, bring)
    return waited


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
