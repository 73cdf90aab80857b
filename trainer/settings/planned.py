"""Layouts of the planner as the trainer's settings, and back. No torch."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from holdfast.planner.cost.layers import Precision
from holdfast.planner.cost.layout import Layout
from holdfast.trainer.settings.checks import check
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import plan


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
    return replace(config, parallel=parallel, train=train, optim=optim)


def layout_of(config: Config, world: int, vocab: int) -> Layout:
    """The settings' own layout on `world` ranks, as the planner has it.

    Raises ConfigError where the trainer has none, or the planner cannot describe it: pipeline ranks that differ in tp.
    """
    if len(set(config.parallel.stage_tp)) > 1:
        raise ConfigError("parallel.stage_tp has entries that differ, which no prediction knows: set parallel.tp")
    found = plan(config, world, vocab)
    parallel, train = config.parallel, config.train
    return Layout(
        found.pp,
        found.dp,
        found.tp,
        parallel.schedule,
        parallel.chunks,
        train.micro_batches,
        train.micro_batch_size,
        parallel.zero,
        train.recompute,
        parallel.sequence and found.tp > 1,
        parallel.shard_vocabulary and found.tp > 1,
        config.optim.state == "host",
        config.optim.bucket,
    )


def changes(config: Config, other: Config) -> list[tuple[str, Any]]:
    """("section.key", value) of all that `other` has otherwise."""
    return [
        (f"{section.name}.{one.name}", value)
        for section in fields(config)
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


def precision_of(config: Config) -> Precision:
    """Bytes of a number, as `train.dtype` and the optimizer have them."""
    return Precision.of(config.train.dtype, 1 if config.optim.name == "sgd" else 2)
