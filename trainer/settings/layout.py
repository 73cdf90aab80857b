"""Which layouts a model and a batch can have. Pure: settings and a world size in, a layout or a reason out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from holdfast.plan.plan import Mesh
from holdfast.plan.schedules.table import SCHEDULES, Placement
from holdfast.trainer.settings.checks import STAGE_AWARE, obstacle
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
        """Global numbers of the layers in `stage`; the first stages take what does not divide evenly."""
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
    return TrainerLayout(pp, dp, tp, _chunks(config), config.train.micro_batches // dp, placement)


def _chunks(config: Config) -> int:
    return config.parallel.chunks or SCHEDULES[config.parallel.schedule].chunks


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
    if model.layers < stages:
        return f"model.layers = {model.layers} are fewer than {stages} stages"
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
    if (unfit := _unfit_driven(config, tp)) is not None:
        return unfit
    if config.parallel.partial_backward > 1 and (unfit := _unfit_partial_backward(config, pp, dp, tp)) is not None:
        return unfit
    if config.memory.policy == "chunks" and (unfit := _unfit_chunks(config, dp, tp, stages, local)) is not None:
        return unfit
    if (unfit := _unfit_sync(config)) is not None:
        return unfit
    if schedule.placement is Placement.BOTH_WAYS and (unfit := _unfit_pipes(config, pp)) is not None:
        return unfit
    if layout.replicas > 1 and config.parallel.zero == 3 and (unfit := _unfit_unit(config)) is not None:
        return unfit
    return OPTIMIZERS[config.optim.name].obstacle(dp, tp, config.parallel.zero, layout.pipes)


def _unfit_pipes(config: Config, pp: int) -> str | None:
    """Why a pipeline cannot have as many pipes as the settings ask for, None if it can."""
    try:
        Placement.BOTH_WAYS.places(pp, _chunks(config))
    except ValueError as error:
        return f"parallel.schedule = {config.parallel.schedule} {error}"
    parts = SCHEDULES[config.parallel.schedule].parts
    if config.train.micro_batch_size % parts:
        return f"train.micro_batch_size = {config.train.micro_batch_size} cannot be cut in {parts}"
    if parts > 1 and config.model.dropout:
        return f"{config.parallel.schedule} cuts micro-batches, and masks are for whole ones (set model.dropout = 0)"
    if config.parallel.zero == 3:
        return (
            f"parallel.zero = 3 gathers a stage whenever it is used, and pipes of {config.parallel.schedule} use it at "
            "different times (set parallel.zero to 2 or less)"
        )
    return None


def _unfit_sync(config: Config) -> str | None:
    """Why there is no choice of when pipes add up their gradients, None if there is, or none is made."""
    name, sync = config.parallel.schedule, config.parallel.replica_sync
    if sync == "end":
        return None
    if SCHEDULES[name].placement is not Placement.BOTH_WAYS:
        others = ", ".join(sorted(s.name for s in SCHEDULES.values() if s.placement is Placement.BOTH_WAYS))
        return (
            f"parallel.replica_sync = {sync} is for replicas of a stage in several pipes, and {name} has one pipe "
            f"(set parallel.replica_sync = end, or parallel.schedule to one of {others})"
        )
    if config.parallel.zero == 2:
        return (
            f"parallel.replica_sync = {sync} chooses when gradients are summed once a step, and parallel.zero = 2 sums "
            "them behind each micro-batch (set parallel.replica_sync = end, or parallel.zero = 1)"
        )
    return None


def _unfit_driven(config: Config, tp: int) -> str | None:
    """Why no rank can decide by itself what it computes next, None if it can, or does not."""
    name, driven = config.parallel.schedule, SCHEDULES[config.parallel.schedule].is_message_driven
    if config.parallel.in_flight < 0 or (config.parallel.in_flight and not driven):
        return (
            f"parallel.in_flight = {config.parallel.in_flight} needs parallel.schedule = axonn, and 1 or more "
            "(0: the default)"
        )
    if not driven:
        return None
    if tp > 1:
        return f"parallel.schedule = {name} lets each rank decide what is next, tp ranks decide together (set tp = 1)"
    if config.parallel.zero == 3:
        return (
            f"parallel.schedule = {name} lets each rank decide what is next, and replicas gather parameters together "
            "(set parallel.zero to 2 or less)"
        )
    return None


def _unfit_partial_backward(config: Config, pp: int, dp: int, tp: int) -> str | None:
    """Why replicas cannot go back through shares of the layers, None if they can."""
    parts, name = config.parallel.partial_backward, f"parallel.partial_backward = {config.parallel.partial_backward}"
    if pp > 1 or tp > 1:
        return f"{name} cuts the backward of a whole model on one rank (set pp = 1 and tp = 1)"
    if dp % parts:
        return f"{name} gives as many replicas each role, and dp is no multiple of it"
    if config.parallel.zero:
        return f"{name} adds up gradients that only some replicas have (set parallel.zero = 0)"
    if config.model.layers < parts:
        return f"{name} is more than model.layers = {config.model.layers}"
    if config.model.tied:
        return f"{name} has input and output layers with unlike contributors (set model.tied = false)"
    if OPTIMIZERS[config.optim.name].whole:
        return f"{name} leaves owners of matrices without products (set optim.name = adamw)"
    return None


def _unfit_chunks(config: Config, dp: int, tp: int, stages: int, local: int) -> str | None:
    """Why model data cannot be in chunks, None if it can."""
    name = "memory.policy = chunks"
    if stages > 1 or tp > 1:
        return f"{name} holds whole layers of one stage (set pp = 1, tp = 1 and parallel.schedule = 1f1b)"
    if local > 1:
        return (
            f"{name} puts gradients where parameters were, so a replica goes through its layers once a step, and "
            f"train.micro_batches = {config.train.micro_batches} gives it {local} (set train.micro_batches to dp, "
            "and train.micro_batch_size higher)"
        )
    if dp > 1 and config.parallel.zero != 3:
        return f"{name} shares all of a chunk over replicas, as stage 3 of ZeRO does (set parallel.zero = 3)"
    if config.train.recompute == STAGE_AWARE:
        return f"{name} has one stage, and train.recompute = {STAGE_AWARE} balances several (set full)"
    if config.train.memory_path:
        return f"{name} counts its bytes by itself, and train.memory_path has no kinds for them (leave it out)"
    return None


def _unfit_unit(config: Config) -> str | None:
    """Why replicas cannot share parameters in the unit that the settings ask for, None if they can."""
    schedule = SCHEDULES[config.parallel.schedule]
    if config.parallel.zero_unit == "layer" and schedule.halves_backward:
        return (
            f"parallel.zero = 3 gathers each layer for a whole backward, and {schedule.name} does it in halves "
            "(set parallel.zero_unit = stage, or parallel.zero = 2)"
        )
    if config.parallel.zero_unit == "stage" and _chunks(config) == 1:
        return (
            "parallel.zero_unit = stage frees a stage while another one works, and a rank has only one "
            "(set parallel.zero_unit = layer, or parallel.schedule = bfs)"
        )
    if config.parallel.zero_live > _chunks(config):
        return f"parallel.zero_live = {config.parallel.zero_live} are more than the {_chunks(config)} stages of a rank"
    return None


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
