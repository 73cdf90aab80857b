"""Which settings make sense. Pure: settings in, nothing or one clear line out."""

from __future__ import annotations

from holdfast.plan.planned_step import PlannedStep
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.trainer.settings import transport
from holdfast.trainer.settings.config import (
    Config,
    MemoryConfig,
    ModelConfig,
    OptimConfig,
    PlannedConfig,
    TransportConfig,
)
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.optimizers import OPTIMIZERS
from holdfast.trainer.settings.own_module import check_module

RECOMPUTE = ("none", "selective", "full", "cell")
STAGE_AWARE = "stage-aware"
"""The other value of train.recompute, for all stages together."""
SMALLEST_BUCKET = 128
"""Two halves of `UNIT` elements, as trainer/optim/host/cuts.py has it."""
OFF = "leave optim.reduce_pieces = 0"
_MOST = 1 << 20
"""No model or job is laid over more of anything."""


def check(config: Config) -> None:
    """Raise ConfigError for a value that can work on no layout."""
    _check_ranges(config)
    _check_model(config.model)
    _check_choices(config)
    _check_state(config.optim)
    _check_pieces(config)
    _check_activations(config)
    _check_memory(config.memory, config.optim, config.train.activations)
    check_module(config)
    planned_step(config.planned)
    check_transport(policy(config), infiniband=config.parallel.device == "cuda")
    _check_networks(config.transport)


def planned_step(planned: PlannedConfig) -> PlannedStep | None:
    """What a step is planned to take; None where nothing is. ConfigError for what no step can take."""
    if planned.step_s == 0:
        return None
    try:
        return PlannedStep(
            planned.step_s, planned.forward_s, planned.backward_s, planned.tensor_s, planned.message_s,
            planned.replicas_s, planned.optimizer_s,
        )  # fmt: skip
    except ValueError as error:
        raise ConfigError(f"[planned]: {error}; write it anew with holdfast plan -o, or leave it out") from None


def check_transport(policy: transport.Transport, infiniband: bool) -> None:
    """Raise ConfigError if the network's layers would give up in the wrong order."""
    reason = transport.obstacle(policy, infiniband)
    if reason is not None:
        raise ConfigError(reason)


def _check_networks(settings: TransportConfig) -> None:
    for key in ("within", "across"):
        value = getattr(settings, key)
        if value and settings.networks == "one":
            raise ConfigError(
                f"transport.{key} = {value} is for groups with networks of their own; set transport.networks = by-nic, "
                f"or leave transport.{key} out"
            )


def policy(config: Config) -> transport.Transport:
    """All waiting times of the job's network, from where they are set."""
    t = config.transport
    return transport.Transport(t.flap_s, t.ib_timeout, t.ib_retries, config.parallel.timeout_s, t.driver_s)


def _check_ranges(config: Config) -> None:
    at_least_one = {
        "model": ("layers", "d_model", "heads", "ffn_mult"),
        "data": ("seq_len", "max_bytes"),
        "parallel": ("pp", "tp", "overlap_chunks", "sub_batches", "partial_backward"),
        "train": ("steps", "micro_batches", "micro_batch_size"),
        "optim": ("factor_every", "invert_every", "kfac_largest"),
        "checkpoint": ("keep",),
    }
    not_negative = {
        "parallel": ("dp", "chunks"),
        "model": ("kv_heads", "ffn_width", "window", "init_std"),
        "optim": (
            *("lr", "eps", "weight_decay", "clip_norm", "warmup_steps", "decay_steps"),
            *("momentum", "final_lr", "trust_low", "trust_high", "kl_clip", "kfac_others_lr"),
        ),
        "train": ("log_every", "seed", "max_skips", "gc_every"),
        "data": ("prefetch",),
        "transport": ("flap_s", "driver_s"),
        "checkpoint": ("every",),
        "memory": ("device_bytes", "chunk_bytes"),
    }
    for low, table in ((1, at_least_one), (0, not_negative)):
        for section, keys in table.items():
            for key in keys:
                value = getattr(getattr(config, section), key)
                if not value >= low:
                    raise ConfigError(f"{section}.{key} is {value}: must be {low} or more")
    sizes = {
        "model": ("layers", "d_model", "heads", "kv_heads", "ffn_mult", "ffn_width", "window"),
        "parallel": ("pp", "dp", "tp", "chunks", "overlap_chunks", "sub_batches", "partial_backward", "zero"),
        "train": ("micro_batches", "micro_batch_size"),
    }
    for section, keys in sizes.items():
        for key in keys:
            value = getattr(getattr(config, section), key)
            if value > _MOST:
                raise ConfigError(f"{section}.{key} is {value}: must be {_MOST} or less")
    for tp in config.parallel.stage_tp:
        if not 1 <= tp <= _MOST:
            raise ConfigError(f"parallel.stage_tp has {tp}: must be from 1 to {_MOST}")
    for layers in config.parallel.stage_layers:
        if not 1 <= layers <= _MOST:
            raise ConfigError(f"parallel.stage_layers has {layers}: must be from 1 to {_MOST}")
    below_one = {"model": ("dropout",), "optim": ("beta1", "beta2", "momentum", "factor_decay")}
    for section, keys in below_one.items():
        for key in keys:
            value = getattr(getattr(config, section), key)
            if not 0 <= value < 1:
                raise ConfigError(f"{section}.{key} is {value}: must be from 0 to below 1")
    above = {"model": ("norm_eps", "rope_theta"), "parallel": ("timeout_s",)}
    for section, keys in above.items():
        for key in keys:
            value = getattr(getattr(config, section), key)
            if not value > 0:
                raise ConfigError(f"{section}.{key} is {value}: must be above 0")


