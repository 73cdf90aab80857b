"""Which other settings hold less, in order of what a step of each costs. Pure but for the counts of `expected`.

Costs are seconds of a step on a stated machine: computation by the schedule's simulated makespan, what is computed
again, what replicas send for ZeRO, and what goes between device and host, none of it hidden. They order alternatives,
and promise nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from holdfast.plan.plan import Plan
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.plan.simulate import durations, simulate
from holdfast.trainer.memory.expected import Expected, computed, expect
from holdfast.trainer.memory.states import WORD, words
from holdfast.trainer.report.meters import model_flops
from holdfast.trainer.settings.checks import RECOMPUTE, SMALLEST_BUCKET, STAGE_AWARE, check
from holdfast.trainer.settings.config import Config, MemoryConfig, ParallelConfig
from holdfast.trainer.settings.errors import ConfigError
from holdfast.trainer.settings.layout import TrainerLayout, plan
from holdfast.trainer.settings.optimizers import OPTIMIZERS

FLOPS = 400e12
"""Of a GPU in a second, as large matrices reach on an H100 in bfloat16."""
BANDWIDTH = 50e9
"""Bytes that a GPU sends to other nodes in a second: 400 Gbit/s each."""
HOST_BANDWIDTH = 50e9
"""Bytes that a GPU and its host copy in a second, in each direction at once: PCIe 5.0 x16, less its protocol."""
BUCKETS = 8
"""Of a rank's parameters, at the least, where a bucket is proposed: its room is then an eighth of the states."""
SMALLER = 1.05
"""What half as many samples in a micro-batch cost: smaller matrices reach less of the machine."""
MOST_ACTIONS = 15_000
"""Computations of a plan that is simulated, to answer within seconds."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Settings, and what a step with them costs."""

    config: Config
    layout: TrainerLayout
    seconds: float
    is_chosen: bool
    """Whether they are those that were asked for."""

    @property
    def name(self) -> tuple[str, int, str, int]:
        """Recompute, ZeRO stage, schedule, samples in a micro-batch."""
        config = self.config
        where = " in chunks" if config.memory.policy == "chunks" else ""
        schedule = config.parallel.schedule + where
        return config.train.recompute, config.parallel.zero, schedule, config.train.micro_batch_size


def alternatives(
    config: Config, world: int, vocab: int, schedules: Collection[str] = tuple(SCHEDULES), device: str = "cuda"
) -> list[Choice]:
    """All that could be set instead, the cheapest first, with the chosen settings among them.

    Recompute, ZeRO, schedule (of those given), micro-batch size and where optimizer states are vary; the layout, the
    model and the samples of a step stay. On a "cpu" states stay where they are: its memory is the host's. Of equal
    cost, what changes least comes first.
    """
    found = []
    for one in _variants(config, schedules, _places(config, device)):
        try:
            check(one)
            layout = plan(one, world, vocab)
        except ConfigError:
            continue
        if layout.replicas == 1 and one.parallel.zero != config.parallel.zero:
            continue  # there is nothing to share
        computations = _computed(one, layout)
        if one.optim.state != config.optim.state == "device":
            one = replace(one, optim=replace(one.optim, bucket=_bucket(one, layout, vocab)))
        if computations is not None:
            smaller = SMALLER ** math.log2(config.train.micro_batch_size / one.train.micro_batch_size)
            # Sums differ in their last digits where costs are the same.
            seconds = float(f"{smaller * cost(one, layout, vocab, computations):.6g}")
            found.append(Choice(one, layout, seconds, one == config))
    return sorted(found, key=lambda choice: (choice.seconds, _changes(choice.config, config)))


def next_that_fits(
    config: Config,
    world: int,
    vocab: int,
    device: str,
    limit: int,
    schedules: Collection[str] = tuple(SCHEDULES),
) -> tuple[Choice, Expected] | None:
    """The cheapest whose fullest rank needs no more than `limit` bytes, the last of them in chunks; None if none
    does."""
    for choice in alternatives(config, world, vocab, schedules, device):
        expected = expected_of(choice, vocab, device)
        if expected is not None and expected.needs <= limit:
            return choice, expected
    return in_chunks(config, world, vocab, device, limit)


def expected_of(choice: Choice, vocab: int, device: str) -> Expected | None:
    """What its ranks hold; None where activations on the device are less than a computation of it needs."""
    try:
        return expect(choice.config, choice.layout, vocab, device)
    except ConfigError:
        return None


