"""How many bytes a step puts on the wire, from settings, layout and plan. Pure; tests hold it to counted bytes.

Over all ranks, payload alone: TCP and gloo add 66 bytes a packet and a few dozen a message. M bytes in all take
2(n-1)M to all-reduce over n ranks and (n-1)M to gather or to reduce-scatter. What recomputation does again of a
layer's collectives, and LAMB's one number a tensor, are not counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from holdfast.plan.plan import Op, Plan
from holdfast.trainer.model.model import DTYPES, TIED, ModelShape
from holdfast.trainer.optim.contributions import Contributions
from holdfast.trainer.optim.matrices import is_preconditioned
from holdfast.trainer.optim.update_rules import rule_class
from holdfast.trainer.settings.chunk_layout import Chunks, Words, in_chunks, units_of
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import TrainerLayout
from holdfast.trainer.settings.own_module import ModuleSizes


@dataclass(frozen=True, slots=True)
class HeldParameter:
    """A parameter of a stage: its whole shape, and the dimension along which tp splits it, None if it does not."""

    name: str
    shape: tuple[int, ...]
    split: int | None = None

    def elements(self, tp: int, rows_of: int = 1) -> int:
        """Of one tp rank's part, with its rows filled up to a multiple of `rows_of` as FSDP does."""
        if not self.shape:
            return 1
        shape = list(self.shape)
        if self.split is not None:
            shape[self.split] //= tp
        return -(-shape[0] // rows_of) * rows_of * math.prod(shape[1:])


@dataclass(frozen=True, slots=True)
class StepBytes:
    """Bytes of one step over all ranks, by what they are for."""

    tensor: int
    """Activations and their gradients inside layers, and gradients of what tp ranks hold alike."""
    pipeline: int
    """Activations and their gradients between stages, and the two copies of a tied embedding."""
    replicas: int
    """Gathered parameters and reduced gradients."""
    optimizer: int
    """Preconditioned gradients, from their owners to the other replicas. Factors never go anywhere."""
    world: int
    """Loss and gradient norm."""

    @property
    def total(self) -> int:
        return sum(asdict(self).values())


def held_by(config: Config, layout: TrainerLayout, vocab: int, stage: int) -> Iterator[HeldParameter]:
    """The parameters of a stage."""
    model, layers = config.model, layout.layers_of(stage, config.model.layers)
    shape, rows = ModelShape(model), 0 if config.parallel.shard_vocabulary else None
    is_first, is_last = layers.start == 0, layers.stop == model.layers

    def norm(name: str) -> Iterator[HeldParameter]:
        yield HeldParameter(f"{name}.weight", (shape.width,))
        if model.norm == "layer":
            yield HeldParameter(f"{name}.bias", (shape.width,))

    if is_first or (is_last and model.tied):
        yield HeldParameter(TIED, (vocab, shape.width), rows)
    if is_first and model.positions == "learned":
        yield HeldParameter("positions.weight", (config.data.seq_len, shape.width))
    for number in layers:
        name = f"layers.{number}"
        qkv, out = shape.qkv_matrix(name), shape.out_matrix(name)
        ups, down = shape.in_matrices(name), shape.down_matrix(name)
        yield from norm(f"{name}.norm")
        if model.block == "serial":
            yield from norm(f"{name}.ffn_norm")
            split = ((qkv, 0), (out, 1), *((up, 0) for up in ups), (down, 1))  # in the order of the module
            yield from (HeldParameter(matrix.name, matrix.shape, dim) for matrix, dim in split)
        else:
            yield HeldParameter(f"{name}.inward.weight", (sum(m.shape[0] for m in (qkv, *ups)), shape.width), 0)
            yield HeldParameter(f"{name}.outward.weight", (shape.width, out.shape[1] + down.shape[1]), 1)
    if is_last:
        yield from norm("head.norm")
        if not model.tied:
            yield HeldParameter("head.weight", (vocab, shape.width), rows)


def chunks_of(config: Config, layout: TrainerLayout, vocab: int, device_bytes: int) -> Chunks:
    """How `memory.policy = chunks` lays out a model on devices of so many bytes each, 0: without limit.

    ConfigError says what would fit.
    """
    shapes = {held.name: held.shape for held in held_by(config, layout, vocab, 0)}
    units = units_of(list(shapes), TIED if config.model.tied else "")
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    word = _item(config)
    fine = max(4, word)
    words = Words(word, fine * (1 + len(rule_class(config.optim).keys)))
    try:
        return in_chunks(sizes, units, words, layout.replicas, device_bytes, config.memory.chunk_bytes)
    except ValueError as error:
        raise ConfigError(
            f"memory.policy = chunks: {error}; raise memory.device_bytes, or set memory.chunk_bytes to what fits "
            "(0: it is searched)"
        ) from None


def traffic(config: Config, layout: TrainerLayout, plan: Plan, vocab: int, own: ModuleSizes | None = None) -> StepBytes:
    """Of one step of this job. `own`: of a module of the user's, which has to be known."""
    world = 2 * (layout.world - 1) * 8 * (2 + layout.world)
    if own is not None:
        held = [[HeldParameter(name, shape) for name, shape in one.items()] for one in own.parameters]
        return StepBytes(0, _pipeline_of(config, layout, own), _replicas(config, layout, plan, held, vocab), 0, world)
    assert not config.module.build, "the sizes of a module of the user's are not in the settings"
    stages = [list(held_by(config, layout, vocab, stage)) for stage in range(layout.stages)]
    return StepBytes(
        _tensor(config, layout, stages),
        _pipeline(config, layout, vocab),
        _replicas(config, layout, plan, stages, vocab),
        _optimizer(config, layout, stages),
        world,
    )


def _activation(config: Config) -> int:
    """Bytes of one micro-batch's (batch, sequence, width)."""
    return config.train.micro_batch_size * config.data.seq_len * config.model.d_model * _item(config)


def _item(config: Config) -> int:
    return DTYPES[config.train.dtype].itemsize


def _copies(config: Config, layout: TrainerLayout) -> int:
    """How often replicas hold each parameter, all of them together."""
    return layout.replicas if config.parallel.zero == 0 else 1


def _tensor(config: Config, layout: TrainerLayout, stages: list[list[HeldParameter]]) -> int:
    """One sum forward and one backward for each pair of split matrices; with sequence parallelism as two halves."""
    micro_batches, of_layer = config.train.micro_batches, 2 if config.model.block == "serial" else 1
    others = [layout.tps[layout.rank_of(stage)] - 1 for stage in range(layout.stages)]
    pairs = sum(
        len(layout.layers_of(stage, config.model.layers)) * of_layer * peers for stage, peers in enumerate(others)
    )
    total = micro_batches * pairs * 4 * _activation(config)
    if config.parallel.shard_vocabulary:
        # Embedding and head do half a pair each; the loss takes the maxima, then two sums, in float32 or finer.
        positions = config.train.micro_batch_size * config.data.seq_len
        loss = 2 * others[-1] * 3 * positions * max(4, _item(config))
        total += micro_batches * (2 * (others[0] + others[-1]) * _activation(config) + loss)
    if config.parallel.sequence:
        alike = sum(
            peers * held.elements(1)
            for peers, stage in zip(others, stages, strict=True)
            for held in stage
            if held.split is None
        )
        total += 2 * alike * _item(config) * _copies(config, layout)
    return total


def _pipeline(config: Config, layout: TrainerLayout, vocab: int) -> int:
    """Each tp rank that receives gets each element that it is to hold once, whoever brings it."""
    places = [layout.rank_of(stage) for stage in range(layout.stages)]
    copies = [1 if config.parallel.sequence else layout.tps[place] for place in places]
    moved = sum(copies[s] + copies[s + 1] for s in range(layout.stages - 1) if places[s] != places[s + 1])
    total = moved * config.train.micro_batches * _activation(config)
    is_apart = layout.pipes == 1 and layout.rank_of(0) != layout.rank_of(layout.stages - 1)
    if config.model.tied and is_apart:
        first, last = (layout.tps[place] for place in (places[0], places[-1]))
        # Two ranks of each place in tp, or one group of all.
        summed = first + last - 1 if first != last else 1 if config.parallel.shard_vocabulary else first
        total += 2 * vocab * config.model.d_model * _item(config) * summed * _copies(config, layout)
    return total


def _pipeline_of(config: Config, layout: TrainerLayout, own: ModuleSizes) -> int:
    """Of a module of the user's: messages over its cuts, in all pipes, and the two copies of a tied parameter."""
    each = config.train.micro_batches // layout.pipes
    total = sum(
        2 * each * own.messages[s]
        for places in layout.places
        for s in range(layout.stages - 1)
        if places[s] != places[s + 1]
    )
    if own.tied is not None and layout.pipes == 1 and layout.rank_of(0) != layout.rank_of(layout.stages - 1):
        total += 2 * math.prod(own.parameters[0][own.tied]) * _item(config) * _copies(config, layout)
    return total


def _optimizer(config: Config, layout: TrainerLayout, stages: list[list[HeldParameter]]) -> int:
    """(P-1) sum_l numel(l), in float32 or finer; and between stages 8 bytes of each replica for the KL clip."""
    held = [one for stage in stages for one in stage if is_preconditioned(config.optim, one.name, one.shape)]
    clip = 2 * (layout.pp - 1) * 8 * layout.dp if config.optim.name == "dp-kfac" and config.optim.kl_clip else 0
    return (layout.dp - 1) * sum(one.elements(1) for one in held) * max(4, _item(config)) + clip


def _replicas(config: Config, layout: TrainerLayout, plan: Plan, stages: list[list[HeldParameter]], vocab: int) -> int:
    """As often as the plan says."""
    copies = layout.replicas
    if copies == 1:
        return 0
    if config.parallel.partial_backward > 1:
        return _contributions(config, layout, stages[0])
    if config.memory.policy == "chunks":
        return copies * chunks_of(config, layout, vocab, config.memory.device_bytes).wire_bytes
    times = Counter((action.op, action.stage) for _, action in plan.actions())
    item, total = _item(config), 0
    for number, stage in enumerate(stages):
        tp = layout.tps[layout.rank_of(number)]
        gathers, sums = (times[op, number] // layout.pipes for op in (Op.UNSHARD, Op.REDUCE_GRAD))
        if config.parallel.zero == 0:
            total += sums * 2 * sum(held.elements(tp) for held in stage) * max(4, item) * tp
        else:
            filled = sum(held.elements(tp, copies) for held in stage)
            total += (gathers * item + sums * max(4, item)) * filled * tp
    return total * (copies - 1)


def _contributions(config: Config, layout: TrainerLayout, held: list[HeldParameter]) -> int:
    """Of a section with c contributors among d replicas: 2(c - 1) to add up, and d - c to the others."""
    roles, total = Contributions(config.parallel.partial_backward, layout.dp, config.model.layers), 0
    for parameter in held:
        having = len(roles.contributors(roles.section_of(parameter.name), 0))
        total += (2 * (having - 1) + layout.dp - having) * parameter.elements(1) * max(4, _item(config))
    return total
