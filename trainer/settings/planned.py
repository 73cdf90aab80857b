"""Layouts of the planner as the trainer's settings, and back. No torch."""

from __future__ import annotations

from dataclasses import replace

from holdfast.planner.cluster.cluster import Level
from holdfast.planner.cost.host import activation_bytes
from holdfast.planner.cost.layers import Precision, parts
from holdfast.planner.cost.layout import Layout, LayoutError
from holdfast.planner.cost.traffic import wire_of
from holdfast.trainer.settings.checks import check
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import TrainerLayout, plan, vocab_of
from holdfast.trainer.settings.shape import shape_of


def settings_of(config: Config, layout: Layout) -> Config:
    """The settings with this layout in place of their own."""
    parallel = replace(
        config.parallel,
        pp=layout.pp,
        dp=layout.dp,
        tp=layout.tp,
        stage_tp=(),
        schedule=layout.schedule,
        chunks=layout.chunks,
        shard_vocabulary=layout.shard_vocabulary,
        sequence=layout.sequence,
        zero=layout.zero,
        zero_unit="layer",
        zero_live=1,
        sub_batches=layout.sub_batches,
        overlap_chunks=1 if layout.sub_batches > 1 else config.parallel.overlap_chunks,
    )
    train = replace(
        config.train,
        micro_batches=layout.micro_batches,
        micro_batch_size=layout.micro_batch_size,
        recompute=layout.recompute,
    )
    optim, memory = config.optim, config.memory
    if layout.is_on_host:
        optim = replace(optim, state="host", bucket=layout.bucket, reduce_pieces=layout.reduce_pieces)
    if layout.activation_blocks:
        shape = shape_of(config.model, vocab_of(config.data.tokenizer), config.data.seq_len)
        kept = activation_bytes(shape, layout, precision_of(config))
        train = replace(train, activations="host", activation_bytes=kept)
    if layout.device_bytes:
        memory = replace(memory, policy="chunks", device_bytes=layout.device_bytes)
    return replace(config, parallel=parallel, train=train, optim=optim, memory=memory)


def takes(config: Config, layout: Layout, vocab: int) -> bool:
    """Whether the trainer does all of it."""
    try:
        settings = settings_of(config, layout)
        check(settings)
        plan(settings, layout.world, vocab)
    except ConfigError:
        return False
    return True


def layout_of(config: Config, layout: TrainerLayout) -> Layout:
    """The trainer's layout as the planner's; tp alike in all stages."""
    parallel, train = config.parallel, config.train
    return Layout(
        pp=layout.pp,
        dp=layout.dp,
        tp=layout.tp,
        schedule=parallel.schedule,
        chunks=parallel.chunks,
        micro_batches=train.micro_batches,
        micro_batch_size=train.micro_batch_size,
        zero=parallel.zero,
        recompute=train.recompute,
        sequence=parallel.sequence,
        shard_vocabulary=parallel.shard_vocabulary,
    )


def step_bytes(config: Config, layout: TrainerLayout, vocab: int) -> dict[str, float] | None:
    """What all ranks send in a step in groups of pp, dp and tp, predicted; None for what the planner does not know:
    one's own module, or layers spread otherwise than evenly."""
    if config.module.build or layout.stage_tp or layout.stage_layers:
        return None
    model, known = shape_of(config.model, vocab, config.data.seq_len), layout_of(config, layout)
    precision = precision_of(config)
    try:
        known.check(model, layout.world)
    except LayoutError:
        return None
    axes: dict[str, dict[Level, float]] = {axis: {} for axis in ("pp", "dp", "tp", "ends", "world")}
    found = wire_of(model, known, parts(model, known, precision), precision, axes).by_purpose
    return {"pp": found["pipeline"], "dp": found["replicas"], "tp": found["tensor"]}


def precision_of(config: Config) -> Precision:
    """Bytes of a number, as `train.dtype` and the optimizer have them."""
    return Precision.of(config.train.dtype, 1 if config.optim.name == "sgd" else 2)
