"""Stages of a module of the user's own: pp, dp, ZeRO and where it is cut, as settings that `holdfast train` runs.

The trace of the module says what each operation computes, keeps and hands on; the trainer's own partitioner cuts it
(`modules/cuts.py`), by FLOPs or by parameters, and each cut is simulated. Needs torch.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from holdfast.planner.partition.axes import Collective
from holdfast.planner.partition.inter import pipeline_time, successors
from holdfast.planner.partition.scored import simulated
from holdfast.trainer.graphs.cuts import Machines
from holdfast.trainer.model.model import DTYPES
from holdfast.trainer.modules.cuts import CannotCut
from holdfast.trainer.modules.split import Partition, partition
from holdfast.trainer.modules.stage import open_module
from holdfast.trainer.settings.checks import check
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import TrainerLayout, plan, vocab_of
from holdfast.trainer.settings.planned import precision_of

BALANCES = ("flops", "parameters")
ZEROS = (0, 1, 2)
BACK = 2.0
"""FLOPs of a backward over those of its forward."""


@dataclass(frozen=True, slots=True)
class ModuleCut:
    """A cut that the trainer makes."""

    config: Config
    layout: TrainerLayout
    operations: tuple[int, ...]
    """Of each stage."""
    stage_seconds: tuple[float, ...]
    """Of a micro-batch in each stage, forward and back."""
    seconds: float
    """Of a step by Alpa's formula..."""
    simulated_seconds: float
    """... and simulated, both with the sums over replicas."""
    even_seconds: float
    """The same ranks with parameters in equal parts; infinite where that does not fit, or cannot be cut."""

    @property
    def parts(self) -> tuple[int, ...]:
        return self.operations

    @property
    def settings(self) -> list[str]:
        """What it chose, as `--set` takes it."""
        parallel = self.config.parallel
        found = [f"parallel.{key}={getattr(parallel, key)}" for key in ("pp", "dp", "schedule", "zero")]
        return [*found, f"module.balance={self.config.module.balance}"]


def find_own(config: Config, machines: Machines, keep: int = 10) -> tuple[tuple[ModuleCut, ...], dict[str, int]]:
    """The fastest cuts on all devices, and why others were left out. ConfigError where there is none.

    Runs the user's function: see `modules/look.py` for whether it can be.
    """
    search = _Search(config, machines)
    found = sorted(search.cuts(), key=lambda cut: (cut.simulated_seconds, cut.settings))
    if not found:
        reason = search.refused.most_common(1)[0][0] if search.refused else "no axes divide it"
        raise ConfigError(f"no layout of the module on {machines.world} devices is possible: {reason}")
    return tuple(found[:keep]), dict(search.refused)


