"""Which layouts a model and a batch can have. Pure: settings and a world size in, a layout or a reason out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from holdfast.plan.plan import Mesh
from holdfast.plan.schedules.table import SCHEDULES, Placement
from holdfast.trainer.settings.checks import STAGE_AWARE, obstacle
from holdfast.trainer.settings.combinations import (
    chunks_of,
    unfit_chunks,
    unfit_driven,
    unfit_fill,
    unfit_partial_backward,
    unfit_pieces,
    unfit_pipes,
    unfit_stage_layers,
    unfit_sync,
    unfit_unit,
)
from holdfast.trainer.settings.config import Config, ParallelConfig
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.optimizers import OPTIMIZERS


@dataclass(frozen=True, slots=True)
class TrainerLayout:
    """A job's mesh, and what follows from it. Ranks count through tp first, then dp, then pp."""

    pp: int
    dp: int
    tp: int
    chunks: int
    """Stages on each rank."""
    local_micro_batches: int
    """Micro-batches that one replica does in a step."""
    placement: Placement = Placement.LOOP
    stage_tp: tuple[int, ...] = ()
    """tp of each pipeline rank, where they differ; `tp` is then the largest of them."""
    stage_layers: tuple[int, ...] = ()
    """Layers of each stage, where the settings give them."""

    @property
    def tps(self) -> tuple[int, ...]:
        """tp of each pipeline rank."""
        return self.stage_tp or (self.tp,) * self.pp

    @property
    def world(self) -> int:
        return self.dp * sum(self.tps)

    @property
    def stages(self) -> int:
        return self.placement.stages(self.pp, self.chunks)

    @property
    def pipes(self) -> int:
        """Replicas of each stage within one pipeline."""
        return len(self.places)

    @property
    def replicas(self) -> int:
        """Ranks of one place in tp that hold a stage: dp in each of its pipes."""
        return self.dp * self.pipes

    @property
    def places(self) -> list[tuple[int, ...]]:
        """By pipe, the pipeline rank of each stage."""
        return self.placement.places(self.pp, self.chunks)

    def coordinate(self, rank: int) -> tuple[int, int, int]:
        """(pp, dp, tp) of a rank."""
        if not self.stage_tp:
            return rank // (self.dp * self.tp), rank // self.tp % self.dp, rank % self.tp
        at = self.mesh.coordinate(rank)
        return at["pp"], at["dp"], at["tp"]

    def rank(self, pp: int, dp: int, tp: int) -> int:
        """The inverse of `coordinate`."""
        return self.dp * sum(self.tps[:pp]) + dp * self.tps[pp] + tp

    def line(self, pp: int, dp: int) -> list[int]:
        """The tp ranks of one replica of a pipeline rank's stages."""
        return [self.rank(pp, dp, tp) for tp in range(self.tps[pp])]

    @property
    def mesh(self) -> Mesh:
        """As plans have it."""
        return Mesh.of(pp=self.pp, dp=self.dp, tp=self.tp, tps=self.stage_tp)

    @property
    def text(self) -> str:
        """As messages name it."""
        tp = f"stage_tp={list(self.stage_tp)}" if self.stage_tp else f"tp={self.tp}"
        return f"pp={self.pp} dp={self.dp} {tp}"

    def stages_of(self, pp_rank: int) -> list[int]:
        """Stage numbers that a pipeline rank holds, dealt out round by round. No two are replicas of one stage."""
        return [stage for stage, _ in self.held_by(pp_rank)]

    def held_by(self, pp_rank: int) -> list[tuple[int, int]]:
        """The same, each with its pipe."""
        places = self.places
        return [(s, pipe) for s in range(self.stages) for pipe, ranks in enumerate(places) if ranks[s] == pp_rank]

    def ranks_of(self, stage: int) -> list[int]:
        """The pipeline ranks that hold a stage, pipe by pipe."""
        return [ranks[stage] for ranks in self.places]

    def peers_of(self, pp_rank: int) -> list[int]:
        """The pipeline ranks that hold any of this one's stages, itself included: each of them holds all of these."""
        return sorted({peer for stage in self.stages_of(pp_rank) for peer in self.ranks_of(stage)})

    def rank_of(self, stage: int) -> int:
        """The pipeline rank that holds a stage."""
        return self.placement.rank_of(stage, self.pp)

    def layers_of(self, stage: int, layers: int) -> range:
        """Global numbers of the layers in `stage`: as given, or evenly, the first ones taking what is left over."""
        if self.stage_layers:
            start = sum(self.stage_layers[:stage])
            return range(start, start + self.stage_layers[stage])
        size, extra = divmod(layers, self.stages)
        start = stage * size + min(stage, extra)
        return range(start, start + size + (stage < extra))

    def micro_batches_of(self, dp_rank: int) -> range:
        """Global numbers of the micro-batches that a replica does in every step."""
        return range(dp_rank * self.local_micro_batches, (dp_rank + 1) * self.local_micro_batches)


