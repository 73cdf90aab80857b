"""Layouts of the planner as the trainer's settings, and back; and what it says that a step of them takes. No torch."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from dataclasses import asdict, fields, replace
from typing import Any

from holdfast.plan.plan import Op, Plan
from holdfast.plan.planned_step import PlannedStep
from holdfast.plan.planned_traffic import PlannedTraffic
from holdfast.plan.transformer import Transformer
from holdfast.planner.cluster.cluster import Level
from holdfast.planner.cluster.gpus import find
from holdfast.planner.cost.host import activation_bytes
from holdfast.planner.cost.layers import Precision, parts
from holdfast.planner.cost.layout import Layout, LayoutError
from holdfast.planner.cost.traffic import (
    contributed,
    module_traffic,
    planned_traffic,
    unlike_traffic,
    wire_of,
    with_curvature,
)
from holdfast.trainer.settings.checks import check, planned_step
from holdfast.trainer.settings.config import Config, PlannedConfig
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import TrainerLayout, plan, vocab_of
from holdfast.trainer.settings.own_module import ModuleSizes
from holdfast.trainer.settings.shape import shape_of

_MEANS_NOTHING = {
    "model": ("dropout", "init_std", "rope_theta", "norm_eps"),
    "parallel": ("dp", "timeout_s", "device", "rendezvous"),
}
"""Settings of these sections that change no prediction; dp follows from the number of ranks, which counts."""
_COUNTS = {
    "module": ("build",),
    "data": ("tokenizer", "seq_len"),
    "optim": ("name", "state", "bucket", "reduce_pieces"),
    "memory": ("policy", "device_bytes", "chunk_bytes"),
    "train": ("micro_batches", "micro_batch_size", "dtype", "recompute", "activations", "activation_bytes"),
}
"""Settings of other sections that change it."""


def settings_of(config: Config, layout: Layout) -> Config:
    """The settings with this layout in place of their own."""
    parallel = replace(
        config.parallel,
        pp=layout.pp,
        dp=layout.dp,
        tp=layout.tp,
        stage_tp=(),
        stage_layers=layout.stage_layers,
        schedule=layout.schedule,
        chunks=layout.chunks,
        shard_vocabulary=layout.shard_vocabulary,
        sequence=layout.sequence,
        zero=layout.zero,
        zero_unit="layer",
        zero_live=1,
        zero_reduce="each",
        in_flight=0,
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
    # What was planned of other settings says nothing about these.
    return replace(config, parallel=parallel, train=train, optim=optim, memory=memory, planned=PlannedConfig())


def with_planned(config: Config, step: PlannedStep, gpu: str, world: int) -> Config:
    """The settings with what a step of them is planned to take, on `world` ranks of this GPU."""
    planned = PlannedConfig(
        step.step, step.forward, step.backward, step.tensor, step.message, step.replicas, step.optimizer, gpu,
        hash_of(config, world),
    )  # fmt: skip
    return replace(config, planned=planned)


def planned_of(config: Config, world: int, gpu: str) -> tuple[PlannedStep | None, str]:
    """What a step is planned to take, if that is of these settings, this many ranks and this GPU; else why not.

    `gpu`: as its driver names it; empty for ranks on CPUs.
    """
    step, planned = planned_step(config.planned), config.planned
    if step is None:
        return None, ""
    if planned.settings != hash_of(config, world):
        return None, f"[planned] is of other settings or another number of ranks than {world}"
    wanted = find(planned.gpu)
    if wanted is not None and find(gpu) != wanted:  # one that a cluster file describes itself may be any
        return None, f"[planned] is of {planned.gpu}, and this is {gpu or 'a CPU'}"
    return step, ""


def hash_of(config: Config, world: int) -> str:
    """Of all that a prediction depends on: settings that have the same are predicted alike."""
    sections = asdict(config)
    counted = {name: {key: sections[name][key] for key in keys} for name, keys in _COUNTS.items()}
    for name, left_out in _MEANS_NOTHING.items():
        counted[name] = {key: value for key, value in sections[name].items() if key not in left_out}
    text = json.dumps([world, counted], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def changes(config: Config, other: Config) -> list[tuple[str, Any]]:
    """("section.key", value) of all that `other` has otherwise."""
    return [
        (f"{section.name}.{one.name}", value)
        for section in fields(config)
        if section.name != "planned"  # counts for the settings that it is of, and for no others
        for one in fields(getattr(config, section.name))
        if (value := getattr(getattr(other, section.name), one.name))
        != getattr(getattr(config, section.name), one.name)
    ]


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
    """The trainer's layout of these settings as the planner's; where stages differ in tp, with the largest in all."""
    parallel, train, optim = config.parallel, config.train, config.optim
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
        sequence=parallel.sequence and layout.tp > 1,
        shard_vocabulary=parallel.shard_vocabulary and layout.tp > 1,
        is_on_host=optim.state == "host",
        bucket=optim.bucket,
        reduce_pieces=optim.reduce_pieces,
        sub_batches=parallel.sub_batches,
        stage_layers=parallel.stage_layers,
    )


def step_bytes(config: Config, layout: TrainerLayout, vocab: int) -> dict[str, float] | None:
    """What all ranks send in a step in groups of pp, dp and tp, predicted; None for what the planner does not know:
    one's own module, or layers spread otherwise than evenly."""
    if config.module.build or layout.stage_tp or layout.stage_layers:
        return None
    if (planners := _planners(config, layout, vocab)) is None:
        return None
    model, known, precision = planners
    axes: dict[str, dict[Level, float]] = {axis: {} for axis in ("pp", "dp", "tp", "ends", "world")}
    found = wire_of(model, known, parts(model, known, precision), precision, axes).by_purpose
    return {"pp": found["pipeline"], "dp": found["replicas"], "tp": found["tensor"]}


