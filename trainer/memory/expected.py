"""What each rank of a job will hold, by kind, from its settings alone. Needs torch, and computes nothing with it.

Model states come from the shapes of parameters, activations from the schedule's own lists and from what a real layer
saves. A rank is at its fullest either when it holds the most activations, or behind the last backward, when gradients
go to other replicas and the optimizer steps: the larger of the two counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby

from holdfast.plan.cache.arena import ArenaFullError
from holdfast.plan.memory import peak
from holdfast.plan.plan import COMPUTE, LAST_BACKWARDS, Action, Layers, Mesh, Op, Order, Plan
from holdfast.plan.recompute import Kept, StageBytes, stage_aware
from holdfast.trainer.chunks.moments import margin_of
from holdfast.trainer.memory.activations import Activations, count
from holdfast.trainer.memory.states import Parameters, States, curvature, states
from holdfast.trainer.optim.traffic import HeldParameter, chunks_of, held_by
from holdfast.trainer.pipeline.offload.blocks import traffic, uses_of
from holdfast.trainer.pipeline.pieces import Pieces
from holdfast.trainer.pipeline.pipeline import computations_of
from holdfast.trainer.pipeline.recompute import kinds
from holdfast.trainer.pipeline.transfers import POSTED_AHEAD
from holdfast.trainer.settings.checks import STAGE_AWARE, recompute_of
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import TrainerLayout

KINDS = ("weights", "gradients", "optimizer", "activations", "gathered", "buffers", "chunks")
TOKEN = 8
"""Bytes of a token's number."""
ROTATION = 4


