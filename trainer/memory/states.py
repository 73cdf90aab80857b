"""Bytes of parameters, gradients and optimizer state that a rank keeps for a stage. Pure.

Two counts: that of the ZeRO paper, and that of this trainer, whose shards lie as FSDP2 keeps them
(trainer/optim/replicas.py has the table).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.trainer.optim.matrices import cost, is_preconditioned, owners
from holdfast.trainer.settings.config import Config

WORD = {"float32": 4, "bfloat16": 2, "float64": 8}
AVERAGES = {"adamw": 2, "lamb": 2, "sgd": 1, "dp-kfac": 1}
"""Numbers that an optimizer keeps of a parameter. What DP-KFAC keeps beside them is `curvature`."""


def paper_bytes(parameters: float, replicas: int, zero: int, optimizer: float = 12.0) -> float:
    """Model states of one rank by the ZeRO paper (Rajbhandari et al. 2020, section 5 and figure 1), in mixed precision.

    2 bytes a parameter and 2 a gradient; `optimizer` is K, 12 for Adam with float32 parameters. What is sharded counts
    1 / `replicas`: nothing in stage 0, the optimizer in 1, gradients too in 2, parameters too in 3.
    """
    sizes = zip((2.0, 2.0, optimizer), (3, 2, 1), strict=True)
    return sum(size * parameters / (replicas if zero >= least else 1) for size, least in sizes)


@dataclass(frozen=True, slots=True)
class Words:
    """Bytes of a number, by what it is for."""

    weight: int
    gradient: int
    """Of one that adds up over micro-batches where replicas hold parts: float32 for bfloat16."""
    optimizer: int
    """Of all that the optimizer keeps of one parameter, wherever that is."""
    is_coarse: bool
    """Whether the optimizer updates float32 copies."""


def words(config: Config) -> Words:
    """What the settings give."""
    weight = WORD[config.train.dtype]
    is_coarse = config.train.dtype == "bfloat16"
    fine = 4 if is_coarse else weight
    return Words(weight, fine, fine * (AVERAGES[config.optim.name] + is_coarse), is_coarse)


@dataclass(frozen=True, slots=True)
class Parameters:
    """Numbers of a stage's parameters on one tp rank."""

    whole: int
    shard: int
    """Of one replica, rows filled up as FSDP does; `whole` where replicas share nothing."""
    units: tuple[int, ...]
    """What is gathered at once by layer (whole numbers); the stage, where it is gathered as one."""


@dataclass(frozen=True, slots=True)
class States:
    """Bytes of a rank, over its stages."""

    weights: int
    optimizer: int
    """On the device: all that the optimizer keeps, or room for a bucket of it."""
    gradients: int
    """The most at the end of an action: whole ones that wait to be reduced, and what has been reduced."""
    gathered: int
    """Of parameters of which the rank keeps a part only: the most that is whole at once."""
    beside: int
    """Copies of gradients on their way to other replicas, while micro-batches are under way..."""
    at_end: int
    """... and behind the last one, or in the optimizer's step: activations have gone."""
    host: int = 0
    """What the optimizer keeps in host memory."""


def curvature(config: Config, held: Sequence[tuple[str, Sequence[int]]], replicas: int) -> int:
    """Bytes that DP-KFAC keeps of these parameters (name, shape) at the fullest of their owners: of a matrix two
    factors, and for each its inverse, or eigenvectors and values; of other parameters AdamW's second average."""
    if config.optim.name != "dp-kfac":
        return 0
    matrices = [shape for name, shape in held if is_preconditioned(config.optim, name, shape)]
    rows = config.train.micro_batches // replicas * config.train.micro_batch_size * config.data.seq_len
    whose = owners([cost(shape, rows) for shape in matrices], replicas, config.optim.kfac_owners)
    load = [0] * replicas
    for owner, shape in zip(whose, matrices, strict=True):
        load[owner] += sum(2 * size**2 + size * (config.optim.kfac_form == "eigen") for size in shape)
    others = sum(math.prod(shape) for name, shape in held if not is_preconditioned(config.optim, name, shape))
    numbers = max(load) + others * (config.optim.kfac_others == "adamw")
    return numbers * (4 if config.train.dtype == "bfloat16" else WORD[config.train.dtype])


