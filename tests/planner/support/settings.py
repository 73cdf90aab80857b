"""The same job as the trainer's settings and as the planner's layout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.plan.transformer import Transformer
from holdfast.planner.cost.layers import Precision
from holdfast.planner.cost.layout import Layout
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.layout import TrainerLayout, plan
from holdfast.trainer.settings.shape import shape_of

VOCAB = 512


def both(pp: int, dp: int, tp: int, **settings: Any) -> tuple[Config, TrainerLayout, Transformer, Layout, Precision]:
    """`settings` by their names without sections."""
    config = Config()
    sections = {}
    for section in ("model", "data", "parallel", "train", "optim"):
        own = getattr(config, section)
        sections[section] = replace(own, **{k: v for k, v in settings.items() if hasattr(own, k)})
    config = replace(config, **sections)
    config = replace(config, parallel=replace(config.parallel, pp=pp, dp=dp, tp=tp))
    parallel, train, optim = config.parallel, config.train, config.optim
    layout = Layout(
        pp, dp, tp, parallel.schedule, parallel.chunks, train.micro_batches, train.micro_batch_size, parallel.zero,
        train.recompute, parallel.sequence, parallel.shard_vocabulary, optim.state == "host", optim.bucket,
    )  # fmt: skip
    shape = shape_of(config.model, VOCAB, config.data.seq_len)
    return config, plan(config, pp * dp * tp, VOCAB), shape, layout, Precision.of(train.dtype)