@dataclass(frozen=True, slots=True)
class Kinds:
    """Bytes of one rank when it is at its fullest."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    gathered: int
    buffers: int
    chunks: int = 0
    """With memory.policy = chunks, in place of weights and optimizer: what is there of all lists of chunks."""

    @property
    def total(self) -> int:
        return sum(asdict(self).values())


@dataclass(frozen=True, slots=True)
class Expected:
    """Of a whole job. Ranks of one pipeline rank hold equally much, but for rows that dp does not divide."""

    layout: TrainerLayout
    ranks: tuple[Kinds, ...]
    """By pipeline rank."""
    parameters: int
    """Of the model, each counted once."""
    plan: Plan
    """The computations alone."""
    host: tuple[int, ...] = ()
    """By pipeline rank: optimizer states, activations and chunks in host memory, in no kind."""

    @property
    def most(self) -> int:
        """The pipeline rank that holds the most."""
        return max(range(len(self.ranks)), key=lambda rank: self.ranks[rank].total)

    @property
    def needs(self) -> int:
        """Bytes on that rank."""
        return self.ranks[self.most].total


def expect(config: Config, layout: TrainerLayout, vocab: int, device: str) -> Expected:
    """Work it out for "cpu" or "cuda". Not where a process group exists. ConfigError for ranks of unlike tp, and
    for what is kept for bubbles."""
    if layout.stage_tp:
        raise ConfigError(
            "what ranks hold is worked out for one tp, and parallel.stage_tp has several: "
            "set parallel.tp instead, or leave out train.memory_path"
        )
    if config.optim.kfac_fill:
        raise ConfigError("what optim.kfac_fill keeps for bubbles is not worked out: set optim.kfac_fill = false")
    computations = computed(config, layout)
    sizes = count(config, layout.tp, vocab, device)
    stages = [_stage(config, layout, sizes, stage) for stage in range(layout.stages)]
    kept = stage_aware(computations, stages).kept if config.train.recompute == STAGE_AWARE else {}
    held = _Held(config, layout, sizes, stages, kept, computations.orders[0])
    shapes = [list(held_by(config, layout, vocab, stage)) for stage in range(layout.stages)]
    parameters_once = sum(p.elements(1) for p in _once(shapes))
    if config.memory.policy == "chunks":
        kinds, in_host = _in_chunks(config, layout, vocab, held, device)
        return Expected(layout, (kinds,), parameters_once, computations, (in_host,))
    parameters = [_parameters(config, layout, one) for one in shapes]
    ranks, host = [], []
    for rank, order in enumerate(computations.orders):
        own = [stage for stage, _ in layout.held_by(rank)]
        runs = max(_runs(order, stage) for stage in own)
        held_by_rank = [parameters[stage] for stage in own]
        of_rank = states(config, held_by_rank, layout.replicas, layout.local_micro_batches, runs)
        names = [(one.name, one.shape) for stage in own for one in shapes[stage]]
        beside = curvature(config, names, layout.replicas)
        of_rank = replace(of_rank, optimizer=of_rank.optimizer + beside)
        activations, away = held.most(order, computations)
        host.append(of_rank.host + away)
        ranks.append(_kinds(of_rank, held, order, own, device, activations))
    return Expected(layout, tuple(ranks), parameters_once, computations, tuple(host))


def computed(config: Config, layout: TrainerLayout) -> Plan:
    """The computations of each rank, as a job does them."""
    rank_of, *replicas = layout.places
    return Plan(
        config.parallel.schedule,
        Mesh.of(pp=layout.pp, dp=layout.dp, tp=layout.tp),
        tuple(Layers(stage, stage + 1, rank) for stage, rank in enumerate(rank_of)),
        layout.local_micro_batches,
        tuple(computations_of(config, layout)),
        tuple(replicas),
    )


class _Held:
    """What stages hold of micro-batches."""

    def __init__(
        self,
        config: Config,
        layout: TrainerLayout,
        sizes: Activations,
        stages: Sequence[StageBytes],
        kept: Mapping[tuple[int, int], Kept],
        order: Order,
    ) -> None:
        self.config, self.layout, self.sizes = config, layout, sizes
        self.order = order
        """Of the first rank."""
        self._stages, self._kept = stages, kept

    def most(self, order: Order, plan: Plan) -> tuple[int, int]:
        """Activations on the device, and in host memory, where a rank has the most of them."""
        train = self.config.train
        if train.activations == "device":
            return round(peak(order, self.activations, self.inputs)), 0
        pieces = Pieces(plan)
        uses = uses_of(order, pieces.of)
        sizes = {
            (pipe, stage, piece): round(self._saved(stage, piece[0]) / pieces.count(piece[0]))
            for one in uses
            for pipe, stage, piece in one.made
        }
        try:
            moved = traffic(uses, sizes, train.activation_bytes)
        except ArenaFullError:
            at_once = max(sum(sizes[block] for block in one.made + one.needed) for one in uses)
            raise ConfigError(
                f"train.activation_bytes is {train.activation_bytes}: a computation saves {at_once} bytes at once; "
                "raise it to that, or lower train.micro_batch_size"
            ) from None
        return round(peak(order, self._stays, self.inputs)) + moved.device, moved.host

    def _stays(self, action: Action) -> float:
        """What comes in and what goes out is never moved."""
        ends = (action.stage > 0) + (action.stage < self.layout.stages - 1)
        return self.sizes.boundary * ends * float(action.share)

    def _saved(self, stage: int, micro_batch: int) -> int:
        ends = (stage > 0) + (stage < self.layout.stages - 1)
        return self._of(stage, micro_batch) - self.sizes.boundary * ends

    def activations(self, action: Action) -> float:
        """Of a forward, or of a recompute of a whole stage."""
        return sum(self._of(action.stage, m) for m in action.micro_batches) / action.parts

    def inputs(self, action: Action) -> float:
        """Of a forward that is computed again: what comes in, but tokens, which are there anyway."""
        return self.sizes.boundary * float(action.share) * (action.stage > 0)

    def passing(self, stages: Sequence[int]) -> int:
        """The most beside, while some layer of these stages is computed forward or back."""
        found = 0
        for stage in stages:
            whole = self._stages[stage].layers
            again = {kind for key, kept in self._kept.items() if key[0] == stage for kind in kinds(kept, whole)}
            again = again or {_kind(recompute_of(self.config.train.recompute, stage))}
            found = max(found, *(self.sizes.passing[kind] for kind in again))
            if stage == self.layout.stages - 1:
                found = max(found, self.sizes.passing_last)
        return found

    def _of(self, stage: int, micro_batch: int) -> int:
        one = self._stages[stage]
        going_out = 0 if stage == self.layout.stages - 1 else self.sizes.boundary
        if (stage, micro_batch) in self._kept:
            return one.held(self._kept[stage, micro_batch]) + going_out
        kind = _kind(recompute_of(self.config.train.recompute, stage))
        whole, selective = (one.layers if kind == name else 0 for name in ("none", "selective"))
        return one.held(Kept(whole, selective)) + going_out


def _kind(recompute: str) -> str:
    """What its layers recompute: those of a cell nothing, once it is computed again."""
    return recompute if recompute in ("selective", "full") else "none"


def _stage(config: Config, layout: TrainerLayout, sizes: Activations, stage: int) -> StageBytes:
    layers = len(layout.layers_of(stage, config.model.layers))
    return sizes.of_stage(layers, stage == 0, stage == layout.stages - 1)


def _kinds(own: States, held: _Held, order: Order, stages: Sequence[int], device: str, activations: int) -> Kinds:
    under_way = held.passing(stages) + own.beside + _messages(held, order, device) + _inputs(held, stages)
    buffers = max(under_way, own.at_end - activations)
    return Kinds(own.weights, own.gradients, own.optimizer, activations, own.gathered, buffers)


def _in_chunks(config: Config, layout: TrainerLayout, vocab: int, held: _Held, device: str) -> tuple[Kinds, int]:
    """Of a rank whose model data is in chunks: on its device, and in host memory.

    Chunks take what is left of memory.device_bytes by everything else, up to all of them.
    """
    cap = config.memory.device_bytes
    laid = chunks_of(config, layout, vocab, cap)
    count, active = laid.num_groups, laid.least_bytes // laid.active_bytes
    elements = laid.layout.chunk_size
    parameters, lists = count * laid.chunk_bytes, count * elements * laid.words.kept
    gathered = active * (laid.active_bytes - laid.chunk_bytes)
    # One gradient on its way into its chunk, or a group's from all replicas.
    gradients = max(laid.sizes.values()) * laid.words.parameter
    if layout.replicas > 1:
        gradients = max(gradients, layout.replicas * laid.chunk_bytes)
    activations = round(peak(held.order, held.activations, held.inputs))
    beside = _kinds(States(0, 0, gradients, gathered, 0, 0), held, held.order, [0], device, activations)
    coarse = 4 * elements if config.train.dtype == "bfloat16" else 0
    here = margin_of(cap or None, beside.total + coarse, parameters, lists // count, count) * (lists // count)
    left = parameters if not cap else max(active * laid.chunk_bytes, min(parameters, cap - beside.total - here))
    # The host has room for each chunk of parameters, wherever the chunk is.
    return replace(beside, chunks=left + here), parameters + lists - here


def _runs(order: Order, stage: int) -> int:
    """Runs of a stage's computations that a backward of its is in."""
    runs = groupby((a for a in order if a.op in COMPUTE), key=lambda action: action.stage)
    return sum(any(a.op in LAST_BACKWARDS for a in run) for one, run in runs if one == stage)


