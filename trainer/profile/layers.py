"""Seconds of a model's parts on one rank: a layer, what is before the first, what is behind the last. Needs torch.

The rank's share of tp is computed for real, with real numbers; its collectives give nothing, so that their time is not
counted here (links.py measures them). On a CPU it is processor time of the one thread that computes: what others take
of the machine is no part of it but for its caches. The median of several repetitions counts, since steps are made of
usual computations and not of the least ones.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

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
        plain = _Timed(config, mesh, vocab, range(1, 2), device)
        ends = [_Timed(config, mesh, vocab, layers, device) for layers in (range(0, 1), range(3, 4))]
        timed = [plain, plain.with_recompute("selective"), *ends]
        # In turns: what else the machine does for a while is then in some repetitions of all, not in all of one.
        for _ in range(repeats + 1):
            for one in timed:
                one.once()
    layer, selective, first, last = (one.found[1:] for one in timed)  # the first warms up
    return {
        "first": PartTimes(*_beside(first, layer)),
        "layer": PartTimes(*_usual(layer), _beside(selective, layer)[1]),
        "last": PartTimes(*_beside(last, layer)),
    }


_Times = Sequence[tuple[float, float]]
"""Of forward and backward, by turn."""


def _usual(times: _Times) -> tuple[float, float]:
    ahead, back = zip(*times, strict=True)
    return median(ahead), median(back)


def _beside(whole: _Times, layer: _Times) -> tuple[float, float]:
    """What it takes beside the layer that was measured with it, turn by turn."""
    ahead, back = _usual([(a - c, b - d) for (a, b), (c, d) in zip(whole, layer, strict=True)])
    return max(0.0, ahead), max(0.0, back)


class _Timed:
    """Forward and backward of these layers, with the ends that they have."""

    def __init__(self, config: Config, mesh: RankMesh, vocab: int, numbers: range, device: torch.device) -> None:
        self._config, self._mesh, self._device, self._recompute = config, mesh, device, "none"
        make = Parameters(0, mesh.tp, device, DTYPES[config.train.dtype])
        self._module = ModelStage(config, 1, numbers, vocab, make, Moment(0))
        shape = (config.train.micro_batch_size, config.data.seq_len)
        self._tokens = torch.zeros(shape, dtype=torch.int64, device=device)
        self._x = torch.randn_like(boundary(config, mesh.layout.tp, device)).requires_grad_()
        self.found: list[tuple[float, float]] = []

    def with_recompute(self, recompute: str) -> _Timed:
        """The same layers."""
        found = copy.copy(self)
        found._recompute, found.found = recompute, []
        return found

    def once(self) -> None:
        module, tokens, device = self._module, self._tokens, self._device
        module.recompute = lambda micro_batch: (self._recompute,) * len(module.layers)
        for parameter in module.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        with accumulate.in_place(True):
            begun = _now(device)
            y: Tensor = module(tokens if module.is_first else self._x, 0)
            if module.is_last:
                y = mean_loss(y, tokens, self._mesh.tp.get_group(), self._config.parallel, 1)
            between = _now(device)
            torch.autograd.backward([y], [torch.ones_like(y)])
            ended = _now(device)
        self.found.append((between - begun, ended - between))


def measure_update(device: torch.device, repeats: int) -> float:
    """Seconds of AdamW for one parameter."""
    parameter = torch.zeros(_PARAMETERS, device=device, requires_grad=True)
    parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW([parameter], lr=1e-3, fused=True)
    return _median(lambda: optimizer.step(), device, repeats) / _PARAMETERS


def _median(do: Callable[[], object], device: torch.device, repeats: int) -> float:
    do()
    found = []
    for _ in range(repeats):
        begun = _now(device)
        do()
        found.append(_now(device) - begun)
    return median(found)


def _now(device: torch.device) -> float:
    if device.type == "cpu":
        return time.thread_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()