class _Search:
    def __init__(self, config: Config, machines: Machines) -> None:
        self.config, self.machines = config, machines
        self.refused: Counter[str] = Counter()
        self.traces = {balance: _traced(config, balance).trace for balance in BALANCES}
        self.flops = [fact.cost for fact in self.traces["flops"].facts]

    def cuts(self) -> Iterator[ModuleCut]:
        world, batch = self.machines.world, self.config.train.micro_batches
        for pp in (n for n in range(1, world + 1) if world % n == 0):
            dp = world // pp
            if batch % dp:
                self.refused[f"dp={dp} does not divide train.micro_batches = {batch}"] += 1
                continue
            for zero in ZEROS if dp > 1 else ZEROS[:1]:
                steps = {balance: self._step(balance, pp, dp, zero) for balance in BALANCES}
                even = steps["parameters"]
                for balance, found in steps.items():
                    if found is not None and (pp > 1 or balance == BALANCES[0]):
                        cut = self._cut(balance, pp, dp, zero, found, even.simulated if even else math.inf)
                        if cut is not None:
                            yield cut

    def _step(self, balance: str, pp: int, dp: int, zero: int) -> _Step | None:
        try:
            whole = partition(self.traces[balance], pp, DTYPES[self.config.train.dtype])
        except CannotCut as error:
            self.refused[str(error)] += 1
            return None
        facts, places = whole.trace.facts, [0, *whole.cuts.places, len(self.flops)]
        spans = [range(first, stop) for first, stop in pairwise(places)]
        times = tuple((1 + BACK) * sum(self.flops[i] for i in span) / self.machines.flops for span in spans)
        sizes = [self._parameters(whole, stage) for stage in range(pp)]
        for stage, span in enumerate(spans):
            kept = float(sum(facts[i].num_bytes for i in span if facts[i].has_gradient))
            behind = successors(self.machines.memory_bytes, kept, self._states(sizes[stage], dp, zero), kept)
            if behind < pp - 1 - stage:
                self.refused[f"pp={pp} zero={zero}: stage {stage} does not fit with what is under way"] += 1
                return None
        local = self.config.train.micro_batches // dp
        message = max((one.elements * one.dtype.itemsize for one in whole.messages), default=0)
        link = self.machines.axis(2, dp)
        latency = link.alpha + link.beta * message if pp > 1 else 0.0
        sums = max(self._replicas(size, dp, zero, local) for size in sizes)
        return _Step(tuple(map(len, spans)), times, pipeline_time(times, local) + sums,
                     simulated(times, local, latency) + sums)  # fmt: skip

    def _parameters(self, whole: Partition, stage: int) -> int:
        module = whole.trace.module
        return sum(module.get_parameter(name).numel() for name in whole.parameters_of(stage))

    def _states(self, parameters: int, dp: int, zero: int) -> float:
        """Bytes; the trainer's whole gradients stay until they are summed."""
        bytes_of = precision_of(self.config)
        each = bytes_of.weight + bytes_of.gradient / (dp if zero == 2 else 1)
        return parameters * (each + bytes_of.optimizer / (dp if zero else 1))

    def _replicas(self, parameters: int, dp: int, zero: int, local: int) -> float:
        """Seconds of a step: an all-reduce; its halves with ZeRO, the first behind each micro-batch with stage 2."""
        axis, bytes_of = self.machines.axis(dp, 1), precision_of(self.config)
        if zero == 0:
            return axis.cost(Collective.ALL_REDUCE, float(parameters * bytes_of.gradient))
        sums = axis.cost(Collective.REDUCE_SCATTER, float(parameters * bytes_of.gradient))
        return sums * (local if zero == 2 else 1) + axis.cost(
            Collective.ALL_GATHER, float(parameters * bytes_of.weight)
        )

    def _cut(self, balance: str, pp: int, dp: int, zero: int, step: _Step, even: float) -> ModuleCut | None:
        """As settings; None, with the reason counted, where the trainer refuses them."""
        parallel = replace(self.config.parallel, pp=pp, dp=dp, schedule="1f1b", chunks=0, zero=zero)
        module = replace(self.config.module, balance=balance)  # type: ignore[arg-type]  # one of BALANCES
        config = replace(self.config, parallel=parallel, module=module)
        try:
            check(config)
            layout = plan(config, self.machines.world, vocab_of(config.data.tokenizer))
        except ConfigError as refused:
            self.refused[str(refused)] += 1
            return None
        return ModuleCut(config, layout, step.operations, step.times, step.formula, step.simulated, even)


@dataclass(frozen=True, slots=True)
class _Step:
    operations: tuple[int, ...]
    times: tuple[float, ...]
    formula: float
    simulated: float


def _traced(config: Config, balance: str) -> Partition:
    """In one stage. On meta tensors, unless the module reads values while it is built."""
    one = replace(config, module=replace(config.module, balance=balance))  # type: ignore[arg-type]  # of BALANCES
    try:
        return open_module(one, 1, torch.device("meta"), "meta")
    except ConfigError:
        return open_module(one, 1, torch.device("cpu"))