def _messages(held: _Held, order: Order, device: str) -> int:
    """Room for what comes in, and gradients that go out: gloo keeps them until the step is over."""
    layout = held.layout
    if layout.pp == 1:
        return 0
    backs = sum(a.op in COMPUTE and a.op not in (Op.FORWARD, Op.RECOMPUTE, Op.BACKWARD_WEIGHT) for a in order)
    return held.sizes.boundary * (2 if device == "cuda" else POSTED_AHEAD["cpu"] + 1 + backs)


def _inputs(held: _Held, stages: Sequence[int]) -> int:
    """Tokens and targets of a step, and the angles of rotary positions."""
    config, layout = held.config, held.layout
    samples = layout.local_micro_batches * config.train.micro_batch_size
    ends = (0 in stages) + (layout.stages - 1 in stages)
    angles = 0
    if config.model.positions == "rope":
        angles = 2 * config.data.seq_len * (config.model.d_model // config.model.heads) * ROTATION * len(stages)
    return ends * samples * config.data.seq_len * TOKEN + angles


def _parameters(config: Config, layout: TrainerLayout, shapes: Sequence[HeldParameter]) -> Parameters:
    rows = layout.replicas if config.parallel.zero else 1
    units: dict[str, int] = {}
    for one in shapes:
        unit = ".".join(one.name.split(".")[: 2 if one.name.startswith("layers.") else 1])
        units[unit] = units.get(unit, 0) + one.elements(layout.tp)
    return Parameters(
        sum(one.elements(layout.tp) for one in shapes),
        sum(one.elements(layout.tp, rows) // rows for one in shapes),
        tuple(units.values()),
    )


def _once(stages: Sequence[Sequence[HeldParameter]]) -> list[HeldParameter]:
    """A tied table is in two stages."""
    return list({one.name: one for stage in stages for one in stage}.values())
