"""Alpa's two planners on the trainer's own model: a layout of stages and ranks that `holdfast train` runs. Needs torch
and scipy.

`find` is the entry. Only what the trainer executes is searched: see executable.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from holdfast.planner.partition.axes import MeshAxis
from holdfast.planner.partition.clusters import cluster
from holdfast.planner.partition.ilp import NoStrategy
from holdfast.planner.partition.inter import NoPipeline, Option, Pipeline, Submesh, plan_pipeline, successors
from holdfast.planner.partition.intra import Sharding, shard
from holdfast.planner.partition.operators import Kind, Operator, OperatorGraph
from holdfast.planner.partition.scored import simulated
from holdfast.planner.partition.strategies import Devices
from holdfast.trainer.graphs.executable import Way, obstacle, ways
from holdfast.trainer.graphs.export import crossing, model_graph, with_samples
from holdfast.trainer.settings.checks import check
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import TrainerLayout, plan, vocab_of
from holdfast.trainer.settings.planned import precision_of

TIE = 1e-12
"""Of Alpa's constants, where costs are seconds: they decide between equal plans, and no more."""
MOST_CLUSTERS = 48
"""Of layers, that stages are made of: the search takes time as their square."""


@dataclass(frozen=True, slots=True)
class Machines:
    """What a job is to run on: nodes alike. Latencies in seconds, costs of bytes in seconds a byte."""

    nodes: int
    per_node: int
    flops: float
    """Of a device in a second, as large matrices reach."""
    memory_bytes: float
    """Of a device, for parameters, gradients, states and activations."""
    inside_alpha: float = 5e-6
    inside_beta: float = 1 / 300e9
    """Within a node..."""
    between_alpha: float = 20e-6
    between_beta: float = 1 / 25e9
    """... and from node to node, of one device."""

    def __post_init__(self) -> None:
        for name, least in (("nodes", 1), ("per_node", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}: must be {least} or more")
        for name in ("flops", "memory_bytes"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}: must be above 0, as 4e14")
        for name in ("inside_alpha", "inside_beta", "between_alpha", "between_beta"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}: must be 0 or more seconds")

    @property
    def world(self) -> int:
        return self.nodes * self.per_node

    def axis(self, size: int, stride: int) -> MeshAxis:
        """Of `size` devices, `stride` apart: within a node as long as they fit."""
        if size * stride <= self.per_node:
            return MeshAxis(size, self.inside_alpha, self.inside_beta, TIE)
        return MeshAxis(size, self.between_alpha, self.between_beta, TIE)


@dataclass(frozen=True)
class Cut:
    """A plan that the trainer runs."""

    config: Config
    """The settings it was asked of, with those that it chose."""
    layout: TrainerLayout
    stage_seconds: tuple[float, ...]
    """Of a micro-batch in each stage, forward and back."""
    seconds: float
    """Of a step by Alpa's formula."""
    simulated_seconds: float
    """Of a step, action by action, with messages between stages."""
    even_seconds: float
    """The same with layers spread evenly over these stages; infinite where that does not fit."""

    @property
    def parts(self) -> tuple[int, ...]:
        """Layers of each stage."""
        return self.layout.stage_layers

    @property
    def settings(self) -> list[str]:
        """What it chose, as `--set` takes it."""
        parallel = self.config.parallel
        found = [f"parallel.pp={parallel.pp}", f"parallel.dp={parallel.dp}", f"parallel.tp={parallel.tp}"]
        found += [f"parallel.stage_tp={list(parallel.stage_tp)}"] if parallel.stage_tp else []
        found += [f"parallel.stage_layers={list(parallel.stage_layers)}"]
        found += [f"parallel.{key}={getattr(parallel, key)}" for key in ("schedule", "chunks", "zero", "zero_unit")]
        flags = (f"parallel.{key}={str(getattr(parallel, key)).lower()}" for key in ("sequence", "shard_vocabulary"))
        return [*found, *flags]


@dataclass(frozen=True)
class Found:
    """Plans, the fastest first, and why others were left out."""

    cuts: tuple[Cut, ...]
    refused: dict[str, int]
    """Each reason with how many strategies or plans it left out."""


def find(config: Config, machines: Machines, time_limit_s: float = 60.0, keep: int = 10) -> Found:
    """The fastest layouts of the settings' model and batch, that use all devices.

    All of dp, tp of each stage, layers of each stage, ZeRO stage, sequence and shard_vocabulary are chosen; the model,
    the batch, the optimizer and dtype stay. `time_limit_s` is for each integer program. Memory holds activations as if
    nothing were recomputed. ConfigError, in one line, where no layout is possible.
    """
    search = _Search(config, machines, time_limit_s)
    cuts = sorted(search.cuts(), key=lambda cut: (cut.simulated_seconds, cut.settings))
    if not cuts:
        reason = search.impossible.most_common(1)[0][0]
        raise ConfigError(f"no layout of the model on {machines.world} devices is possible: {reason}")
    return Found(tuple(cuts[:keep]), dict(search.refused + search.impossible))


class _Search:
    def __init__(self, config: Config, machines: Machines, time_limit_s: float) -> None:
        self.config, self.machines, self.time_limit_s = config, machines, time_limit_s
        self.refused: Counter[str] = Counter()
        """Strategies of operators..."""
        self.impossible: Counter[str] = Counter()
        """... and whole plans that were left out, by reason."""
        self._costs: dict[tuple[int, Way, int, int], Sharding | None] = {}

    @property
    def graph(self) -> OperatorGraph:
        """Of a model with one layer: all are alike, as blocks 0 (embedding), 1 and 2 (head)."""
        return _of_one_layer(self.config)

    @property
    def tps(self) -> list[int]:
        """Alpa's submeshes of a node, of which the model can be split over."""
        model, per_node = self.config.model, self.machines.per_node
        sizes = [1 << p for p in range(per_node.bit_length()) if 1 << p <= per_node]
        return [tp for tp in sizes if model.heads % tp == 0 and not (model.kv_heads and model.kv_heads % tp)]

    @cached_property
    def ends(self) -> list[int]:
        """Where stages may begin and end: between layers, or where there are very many, between clusters of them."""
        layers = self.config.model.layers
        if layers <= MOST_CLUSTERS:
            return list(range(layers + 1))
        flops = [sum(o.flops for o in self.graph.operators if o.layer == block) for block in range(3)]
        weights = [flops[1]] * layers
        weights[0] += flops[0]
        weights[-1] += flops[2]
        passed = float(next(crossing(self.graph, 1)).num_bytes)
        arriving = [[passed if k else 0.0] * (layers + 1) for k in range(layers + 1)]
        return cluster(weights, arriving, MOST_CLUSTERS, delta=1.0)

    def cuts(self) -> Iterator[Cut]:
        world, batch = self.machines.world, self.config.train.micro_batches
        for dp in (n for n in range(1, world + 1) if world % n == 0 and batch % n == 0):
            for way in ways(dp, self.tps):
                found = self.pipeline(dp, way)
                cut = self.cut(found, dp, way) if found is not None else None
                if cut is not None:
                    yield cut

    def pipeline(self, dp: int, way: Way) -> Pipeline | None:
        """The fastest stages on the devices of one replica."""
        count, ends = self.config.train.micro_batches // dp, self.ends
        sizes = [(1, tp) for tp in self.tps]

        def options(begin: int, end: int, mesh: Submesh) -> Sequence[Option]:
            found = self.stage(ends[begin], ends[end], way, dp, mesh[1])
            return (found,) if found is not None else ()

        try:
            found = plan_pipeline(len(ends) - 1, self.machines.world // dp, sizes, count, options)
        except NoPipeline as none:
            self.impossible[f"dp={dp}: {none}"] += 1
            return None
        stages = tuple(replace(one, first=ends[one.first], stop=ends[one.stop]) for one in found.stages)
        return replace(found, stages=stages)

    def stage(self, first: int, stop: int, way: Way, dp: int, tp: int) -> Option | None:
        """Layers `first` to `stop` over dp x tp devices; None where they cannot lie so, or do not fit."""
        parts = [self.block(1, way, dp, tp)] * (stop - first)
        parts += [self.block(0, way, dp, tp)] if first == 0 else []
        parts += [self.block(2, way, dp, tp)] if stop == self.config.model.layers else []
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        fixed, kept = sum(part.fixed_bytes for part in known), [part.kept_bytes for part in known]
        behind = successors(self.machines.memory_bytes, max(kept), fixed, sum(kept))
        return Option(sum(part.cost for part in known), behind) if behind >= 0 else None

    def even(self, layout: TrainerLayout, way: Way, message: float) -> float:
        """Seconds of a step of the same ranks where layers are spread evenly; infinite where they do not fit."""
        spread, layers = replace(layout, stage_layers=()), self.config.model.layers
        times = []
        for stage, tp in enumerate(layout.tps):
            own = spread.layers_of(stage, layers)
            found = self.stage(own.start, own.stop, way, layout.dp, tp)
            if found is None or found.successors < layout.pp - 1 - stage:
                return math.inf
            times.append(found.seconds)
        return simulated(times, layout.local_micro_batches, message)

    def block(self, block: int, way: Way, dp: int, tp: int) -> Sharding | None:
        """A block over dp x tp devices, None where it cannot lie so."""
        key = block, way, dp, tp
        if key not in self._costs:
            self._costs[key] = self._sharded(block, way, dp, tp)
        return self._costs[key]

    def _sharded(self, block: int, way: Way, dp: int, tp: int) -> Sharding | None:
        train = self.config.train
        mesh = (self.machines.axis(dp, tp), self.machines.axis(tp, 1))
        bytes_of = precision_of(self.config)
        devices = Devices(
            mesh,
            self.machines.flops,
            micro_batches=train.micro_batches // dp,
            gradient_bytes=bytes_of.gradient / bytes_of.weight,
            state_bytes=bytes_of.optimizer / bytes_of.weight,
        )
        # The micro-batches that replicas do side by side, as one.
        graph = with_samples(self.graph, dp * train.micro_batch_size)
        try:
            found = shard(_block(graph, block, way), devices, None, obstacle(way, dp, tp), self.time_limit_s)
        except NoStrategy as none:
            self.impossible[f"dp={dp} tp={tp}: {none}"] += 1
            return None
        self.refused.update(found.refused)
        return found

    def cut(self, found: Pipeline, dp: int, way: Way) -> Cut | None:
        """The stages as settings; None, with the reason counted, where the trainer refuses them."""
        tps = tuple(stage.submesh[1] for stage in found.stages)
        if max(tps) == 1 and (way.sequence or way.shard_vocabulary):
            return None  # the same as without
        parallel = replace(
            self.config.parallel,
            pp=len(found.stages),
            dp=dp,
            tp=1 if len(set(tps)) > 1 else tps[0],
            stage_tp=tps if len(set(tps)) > 1 else (),
            stage_layers=tuple(stage.stop - stage.first for stage in found.stages),
            schedule="1f1b",
            chunks=0,
            zero=way.zero,
            zero_unit="layer",
            zero_live=1,
            zero_reduce="each",
            in_flight=0,
            sequence=way.sequence,
            shard_vocabulary=way.shard_vocabulary,
        )
        config = replace(self.config, parallel=parallel)
        try:
            check(config)
            layout = plan(config, self.machines.world, vocab_of(config.data.tokenizer))
        except ConfigError as refused:
            self.impossible[str(refused)] += 1
            return None
        if (reason := _across_nodes(layout, self.machines.per_node)) is not None:
            self.impossible[reason] += 1
            return None
        times = tuple(stage.option.seconds for stage in found.stages)
        boundary = next(crossing(self.graph, 1)).num_bytes / 2 * config.train.micro_batch_size
        message = self.machines.between_alpha + self.machines.between_beta * boundary if len(times) > 1 else 0.0
        step = simulated(times, layout.local_micro_batches, message)
        return Cut(config, layout, times, found.seconds, step, self.even(layout, way, message))


@lru_cache(maxsize=4)  # to trace a model takes seconds
def _of_one_layer(config: Config) -> OperatorGraph:
    return model_graph(config, samples=2, layers=1)


def _across_nodes(layout: TrainerLayout, per_node: int) -> str | None:
    """Ranks are numbered node by node: why some tp ranks would lie in two nodes, None if none would."""
    for pp in range(layout.pp):
        for dp in range(layout.dp):
            nodes = {rank // per_node for rank in layout.line(pp, dp)}
            if len(nodes) > 1:
                return "tp ranks would lie in two nodes, as ranks are numbered in the order of stages"
    return None


def _block(graph: OperatorGraph, block: int, way: Way) -> OperatorGraph:
    """One block, with what comes in and goes out in the layout between layers."""
    part = graph.of_layers(block, block + 1)
    comes = {one.name for one in crossing(graph, block - 1)} if block else set()
    operators = [replace(one, fixed=way.boundary) if one.name in comes else one for one in part.operators]
    goes = [one for one in crossing(graph, block) if one.layer == block]
    if len(goes) > 1 or (not goes and not any(one.kind is Kind.OUTPUT for one in operators)):
        raise ValueError(f"block {block} hands on {len(goes)} results: stages hand on one")
    sinks = [
        Operator(f"{one.name}, out", Kind.OUTPUT, (one.name,), one.shape, one.item, fixed=way.boundary) for one in goes
    ]
    return OperatorGraph((*operators, *sinks))
