"""Which settings go with a module of the user's own. Pure: settings in, nothing or one clear line out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from holdfast.plan.schedules.table import SCHEDULES
from holdfast.trainer.settings.config import Config, ModelConfig
from holdfast.trainer.settings.errors import ConfigError

FORM = "write MODULE:FUNCTION, as my_model:build, or PATH.py:FUNCTION"


@dataclass(frozen=True, slots=True)
class ModuleSizes:
    """What is known of a module in stages before it is trained: what its layout makes ranks send follows from it."""

    parameters: tuple[Mapping[str, tuple[int, ...]], ...]
    """By stage: the shapes of what it trains, by the names that they have in the module."""
    messages: tuple[int, ...]
    """Over each cut, the bytes of a micro-batch."""
    tied: str | None = None
    """A parameter that the first and the last stage have, each a copy."""


def is_named_by(word: str) -> bool:
    """Whether a `--model` names a module of the user's own, not the shape of a published one."""
    return ":" in word or word.endswith(".py")


def parted(build: str) -> tuple[str, str]:
    """Module, or file, and function of a module.build. Raises ConfigError for another form."""
    where, colon, name = build.rpartition(":")
    is_path = where.endswith(".py")
    if not colon or not name.isidentifier() or not (is_path or all(map(str.isidentifier, where.split(".")))):
        raise ConfigError(f"module.build is {build[:100]!r}: {FORM}")
    return where, name


def check_module(config: Config) -> None:
    """Raise ConfigError for settings of the transformer's layers, which a module of the user's own does not have."""
    if not config.module.build:
        if config.module.balance != "flops":
            raise ConfigError("module.balance says how to cut a module of your own: set module.build too")
        return
    parted(config.module.build)
    default = ModelConfig()
    for entry in fields(ModelConfig):
        if getattr(config.model, entry.name) != getattr(default, entry.name):
            raise ConfigError(
                f"model.{entry.name} is set with module.build = {config.module.build}: "
                "your module has a shape of its own; leave [model] out"
            )
    reason = _unfit(config)
    if reason is not None:
        raise ConfigError(f"module.build = {config.module.build} with {reason}")


def _unfit(config: Config) -> str | None:
    parallel, train = config.parallel, config.train
    if parallel.tp > 1 or parallel.stage_tp:
        return "tp splits layers of ours, and your module's are whole (set parallel.tp = 1, and pp or dp instead)"
    for name, default in (("sequence", False), ("shard_vocabulary", False), ("overlap_chunks", 1), ("sub_batches", 1)):
        if getattr(parallel, name) != default:
            return f"parallel.{name} is for ranks that share a layer (leave it at {str(default).lower()})"
    if parallel.zero == 3:
        return "parallel.zero = 3 gathers our layers one by one (set parallel.zero to 2 or less)"
    if parallel.partial_backward > 1:
        return "parallel.partial_backward counts our layers (set it to 1)"
    if SCHEDULES[parallel.schedule].parts > 1:
        return f"{parallel.schedule} cuts micro-batches, and your module is for whole ones (choose chimera)"
    entries = {entry.strip() for entry in train.recompute.split(",")}
    if not entries <= {"none", "cell"}:
        return f"train.recompute = {train.recompute} is for our layers (set none, or cell for whole stages)"
    if config.optim.name == "dp-kfac":
        return "optim.name = dp-kfac watches the products of our layers (set adamw, lamb or sgd)"
    if config.memory.policy == "chunks":
        return "memory.policy = chunks holds layers of ours (set it to whole)"
    if train.activations == "host":
        return "train.activations = host counts blocks of our layers (set it to device)"
    if parallel.stage_layers:
        return "parallel.stage_layers counts our layers (leave it out; module.balance says how to cut yours)"
    if config.optim.reduce_pieces:
        return "optim.reduce_pieces updates tables before your module's ties are summed (leave it at 0)"
    if train.memory_path:
        return "train.memory_path works out what our layers hold (leave it out)"
    if train.start_from:
        return "train.start_from reads weights of our layers (load your own in the function)"
    return None