def _check_model(model: ModelConfig) -> None:
    """Whether the widths of the model divide as they must."""
    unit = 2 * model.heads if model.positions == "rope" else model.heads
    if model.d_model % unit:
        nearest = max(1, round(model.d_model / unit)) * unit
        raise ConfigError(
            f"model.d_model is {model.d_model} with {model.heads} heads: "
            f"must be a multiple of {'2 x heads' if model.positions == 'rope' else 'heads'}, as {nearest}"
        )
    groups = model.kv_heads or model.heads
    if model.heads % groups:
        below = next(n for n in range(groups, 0, -1) if model.heads % n == 0)
        raise ConfigError(f"model.kv_heads is {groups} with {model.heads} heads: must divide them, as {below}")
    inner = model.inner
    if inner % groups and model.block == "parallel":  # one matrix has both, group by group
        nearest = max(1, round(inner / groups)) * groups
        raise ConfigError(f"model.ffn_width is {inner} with {groups} key-value heads: must be a multiple, as {nearest}")


def _check_choices(config: Config) -> None:
    """Settings that are words with a form of their own, and pairs of which one forbids the other."""
    kind, _, size = config.data.tokenizer.partition(":")
    if config.data.tokenizer != "bytes" and not (kind == "bpe" and size.isdigit() and 257 <= int(size) <= 65536):
        raise ConfigError(
            f"data.tokenizer is {config.data.tokenizer!r}: write bytes, or bpe:N with N from 257 to 65536"
        )
    where = config.parallel.rendezvous
    if where != "env" and not where.startswith(("redis://", "rediss://")):
        raise ConfigError(f"parallel.rendezvous is {where!r}: write env, or redis://HOST:PORT/DB")
    if not 0 <= config.parallel.zero <= 3:
        raise ConfigError(f"parallel.zero is {config.parallel.zero}: write 0, 1, 2 or 3")
    if config.parallel.zero_unit == "stage" and config.parallel.zero != 3:
        raise ConfigError(
            f"parallel.zero_unit is stage with parallel.zero = {config.parallel.zero}: only 3 gathers parameters in "
            "units; set parallel.zero = 3, or leave parallel.zero_unit = layer"
        )
    if config.parallel.zero_live < 1:
        raise ConfigError(f"parallel.zero_live is {config.parallel.zero_live}: write 1 or more stages")
    if config.parallel.zero_live > 1 and config.parallel.zero_unit != "stage":
        raise ConfigError(
            f"parallel.zero_live is {config.parallel.zero_live} with parallel.zero_unit = layer: only whole stages are "
            "counted; set parallel.zero = 3 and parallel.zero_unit = stage, or leave parallel.zero_live = 1"
        )
    if config.parallel.zero_reduce == "last" and (config.parallel.zero != 3 or config.parallel.zero_unit != "layer"):
        raise ConfigError(
            "parallel.zero_reduce is last: only parallel.zero = 3 with zero_unit = layer has the choice; "
            "leave it at each, or set parallel.zero = 1 to reduce once"
        )
    if config.train.recompute != STAGE_AWARE and not set(recompute_entries(config.train.recompute)) <= set(RECOMPUTE):
        raise ConfigError(
            f"train.recompute is {config.train.recompute!r}: write {', '.join(RECOMPUTE)}, or one for each stage; "
            f"or {STAGE_AWARE}"
        )
    if not config.optim.damping > 0:
        raise ConfigError(f"optim.damping is {config.optim.damping}: must be above 0, as 0.003")
    low, high = config.optim.trust_low, config.optim.trust_high
    if high and low > high:
        raise ConfigError(f"optim.trust_low is {low}, above optim.trust_high = {high}: must not be")
    if 0 < config.optim.decay_steps <= config.optim.warmup_steps and config.optim.decay != "constant":
        raise ConfigError(
            f"optim.decay_steps is {config.optim.decay_steps}: must be above "
            f"optim.warmup_steps = {config.optim.warmup_steps}, or 0"
        )