BUCKET = 25 << 20
"""As trainer/optim/buckets.py has it."""


def states(config: Config, stages: Sequence[Parameters], replicas: int, micro_batches: int, runs: int) -> States:
    """What a rank with these stages keeps.

    `replicas` hold each of them, in all pipes; `micro_batches` of one; `runs`: how often a stage's backwards are
    interrupted by another stage's, and one.
    """
    word, zero = words(config), config.parallel.zero if replicas > 1 else 0
    whole, shard = (sum(getattr(one, name) for one in stages) for name in ("whole", "shard"))
    largest = max(one.whole for one in stages)
    # The optimizer's float32 gradients of bfloat16 ones, of its own shards; LAMB's two lists of changes.
    step = 4 * shard * word.is_coarse + (2 * (word.weight if not word.is_coarse else 4) * shard) * (
        config.optim.name == "lamb"
    )
    optimizer, host = word.optimizer * shard, 0
    if config.optim.state == "host":
        # Float32 gradients are in the bucket.
        room, step = word.optimizer + 4 * word.is_coarse, 0
        optimizer, host = room * min(config.optim.bucket, shard), optimizer
    kept = States(word.weight * shard, optimizer, 0, 0, 0, step, host)
    if not zero:
        bucket = 0
        if replicas > 1:
            size = 4 if word.is_coarse else word.weight
            # Those of bfloat16 wait beside their gradients until all have come; others take the gradients' place.
            bucket = size * whole if word.is_coarse else min(BUCKET, size * largest)
        return _with(kept, gradients=word.weight * whole, at_end=max(bucket, step))
    by_layer = zero == 3 and config.parallel.zero_unit == "layer"
    fine = word.gradient * shard if word.is_coarse and zero >= 2 else 0
    """The sum in float32 that `FineSum` keeps."""
    reduced = word.weight * shard + fine
    if by_layer:
        unit = max(unit for one in stages for unit in one.units)
        waits = config.parallel.zero_reduce == "last" and micro_batches > 1
        return _with(
            kept,
            gradients=word.gradient * whole if waits else reduced,
            gathered=2 * word.weight * unit,
            beside=(word.weight + 2 * word.gradient) * unit,
            at_end=max(step, 2 * word.gradient * unit),
        )
    live = min(config.parallel.zero_live, len(stages)) if zero == 3 else len(stages)
    gathered = word.weight * sum(sorted((one.whole for one in stages), reverse=True)[:live])
    if zero == 1:
        return _with(
            kept,
            gradients=word.gradient * whole,
            gathered=gathered,
            beside=(word.weight if word.is_coarse else 0) * largest,
            at_end=max(step, 2 * word.gradient * largest),
        )
    # Of one micro-batch, or run, whole gradients; what earlier ones gave has been reduced. The last stage goes first.
    is_repeated = (micro_batches if zero == 2 else runs) > 1
    waiting = word.gradient * largest + reduced
    if not is_repeated:
        sizes = [(word.gradient * one.whole, reduced * one.shard // shard) for one in stages]
        waiting = max(whole + sum(part for _, part in sizes[k + 1 :]) for k, (whole, _) in enumerate(sizes))
    return _with(
        kept,
        gradients=waiting,
        gathered=gathered,
        beside=2 * word.gradient * largest,
        at_end=max(step, 2 * word.gradient * largest),
    )


def _with(kept: States, gradients: int, at_end: int, gathered: int = 0, beside: int = 0) -> States:
    return replace(kept, gradients=gradients, gathered=gathered, beside=beside, at_end=at_end)
