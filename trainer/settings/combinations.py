"""Settings that do not go together in a layout: each function says why, and what would. Pure."""

from __future__ import annotations

from holdfast.plan.schedules.table import SCHEDULES, Placement
from holdfast.trainer.settings.checks import STAGE_AWARE
from holdfast.trainer.settings.config import Config
from holdfast.trainer.settings.optimizers import OPTIMIZERS


def chunks_of(config: Config) -> int:
    return config.parallel.chunks or SCHEDULES[config.parallel.schedule].chunks


def unfit_stage_layers(config: Config, stages: int) -> str | None:
    """Why stages cannot have the layers that the settings give them, None if they can, or none are given."""
    given = config.parallel.stage_layers
    if not given:
        return None
    if len(given) != stages:
        return f"parallel.stage_layers = {list(given)} has {len(given)} entries for {stages} stages: one for each"
    if sum(given) != config.model.layers:
        return (
            f"parallel.stage_layers = {list(given)} adds up to {sum(given)}, and model.layers = {config.model.layers}"
        )
    return None


def unfit_pipes(config: Config, pp: int) -> str | None:
    """Why a pipeline cannot have as many pipes as the settings ask for, None if it can."""
    try:
        Placement.BOTH_WAYS.places(pp, chunks_of(config))
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


def unfit_sync(config: Config) -> str | None:
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


def unfit_fill(config: Config, pp: int) -> str | None:
    """Why DP-KFAC's work cannot go into bubbles, None if it can."""
    schedule, off = SCHEDULES[config.parallel.schedule], "set optim.kfac_fill = false"
    if config.optim.name != "dp-kfac":
        return f"optim.kfac_fill is for optim.name = dp-kfac, and {config.optim.name} has nothing to put there ({off})"
    if pp == 1:
        return f"optim.kfac_fill puts work where pipeline ranks wait for each other, and there is one ({off})"
    if schedule.is_message_driven:
        return f"optim.kfac_fill puts work into a fixed order, and {schedule.name} has none (choose 1f1b, or {off})"
    if config.train.activations == "host":
        return f"optim.kfac_fill holds inputs of matrices, which train.activations = host would move away ({off})"
    if config.train.memory_path:
        return (
            "optim.kfac_fill keeps what train.memory_path does not know of: inputs and gradients of matrices "
            f"(leave it out, or {off})"
        )
    return None


def unfit_driven(config: Config, tp: int) -> str | None:
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


def unfit_partial_backward(config: Config, pp: int, dp: int, tp: int) -> str | None:
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


def unfit_pieces(config: Config, tp: int, pipes: int, stages: int) -> str | None:
    """Why gradients cannot come piece by piece beside the update, None if they can."""
    name = f"optim.reduce_pieces = {config.optim.reduce_pieces}"
    if tp > 1:
        return f"{name} is for whole parameters, and tp ranks split them (set parallel.tp = 1)"
    if pipes > 1:
        return f"{name} needs one pipe, and the schedule has {pipes} (choose 1f1b)"
    if config.parallel.partial_backward > 1:
        return f"{name} needs gradients from every replica (set parallel.partial_backward = 1)"
    if config.model.tied and stages > 1:
        return f"{name} has a tied table whose stages add up after all (set model.tied = false)"
    return None


def unfit_chunks(config: Config, dp: int, tp: int, stages: int, local: int) -> str | None:
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


def unfit_unit(config: Config) -> str | None:
    """Why replicas cannot share parameters in the unit that the settings ask for, None if they can."""
    schedule = SCHEDULES[config.parallel.schedule]
    if config.parallel.zero_unit == "layer" and schedule.halves_backward:
        return (
            f"parallel.zero = 3 gathers each layer for a whole backward, and {schedule.name} does it in halves "
            "(set parallel.zero_unit = stage, or parallel.zero = 2)"
        )
    if config.parallel.zero_unit == "stage" and chunks_of(config) == 1:
        return (
            "parallel.zero_unit = stage frees a stage while another one works, and a rank has only one "
            "(set parallel.zero_unit = layer, or parallel.schedule = bfs)"
        )
    if config.parallel.zero_live > chunks_of(config):
        return (
            f"parallel.zero_live = {config.parallel.zero_live} are more than the {chunks_of(config)} stages of a rank"
        )
    return None
