"""Seconds of a model's parts on one rank: a layer, what is before the first, what is behind the last. Needs torch.

The rank's share of tp is computed for real, with real numbers; its collectives give nothing, so that their time is not
counted here (links.py measures them). On a CPU it is processor time of the one thread that computes: what others take
of the machine is no part of it but for its caches. The least of several repetitions counts: other load only adds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from holdfast.planner.cost.measured import PartTimes, key
from holdfast.trainer.mesh.mesh import RankMesh
from holdfast.trainer.mesh.pretended import rank_of
from holdfast.trainer.model import accumulate
from holdfast.trainer.model.loss import mean_loss
from holdfast.trainer.model.model import DTYPES, ModelStage, Moment, boundary
from holdfast.trainer.model.tensor_parallel import Parameters
from holdfast.trainer.settings.checks import obstacle
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import TrainerLayout

_LAYERS = 4
"""Of the model that is measured: one before, one between and one behind."""
_PARAMETERS = 1 << 20
"""Of the tensor whose update is timed."""


def check(config: Config, tps: Sequence[int]) -> None:
    """ConfigError for a tp that the model cannot have."""
    for tp in tps:
        reason = obstacle(replace(config, train=replace(config.train, recompute="none")), tp, 1)
        if reason is not None:
            raise ConfigError(f"--tps has {tp}: {reason}")


def measure_parts(
    config: Config, tps: Sequence[int], vocab: int, device: torch.device, repeats: int
) -> dict[str, dict[str, PartTimes]]:
    """By tp and sequence, as the settings have it. Not where a process group exists."""
    return {key(tp, config.parallel.sequence): _of_tp(config, tp, vocab, device, repeats) for tp in tps}


def _of_tp(config: Config, tp: int, vocab: int, device: torch.device, repeats: int) -> dict[str, PartTimes]:
    config = replace(config, model=replace(config.model, layers=_LAYERS))
    with rank_of(TrainerLayout(1, 1, tp, 1, 1)) as mesh:
        layer = _time(config, mesh, vocab, range(1, 2), "none", device, repeats)
        selective = _time(config, mesh, vocab, range(1, 2), "selective", device, repeats)
        first = _time(config, mesh, vocab, range(0, 1), "none", device, repeats)
        last = _time(config, mesh, vocab, range(3, 4), "none", device, repeats)
    return {
        "first": _beside(first, layer),
        "layer": PartTimes(*layer, max(0.0, selective[1] - layer[1])),
        "last": _beside(last, layer),
    }


def _beside(whole: tuple[float, float], layer: tuple[float, float]) -> PartTimes:
    """What an end takes beside the layer that was measured with it."""
    return PartTimes(max(0.0, whole[0] - layer[0]), max(0.0, whole[1] - layer[1]))


def _time(
    config: Config, mesh: RankMesh, vocab: int, numbers: range, recompute: str, device: torch.device, repeats: int
) -> tuple[float, float]:
    """Forward and backward of these layers, with the ends that they have."""
    make = Parameters(0, mesh.tp, device, DTYPES[config.train.dtype])
    module = ModelStage(config, 1, numbers, vocab, make, Moment(0))
    module.recompute = lambda micro_batch: (recompute,) * len(numbers)
    shape = (config.train.micro_batch_size, config.data.seq_len)
    tokens = torch.zeros(shape, dtype=torch.int64, device=device)
    x = torch.randn_like(boundary(config, mesh.layout.tp, device)).requires_grad_()
    ahead, back = [], []
    for turn in range(repeats + 1):
        for parameter in module.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        with accumulate.in_place(True):
            begun = _now(device)
            y: Tensor = module(tokens if module.is_first else x, 0)
            if module.is_last:
                y = mean_loss(y, tokens, mesh.tp.get_group(), config.parallel, 1)
            between = _now(device)
            torch.autograd.backward([y], [torch.ones_like(y)])
            ended = _now(device)
        if turn:  # the first warms up
            ahead.append(between - begun)
            back.append(ended - between)
    return min(ahead), min(back)


def measure_update(device: torch.device, repeats: int) -> float:
    """Seconds of AdamW for one parameter."""
    parameter = torch.zeros(_PARAMETERS, device=device, requires_grad=True)
    parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW([parameter], lr=1e-3, fused=True)
    return _least(lambda: optimizer.step(), device, repeats) / _PARAMETERS


def _least(do: Callable[[], object], device: torch.device, repeats: int) -> float:
    do()
    found = []
    for _ in range(repeats):
        begun = _now(device)
        do()
        found.append(_now(device) - begun)
    return min(found)


def _now(device: torch.device) -> float:
    if device.type == "cpu":
        return time.thread_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()