def _check_state(optim: OptimConfig) -> None:
    """Whether the optimizer can have its states where they are to be."""
    if optim.bucket < SMALLEST_BUCKET:
        raise ConfigError(f"optim.bucket is {optim.bucket}: must be {SMALLEST_BUCKET} or more elements")
    if optim.state == "host" and not OPTIMIZERS[optim.name].elementwise:
        able = ", ".join(one.name for one in OPTIMIZERS.values() if one.elementwise)
        raise ConfigError(
            f"optim.state = host updates some elements at a time, and optim.name = {optim.name} needs whole tensors; "
            f"set optim.state = device, or optim.name to one of {able}"
        )


def _check_pieces(config: Config) -> None:
    """Whether the update can begin before all gradients have come."""
    optim, name = config.optim, f"optim.reduce_pieces = {config.optim.reduce_pieces}"
    if optim.reduce_pieces < 0:
        raise ConfigError(f"optim.reduce_pieces is {optim.reduce_pieces}: must be 0 or more buckets")
    if not optim.reduce_pieces:
        return
    if optim.state != "host":
        raise ConfigError(f"{name} counts buckets, and optim.state = device has none; set optim.state = host, or {OFF}")
    if config.parallel.zero:
        raise ConfigError(
            f"{name} is for gradients that every replica has whole, and parallel.zero = {config.parallel.zero} shares "
            f"them out; set parallel.zero = 0, or {OFF}"
        )
    if optim.clip_norm:
        raise ConfigError(
            f"{name} updates before all gradients are there, and optim.clip_norm = {optim.clip_norm} needs the norm of "
            f"all; set optim.clip_norm = 0, or {OFF}"
        )
    if config.train.on_nonfinite == "skip":
        raise ConfigError(
            f"{name} updates before all gradients are there, and train.on_nonfinite = skip may undo nothing; "
            f"set train.on_nonfinite = stop, or {OFF}"
        )


def _check_activations(config: Config) -> None:
    """Whether what layers save can go to host memory."""
    train, name = config.train, "train.activations = host"
    if train.activation_bytes < 0:
        raise ConfigError(f"train.activation_bytes is {train.activation_bytes}: must be 0 or more")
    if train.activations == "device":
        return
    if not train.activation_bytes:
        raise ConfigError(f"{name} needs to know how much stays: set train.activation_bytes to a number of bytes")
    if SCHEDULES[config.parallel.schedule].is_message_driven:
        raise ConfigError(
            f"{name} goes by what is computed next, and {config.parallel.schedule} decides that in the run; "
            "set parallel.schedule = 1f1b, or train.activations = device"
        )
    if config.parallel.zero == 3:
        raise ConfigError(
            f"{name} must know parameters from activations, and parallel.zero = 3 gathers them in between; "
            "set parallel.zero to 2 or less, or train.activations = device"
        )


def _check_memory(memory: MemoryConfig, optim: OptimConfig, activations: str) -> None:
    """Whether model data can be where it is to be, whatever the layout is."""
    default = MemoryConfig()
    if memory.policy == "whole":
        for key in ("device_bytes", "chunk_bytes", "evict"):
            if getattr(memory, key) != getattr(default, key):
                raise ConfigError(
                    f"memory.{key} is {getattr(memory, key)} with memory.policy = whole: set memory.policy = chunks, "
                    f"or leave it at {getattr(default, key)}"
                )
        return
    if not OPTIMIZERS[optim.name].elementwise:
        able = ", ".join(one.name for one in OPTIMIZERS.values() if one.elementwise)
        raise ConfigError(
            f"memory.policy = chunks updates one chunk at a time, and optim.name = {optim.name} needs tensors of "
            f"several; set memory.policy = whole, or optim.name to one of {able}"
        )
    if optim.state == "host":
        raise ConfigError(
            "optim.state = host with memory.policy = chunks: the policy says which states are in host memory; "
            "set one of them"
        )
    if activations == "host":
        raise ConfigError(
            "train.activations = host with memory.policy = chunks: both fill the device to a limit of their own; "
            "set one of them, or train.recompute = full"
        )