def step_traffic(
    config: Config, layout: TrainerLayout, vocab: int, plan: Plan, own: ModuleSizes | None = None
) -> PlannedTraffic | None:
    """What each rank sends in a step of this plan, predicted; None for a layout that the planner does not know. `own`:
    of a module of the user's, of which nothing is known without."""
    counts = Counter((action.op, action.stage) for _, action in plan.actions())
    times = [
        (counts[Op.UNSHARD, stage] / plan.pipes, counts[Op.REDUCE_GRAD, stage] / plan.pipes)
        for stage in range(len(plan.stages))
    ]
    if config.module.build:
        if own is None:
            return None
        held = [sum(map(math.prod, stage.values())) for stage in own.parameters]
        tied = math.prod(own.parameters[0][own.tied]) if own.tied else 0
        return module_traffic(layout_of(config, layout), held, own.messages, tied, precision_of(config), times)
    if (planners := _planners(config, layout, vocab)) is None:
        return None
    model, known, precision = planners
    if (roles := config.parallel.partial_backward) > 1:
        return contributed(model, parts(model, known, precision), precision, known.dp, roles)
    if layout.stage_tp:
        return unlike_traffic(model, known, layout.stage_tp, precision, times)
    # Chunks have a schedule of their own, which gathers each twice and reduces it once, as stage 3 by layer does.
    by_plan = () if config.memory.policy == "chunks" else times
    found = planned_traffic(model, known, parts(model, known, precision), precision, by_plan)
    optim = config.optim
    if optim.name != "dp-kfac":
        return found
    return with_curvature(found, model, known, precision, optim.kfac_largest, optim.kl_clip > 0)


def _planners(config: Config, layout: TrainerLayout, vocab: int) -> tuple[Transformer, Layout, Precision] | None:
    """What the planner calls these settings; None where it knows no such layout."""
    model, known = shape_of(config.model, vocab, config.data.seq_len), layout_of(config, layout)
    try:
        known.check(model, None if layout.stage_tp else layout.world)
    except LayoutError:
        return None
    return model, known, precision_of(config)


def precision_of(config: Config) -> Precision:
    """Bytes of a number, as `train.dtype` and the optimizer have them."""
    return Precision.of(config.train.dtype, 1 if config.optim.name == "sgd" else 2)
