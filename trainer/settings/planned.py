"""Layouts of the planner as the trainer's settings, and back; and what it says that a step of them takes. No torch."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace

from holdfast.plan.planned_step import PlannedStep
from holdfast.planner.cluster.gpus import find
from holdfast.planner.cost.layers import Precision
from holdfast.planner.cost.layout import Layout
from holdfast.trainer.settings.checks import check, planned_step
from holdfast.trainer.settings.config import Config, PlannedConfig
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import plan

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
        schedule=layout.schedule,
        chunks=layout.chunks,
        shard_vocabulary=layout.shard_vocabulary,
        sequence=layout.sequence,
        zero=layout.zero,
        zero_unit="layer",
        zero_live=1,
    )
    train = replace(
        config.train,
        micro_batches=layout.micro_batches,
        micro_batch_size=layout.micro_batch_size,
        recompute=layout.recompute,
    )
    optim = replace(config.optim, state="host", bucket=layout.bucket) if layout.is_on_host else config.optim
    # What was planned of other settings says nothing about these.
    return replace(config, parallel=parallel, train=train, optim=optim, planned=PlannedConfig())


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


def takes(config: Config, layout: Layout, vocab: int) -> bool:
    """Whether the trainer does all of it."""
    try:
        settings = settings_of(config, layout)
        check(settings)
        plan(settings, layout.world, vocab)
    except ConfigError:
        return False
    return True


def precision_of(config: Config) -> Precision:
    """Bytes of a number, as `train.dtype` and the optimizer have them."""
    return Precision.of(config.train.dtype, 1 if config.optim.name == "sgd" else 2)