def in_chunks(config: Config, world: int, vocab: int, device: str, limit: int) -> tuple[Choice, Expected] | None:
    """The same samples a step with model data in chunks that leave a device of `limit` bytes, one micro-batch a
    replica; None where the layout has no chunks, or they do not fit."""
    train = config.train
    dp = config.parallel.dp or max(1, world // (config.parallel.pp * config.parallel.tp))
    local = max(1, train.micro_batches // dp)
    for recompute in dict.fromkeys([train.recompute, "full"]):
        samples = replace(train, micro_batches=dp, micro_batch_size=train.micro_batch_size * local, recompute=recompute)
        zero = 3 if dp > 1 else config.parallel.zero
        parallel = _parallel(config, config.parallel.schedule, zero)
        memory = MemoryConfig("chunks", limit, config.memory.chunk_bytes, config.memory.evict)
        one = replace(config, train=samples, parallel=parallel, memory=memory)
        try:
            check(one)
            layout = plan(one, world, vocab)
            expected = expect(one, layout, vocab, device)
        except ConfigError:
            continue
        computations = _computed(one, layout)
        if expected.needs <= limit and computations is not None:
            # Each parameter comes twice, and its gradient goes once.
            copied = 3 * WORD[train.dtype] * expected.parameters / dp / HOST_BANDWIDTH
            return Choice(one, layout, cost(one, layout, vocab, computations) + copied, one == config), expected
    return None


def settings_of(choice: Choice, config: Config) -> list[str]:
    """What to set, as `--set` has it, to come from `config` to this choice."""
    keys = (
        ("train", "recompute"), ("parallel", "zero"), ("parallel", "zero_unit"), ("parallel", "zero_live"),
        ("parallel", "zero_reduce"), ("parallel", "schedule"), ("parallel", "chunks"), ("parallel", "in_flight"),
        ("train", "micro_batch_size"), ("train", "micro_batches"), ("optim", "state"), ("optim", "bucket"),
        ("memory", "policy"), ("memory", "device_bytes"),
    )  # fmt: skip
    found = []
    for section, key in keys:
        now, then = (getattr(getattr(one, section), key) for one in (config, choice.config))
        if now != then:
            found.append(f"{section}.{key}={then}")
    return found


def cost(config: Config, layout: TrainerLayout, vocab: int, computations: Plan) -> float:
    """Seconds of a step on the stated machine."""
    train, model = config.train, config.model
    samples = train.micro_batches * train.micro_batch_size
    flops = model_flops(model, vocab, config.data.seq_len, samples)
    of_attention = (model_flops(model, vocab, config.data.seq_len, samples, "selective").hardware - flops.model) * 3
    again = {"none": 0.0, "cell": 0.0, "full": 1.0, "selective": of_attention / flops.model}
    again[STAGE_AWARE] = 1 - 1 / layout.pp  # on the first rank of 1F1B, which the others wait for
    entries = [entry.strip() for entry in train.recompute.split(",")]
    backward = 2 + sum(again[entry] for entry in entries) / len(entries)
    # A forward of all of a rank's layers, for one micro-batch.
    forward = flops.model / 3 / FLOPS / layout.world / layout.local_micro_batches
    makespan = _makespan(computations, round(backward, 3), layout.stages // layout.pp)
    return makespan * forward + _replicas(config, layout, flops.model, samples) + _copies(config, layout, vocab)


@functools.lru_cache(maxsize=1024)
def _makespan(computations: Plan, backward: float, chunks: int) -> float:
    """Where a forward takes 1."""
    return simulate(computations, durations(1.0, backward, chunks)).makespan


def _replicas(config: Config, layout: TrainerLayout, flops: float, samples: int) -> float:
    """Seconds for what replicas send each other: see the table in trainer/optim/replicas.py."""
    if layout.replicas == 1:
        return 0.0
    # 6 operations a parameter and token: near enough to order alternatives.
    parameters = flops / 6 / (samples * config.data.seq_len) / (layout.pp * layout.tp)
    count, parallel = layout.local_micro_batches, config.parallel
    times = {0: 2, 1: 2, 2: 1 + count, 3: 3 * count}[parallel.zero]
    if parallel.zero == 3 and parallel.zero_unit == "stage":
        times = 3
    elif parallel.zero == 3 and parallel.zero_reduce == "last":
        times = 2 * count + 1
    return times * parameters * WORD[config.train.dtype] * (layout.replicas - 1) / layout.replicas / BANDWIDTH


def _copies(config: Config, layout: TrainerLayout, vocab: int) -> float:
    """Seconds for states that come from the host and go back, both ways at once."""
    if config.optim.state == "device":
        return 0.0
    return words(config).optimizer * _updated(config, layout, vocab) / HOST_BANDWIDTH


def _updated(config: Config, layout: TrainerLayout, vocab: int) -> float:
    """Parameters that a rank updates, from operations: 6 each and token, but for attention's own.

    Near enough to order alternatives: what is in no matrix is left out.
    """
    flops = model_flops(config.model, vocab, config.data.seq_len, 1, "selective")
    of_matrices = flops.model - 3 * (flops.hardware - flops.model)
    shards = layout.replicas if config.parallel.zero else 1
    return of_matrices / 6 / config.data.seq_len / (layout.pp * layout.tp * shards)


def _bucket(config: Config, layout: TrainerLayout, vocab: int) -> int:
    """The one that is set, or a smaller one, so that the room for it is little beside the states."""
    proposed = int(_updated(config, layout, vocab)) // BUCKETS // SMALLEST_BUCKET * SMALLEST_BUCKET
    return min(config.optim.bucket, max(SMALLEST_BUCKET, proposed))


def _places(config: Config, device: str) -> list[str]:
    """Where optimizer states can be."""
    if device == "cpu" or not OPTIMIZERS[config.optim.name].elementwise:
        return [config.optim.state]
    return list(dict.fromkeys([config.optim.state, "device", "host"]))


def _variants(config: Config, schedules: Collection[str], places: Collection[str]) -> Iterator[Config]:
    chosen = config.train.micro_batch_size
    sizes = [chosen] + [chosen // by for by in (2, 4) if chosen % by == 0]
    zeros = dict.fromkeys([config.parallel.zero, *range(4)])
    recomputes = dict.fromkeys([config.train.recompute, *RECOMPUTE, STAGE_AWARE])
    for size in sizes:
        train = replace(config.train, micro_batch_size=size, micro_batches=config.train.micro_batches * chosen // size)
        for schedule in dict.fromkeys([config.parallel.schedule, *schedules]):
            for zero in zeros:
                parallel = _parallel(config, schedule, zero)
                for recompute in recomputes:
                    if recompute == STAGE_AWARE and schedule != config.parallel.schedule:
                        continue  # takes a second to work out
                    found = replace(config, parallel=parallel, train=replace(train, recompute=recompute))
                    for place in places:
                        yield replace(found, optim=replace(found.optim, state=place))  # type: ignore[arg-type]  # it is


def _parallel(config: Config, schedule: str, zero: int) -> ParallelConfig:
    found = replace(config.parallel, schedule=schedule, zero=zero)
    if schedule != config.parallel.schedule:
        found = replace(found, chunks=0, in_flight=0)
    if zero != 3:
        found = replace(found, zero_unit="layer", zero_live=1, zero_reduce="each")
    return found


def _computed(config: Config, layout: TrainerLayout) -> Plan | None:
    """None where the schedule cannot be built for these numbers, or is too long to simulate."""
    if 3 * layout.stages * layout.local_micro_batches > MOST_ACTIONS:
        return None
    recompute = config.train.recompute if "cell" in config.train.recompute else "none"
    return _computed_once(layout, config.parallel.schedule, config.parallel.in_flight, recompute)


@functools.lru_cache(maxsize=256)
def _computed_once(layout: TrainerLayout, schedule: str, in_flight: int, recompute: str) -> Plan | None:
    plain = Config()
    parallel = replace(plain.parallel, schedule=schedule, in_flight=in_flight)
    try:
        return computed(replace(plain, parallel=parallel, train=replace(plain.train, recompute=recompute)), layout)
    except ValueError:
        return None


def _changes(config: Config, chosen: Config) -> tuple[int, ...]:
    """How many settings differ; of as many, the least recompute and ZeRO."""
    order = ["none", "selective", STAGE_AWARE, "cell", "full"]
    recompute = config.train.recompute
    return (
        (recompute != chosen.train.recompute)
        + (config.parallel.zero != chosen.parallel.zero)
        + (config.parallel.schedule != chosen.parallel.schedule)
        + (config.train.micro_batch_size != chosen.train.micro_batch_size)
        + (config.optim.state != chosen.optim.state),
        order.index(recompute) if recompute in order else 0,
        config.parallel.zero,
    )