def world_of(parallel: ParallelConfig) -> int:
    """Ranks that these settings are for, one replica where they leave the number to the world's size."""
    return max(1, parallel.dp) * (sum(parallel.stage_tp) or parallel.pp * parallel.tp)


def vocab_of(tokenizer: str) -> int:
    """Size of the vocabulary of a data.tokenizer."""
    return 256 if tokenizer == "bytes" else int(tokenizer.partition(":")[2])


def plan(config: Config, world: int, vocab: int) -> TrainerLayout:
    """The layout that the settings ask for on `world` ranks.

    `vocab` is the vocabulary's size. Raises ConfigError with the reason and the nearest layout that works.
    """
    pp, tp, tps = config.parallel.pp, config.parallel.tp, config.parallel.stage_tp
    if len(set(tps)) > 1:
        return _plan_unlike(config, world, vocab)
    if tps:
        _check_entries(config)
        tp = tps[0]
    dp = config.parallel.dp or max(1, world // (pp * tp))
    reason = _obstacle(config, world, vocab, pp, dp, tp)
    if reason is None:
        return _layout(config, pp, dp, tp)
    raise ConfigError(
        f"layout pp={pp} dp={dp} tp={tp} on {world} ranks: {reason}; {_advice(config, world, vocab, (pp, dp, tp))}"
    )


def _check_entries(config: Config) -> None:
    """Raise ConfigError unless each pipeline rank has one entry in parallel.stage_tp, and nothing else says it."""
    pp, tp, tps = config.parallel.pp, config.parallel.tp, config.parallel.stage_tp
    if len(tps) != pp:
        raise ConfigError(
            f"parallel.stage_tp = {list(tps)} has {len(tps)} entries for pp={pp}: one for each pipeline rank"
        )
    if tp != 1:
        raise ConfigError(f"parallel.tp is {tp} with parallel.stage_tp = {list(tps)}: set one of them")


def _plan_unlike(config: Config, world: int, vocab: int) -> TrainerLayout:
    """The layout of pipeline ranks that differ in tp. Raises ConfigError with the reason."""
    _check_entries(config)
    tps = config.parallel.stage_tp
    dp = config.parallel.dp or max(1, world // sum(tps))
    layout = replace(_layout(config, config.parallel.pp, dp, max(tps)), stage_tp=tps)
    if layout.world != world:
        reason: str | None = (
            f"dp x ({' + '.join(map(str, tps))}) is {layout.world}, the world size is {world} "
            f"(set parallel.dp = 0 and start a multiple of {sum(tps)} ranks)"
        )
    else:
        reason = _unfit_unlike(config, layout)
        for tp in sorted(set(tps), reverse=True):
            reason = reason or _obstacle(config, layout.pp * dp * tp, vocab, layout.pp, dp, tp)
    if reason is not None:
        raise ConfigError(f"layout {layout.text} on {world} ranks: {reason}")
    return layout


def _unfit_unlike(config: Config, layout: TrainerLayout) -> str | None:
    """Why pipeline ranks cannot differ in tp, None if they can."""
    name, schedule = "parallel.stage_tp with entries that differ", SCHEDULES[config.parallel.schedule]
    if schedule.placement is Placement.BOTH_WAYS:
        return f"{name} needs one replica of each stage, and {schedule.name} has one in each pipe: choose 1f1b"
    if config.train.recompute == STAGE_AWARE:
        return f"{name} holds other bytes in each stage than train.recompute = {STAGE_AWARE} plans with (set full)"
    if config.train.memory_path:
        return f"{name} has several tp, and train.memory_path works what ranks hold out for one (leave it out)"
    first, last = layout.tps[layout.rank_of(0)], layout.tps[layout.rank_of(layout.stages - 1)]
    if config.model.tied and config.parallel.shard_vocabulary and first != last:
        return (
            f"the tied embedding is split over {first} ranks in the first stage and over {last} in the last "
            "(set parallel.shard_vocabulary = false)"
        )
    return None


def _layout(config: Config, pp: int, dp: int, tp: int) -> TrainerLayout:
    placement = SCHEDULES[config.parallel.schedule].placement
    local, layers = config.train.micro_batches // dp, config.parallel.stage_layers
    return TrainerLayout(pp, dp, tp, chunks_of(config), local, placement, stage_layers=layers)


def _obstacle(config: Config, world: int, vocab: int, pp: int, dp: int, tp: int) -> str | None:
    """Why this layout cannot be, None if it can."""
    model, train, schedule = config.model, config.train, SCHEDULES[config.parallel.schedule]
    layout = _layout(config, pp, dp, tp)
    stages, local = layout.stages, layout.local_micro_batches
    if pp * dp * tp != world:
        return f"pp x dp x tp is {pp * dp * tp}, the world size is {world}"
    if (unfit := obstacle(config, tp, stages)) is not None:
        return unfit
    if config.parallel.shard_vocabulary and vocab % tp:
        return f"the vocabulary of {vocab} is not divisible by tp (or set parallel.shard_vocabulary = false)"
    if model.layers < stages and not config.module.build:
        return f"model.layers = {model.layers} are fewer than {stages} stages"
    if (unfit := unfit_stage_layers(config, stages)) is not None:
        return unfit
    if train.micro_batches % dp:
        return f"train.micro_batches = {train.micro_batches} is not divisible by dp"
    if not schedule.takes_chunks and layout.chunks != schedule.chunks:
        if schedule.chunks > 1:
            why = schedule.placement.value
            return f"parallel.schedule = {schedule.name} needs parallel.chunks = {schedule.chunks}, {why}"
        others = ", ".join(sorted(one.name for one in SCHEDULES.values() if one.takes_chunks))
        return f"parallel.chunks = {layout.chunks} needs parallel.schedule to be one of {others}"
    if (unfit := schedule.obstacle(pp, local)) is not None:
        return f"parallel.schedule = {schedule.name} {unfit}"
    if (unfit := unfit_driven(config, tp)) is not None:
        return unfit
    if config.parallel.partial_backward > 1 and (unfit := unfit_partial_backward(config, pp, dp, tp)) is not None:
        return unfit
    if config.memory.policy == "chunks" and (unfit := unfit_chunks(config, dp, tp, stages, local)) is not None:
        return unfit
    if (unfit := unfit_sync(config)) is not None:
        return unfit
    if (
        config.optim.reduce_pieces
        and (unfit := unfit_pieces(config, layout.tp, layout.pipes, layout.stages)) is not None
    ):
        return unfit
    if config.optim.kfac_fill and (unfit := unfit_fill(config, pp)) is not None:
        return unfit
    if schedule.placement is Placement.BOTH_WAYS and (unfit := unfit_pipes(config, pp)) is not None:
        return unfit
    if layout.replicas > 1 and config.parallel.zero == 3 and (unfit := unfit_unit(config)) is not None:
        return unfit
    return OPTIMIZERS[config.optim.name].obstacle(dp, tp, config.parallel.zero, layout.pipes)


def _advice(config: Config, world: int, vocab: int, wanted: tuple[int, int, int]) -> str:
    def distance(sizes: tuple[int, int, int]) -> float:
        return sum(abs(math.log2(a / b)) for a, b in zip(sizes, wanted, strict=True))

    working = [sizes for sizes in factorisations(world) if _obstacle(config, world, vocab, *sizes) is None]
    if not working:
        return "no layout of this many ranks works with these settings"
    pp, dp, tp = min(working, key=distance)
    return f"nearest that works: pp={pp} dp={dp} tp={tp}"


def factorisations(world: int) -> Iterator[tuple[int, int, int]]:
    """Every (pp, dp, tp) whose product is `world`."""
    for pp in range(1, world + 1):
        for dp in range(1, world // pp + 1):
            if world % (pp * dp) == 0:
                yield pp, dp, world // (pp * dp)
