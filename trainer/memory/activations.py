"""What stages hold of a micro-batch, counted by computing real layers in pretence. Needs torch.

A layer, what is before the first and what is behind the last are computed forward and back as one rank of tp would, on
tensors without memory (FakeTensorMode) and with collectives that go nowhere. So every operation's own choice of what it
saves is counted, for every shape, without a formula. For a GPU the operations are those that a GPU takes, as far as a
process without one can know: see docs/memory.md.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from holdfast.plan.recompute import StageBytes
from holdfast.trainer.memory.tracked import Live
from holdfast.trainer.mesh.mesh import RankMesh
from holdfast.trainer.mesh.pretended import rank_of
from holdfast.trainer.model import accumulate, layers
from holdfast.trainer.model.loss import mean_loss
from holdfast.trainer.model.model import DTYPES, ModelStage, Moment, boundary
from holdfast.trainer.model.tensor_parallel import Parameters
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.layout import TrainerLayout

KINDS = ("none", "selective", "full")
"""What a layer can recompute."""
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Activations:
    """Bytes of one micro-batch on one tp rank."""

    boundary: int
    """What comes into a stage from another one, and what goes out."""
    layer: dict[str, int]
    """What a layer holds from forward to backward, by what it recomputes; what comes into it is the one before's."""
    first: int
    """The same of what is before the first layer..."""
    last: int
    """... and behind the last one, the loss with it."""
    passing: dict[str, int]
    """The most beside that while a layer is computed forward or back, by what it recomputes..."""
    passing_last: int
    """... and in a stage that has the head."""

    def of_stage(self, count: int, is_first: bool, is_last: bool) -> StageBytes:
        """A stage of `count` layers, in the terms of the trainer's own measurement: without what goes out."""
        rest = self.first * is_first + self.last * is_last
        rest += 0 if is_first else self.boundary
        rest -= 0 if is_last else self.boundary
        return StageBytes(count, self.layer["none"], self.layer["selective"], self.layer["full"], rest)


def count(config: Config, tp: int, vocab: int, device: str) -> Activations:
    """Count them for these settings. Not where a process group exists: it makes one of its own, and ends it."""
    return _count(_essence(config), tp, vocab, device)


def _essence(config: Config) -> Config:
    """What the figures depend on, so that others share them."""
    plain = Config()
    parallel = replace(
        plain.parallel,
        sequence=config.parallel.sequence,
        shard_vocabulary=config.parallel.shard_vocabulary,
        overlap_chunks=config.parallel.overlap_chunks,
        sub_batches=config.parallel.sub_batches,
    )
    train = replace(plain.train, dtype=config.train.dtype, micro_batch_size=config.train.micro_batch_size)
    data = replace(plain.data, seq_len=config.data.seq_len)
    return replace(plain, model=replace(config.model, layers=4), data=data, parallel=parallel, train=train)


@functools.lru_cache(maxsize=32)
def _count(config: Config, tp: int, vocab: int, device: str) -> Activations:
    is_gpu = device == "cuda" and not config.model.window and config.parallel.overlap_chunks == 1
    with rank_of(TrainerLayout(1, 1, tp, 1, 1)) as mesh, FakeTensorMode(), _as_on_gpu() if is_gpu else nullcontext():

        def passed(layers: range, kind: str = "none") -> tuple[int, int]:
            return _pass(config, mesh, vocab, layers, kind)

        two = {kind: passed(range(1, 3), kind) for kind in _kinds_of(config)}
        one = {kind: passed(range(1, 2), kind)[0] for kind in two}
        layer = {kind: two[kind][0] - one[kind] for kind in two}
        first = passed(range(0, 1))[0] - layer["none"]
        last, passing_last = passed(range(3, 4))
        size = boundary(config, tp, _CPU).nbytes
    passing = {kind: passing for kind, (_, passing) in two.items()}
    for kind in KINDS:  # those that cannot be, with sub-batches
        layer.setdefault(kind, layer["none"])
        passing.setdefault(kind, passing["none"])
    return Activations(size, layer, first, last - layer["none"], passing, passing_last)


def _kinds_of(config: Config) -> tuple[str, ...]:
    return KINDS if config.parallel.sub_batches == 1 else ("none", "selective")


def _pass(config: Config, mesh: RankMesh, vocab: int, numbers: range, kind: str) -> tuple[int, int]:
    """Bytes that layers of these numbers, of four, hold between forward and backward, and the most beyond that."""
    make = _Unset(0, mesh.tp, _CPU, DTYPES[config.train.dtype])
    module = ModelStage(config, 1, numbers, vocab, make, Moment(0))
    module.recompute = lambda micro_batch: (kind,) * len(numbers)
    x = boundary(config, mesh.layout.tp, _CPU)
    tokens = torch.zeros(config.train.micro_batch_size, config.data.seq_len, dtype=torch.int64)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    there = [x, tokens, *module.buffers(), *_all(module)]
    with Live(there) as live, accumulate.in_place(True):
        y = module(tokens if module.is_first else x, 0)
        if module.is_last:
            y = mean_loss(y, tokens, mesh.tp.get_group(), config.parallel, 1)
        held = live.bytes
        torch.autograd.backward([y], [torch.empty_like(y)])
        return held, max(0, live.peak - held)


def _all(module: nn.Module) -> Iterator[Tensor]:
    for parameter in module.parameters():
        yield from (parameter, parameter.grad)  # type: ignore[misc]  # it has been set


class _Unset(Parameters):
    """Parameters of the right shape and no values: to draw them takes as long as to compute a layer."""

    def _draw(self, piece: Any) -> Tensor:
        return torch.empty(piece.shape, dtype=torch.float32)


@contextmanager
def _as_on_gpu() -> Iterator[None]:
    """Have tensors say that a GPU holds them, and the norm save what a GPU's kernel does: its input and a scale a row.

    Not as a mode of torch's: those are off while a backward runs, in which layers are computed again.
    """
    with (
        mock.patch.object(FakeTensor, "is_cuda", property(lambda tensor: True), create=True),
        mock.patch.object(F, "rms_norm", _rms_norm),
    ):
        yield


def _rms_norm(x: Tensor, shape: tuple[int, ...], weight: Tensor, eps: float) -> Tensor:
    result: Tensor = layers.fused_rms_norm(x, weight, eps)
    return result