def recompute_entries(setting: str) -> list[str]:
    """Entries of train.recompute: one for all stages, or one for each."""
    return [entry.strip() for entry in setting.split(",")]


def recompute_of(setting: str, stage: int) -> str:
    """What a stage recomputes in backward: the only entry of train.recompute, or its own."""
    entries = recompute_entries(setting)
    return entries[0] if len(entries) == 1 else entries[stage]


def _unfit_recompute(config: Config) -> str | None:
    """Why the schedule cannot go with what the settings recompute, None if it can."""
    setting, schedule = config.train.recompute, SCHEDULES[config.parallel.schedule]
    wants = STAGE_AWARE if setting == STAGE_AWARE else "cell" if "cell" in recompute_entries(setting) else ""
    if wants and schedule.recomputes:
        return f"train.recompute = {setting}, and {schedule.name} recomputes whole stages already (choose 1f1b)"
    if config.optim.name == "dp-kfac" and schedule.halves_backward and "full" in recompute_entries(setting):
        return (
            f"train.recompute = {setting} repeats a forward, of which dp-kfac keeps the inputs, and {schedule.name} "
            "halves its backward (set selective or none, or choose 1f1b)"
        )
    if wants == "cell" and schedule.is_message_driven:
        return f"train.recompute = {setting} puts actions into a fixed order, and {schedule.name} has none (set full)"
    return None


def _unfit_sub_batches(config: Config, tp: int) -> str | None:
    """Why tp ranks cannot compute a micro-batch in parts, None if they can."""
    parallel, schedule, name = config.parallel, SCHEDULES[config.parallel.schedule], "parallel.sub_batches"
    parts, kinds = parallel.sub_batches * schedule.parts, set(recompute_entries(config.train.recompute))
    if tp == 1:
        return f"{name} hides the sums of tp ranks, and there is one (set {name} = 1, or tp to 2 or more)"
    if config.train.micro_batch_size % parts:
        return f"train.micro_batch_size = {config.train.micro_batch_size} cannot be cut in {parts} for {name}"
    if parallel.sequence or parallel.overlap_chunks > 1:
        return f"{name} hides sums of whole activations (set parallel.sequence = false and parallel.overlap_chunks = 1)"
    if parallel.zero == 3:
        return f"{name} computes layers side by side, and parallel.zero = 3 gathers one at a time (set 2 or less)"
    if schedule.halves_backward:
        return f"{name} needs whole backwards, which {schedule.name} halves: choose 1f1b"
    if kinds & {"full", STAGE_AWARE}:
        return f"{name} computes layers side by side, and train.recompute repeats them one by one (set cell)"
    if config.model.dropout:
        return f"{name} cuts micro-batches, and masks are for whole ones (set model.dropout = 0)"
    return None


def obstacle(config: Config, tp: int, stages: int) -> str | None:
    """Why the model cannot be laid over `tp` ranks a layer and so many stages, None if it can."""
    model, length = config.model, config.data.seq_len
    entries = len(recompute_entries(config.train.recompute))
    if model.heads % tp:
        return f"model.heads = {model.heads} is not divisible by tp"
    if model.kv_heads and model.kv_heads % tp:
        return f"model.kv_heads = {model.kv_heads} is not divisible by tp"
    if model.inner % tp:
        return f"model.ffn_width = {model.inner} is not divisible by tp"
    if config.parallel.sequence and length % tp:
        return f"data.seq_len = {length} is not divisible by tp (or set parallel.sequence = false)"
    pieces = config.parallel.overlap_chunks * (tp if config.parallel.sequence else 1)
    if tp > 1 and length % pieces:
        return f"data.seq_len = {length} is not divisible by parallel.overlap_chunks, with parallel.sequence times tp"
    if tp > 1 and config.parallel.overlap_chunks > 1 and SCHEDULES[config.parallel.schedule].halves_backward:
        return f"parallel.overlap_chunks needs whole backwards, which {config.parallel.schedule} halves: choose 1f1b"
    if entries not in (1, stages):
        return f"train.recompute has {entries} entries for {stages} stages: one for all, or one for each"
    return _unfit_recompute(config) or (_unfit_sub_batches(config, tp) if config.parallel.sub_batches > 1 else None)
