"""Layouts to choose from, in families that compute alike: the same axes, micro-batch and recompute. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from holdfast.base.errors import UsageError
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.plan.transformer import Transformer
from holdfast.planner.cluster.cluster import Cluster
from holdfast.planner.cost.layout import MEMORY, RECOMPUTE, Layout, LayoutError
from holdfast.planner.unlike.blocks import blocks

MOST_SIZE = 8
"""Samples of a micro-batch at most, unless the space says otherwise."""


@dataclass(frozen=True, slots=True)
class Space:
    """What may vary. Empty: all that is possible."""

    pp: tuple[int, ...] = ()
    dp: tuple[int, ...] = ()
    tp: tuple[int, ...] = ()
    schedules: tuple[str, ...] = (
        "interleaved",
        "1f1b",
        "zbv",
        "bfs",
        "interleaved-zero-bubble",
        "dualpipev",
        "chimera",
    )
    """Those whose forwards and backwards are those of a plain step, the likeliest first."""
    chunks: tuple[int, ...] = ()
    zero: tuple[int, ...] = (1, 0, 2, 3)
    recompute: tuple[str, ...] = ("none", "selective", "full")
    micro_batch_sizes: tuple[int, ...] = ()
    memory: tuple[str, ...] = ("device",)
    """What may be in host memory between its uses: of MEMORY."""
    activation_blocks: tuple[int, ...] = (8, 4, 2)
    """Micro-batches of a stage that stay on the device where others' activations are in host memory."""
    device_bytes: int = 0
    """Of a device that model data in chunks may take, with all else; 0: what the search takes as its limit."""
    sub_batches: tuple[int, ...] = (1, 2)
    """Parts of a micro-batch, where tp ranks sum one while they compute another."""
    reduce_pieces: tuple[int, ...] = (0, 1)
    """With optimizer states on the host: buckets of gradients that are summed beside the update of others."""
    bucket: int = 4 << 20
    """Elements that an optimizer on the host updates at a time."""
    sequence: bool = True
    """Whether tp ranks share the sequence too, where they divide it."""
    shard_vocabulary: bool = True
    """Whether they share the vocabulary, where they divide it."""
    idle_nodes: int = 0
    """So many nodes may be left without ranks."""

    def __post_init__(self) -> None:
        for name, known in (("schedules", tuple(SCHEDULES)), ("recompute", RECOMPUTE), ("zero", range(4)),
                            ("memory", MEMORY)):  # fmt: skip
            for value in getattr(self, name):
                if value not in known:
                    raise UsageError(f"{name} {str(value)[:40]!r} is not known: of {', '.join(map(str, known))}")
        for name in ("pp", "dp", "tp", "chunks", "micro_batch_sizes", "sub_batches"):
            for value in getattr(self, name):
                if value < 1:
                    raise UsageError(f"{name} {value}: 1 or more is needed")


@dataclass(frozen=True, slots=True)
class Family:
    """Layouts that differ in schedule, chunks, ZeRO and in what of states and activations is in host memory."""

    base: Layout

    def policies(self, space: Space) -> tuple[str, ...]:
        """Of `space.memory`: those of the members."""
        return tuple(one for one in space.memory if (one == "chunks") == bool(self.base.device_bytes))

    def members(self, model: Transformer, space: Space) -> Iterator[Layout]:
        """Those that the model can have, the likeliest first."""
        for schedule in space.schedules if not self.base.device_bytes else ("1f1b",):
            for chunks in _chunks(self.base.pp, schedule, model.layers, space):
                for zero in space.zero:
                    plain = replace(self.base, schedule=schedule, chunks=chunks, zero=zero)
                    for policy in self.policies(space):
                        for found in _with_memory(plain, policy, space):
                            if _is_possible(found, model) and not _is_another(found):
                                yield found


def _with_memory(layout: Layout, policy: str, space: Space) -> Iterator[Layout]:
    """The layout with this in host memory."""
    for kept in space.activation_blocks if "activations" in policy else (0,):
        for pieces in space.reduce_pieces if "states" in policy else (0,):
            yield replace(
                layout, bucket=space.bucket, is_on_host="states" in policy, activation_blocks=kept, reduce_pieces=pieces
            )


def families(model: Transformer, cluster: Cluster, samples: int, space: Space) -> Iterator[Family]:
    """All with which a step has so many samples on all devices of the cluster, but for `idle_nodes`.

    Where NICs are of unlike types, groups of dp and tp stay within one (`planner/unlike`): nodes are to be in the order
    of their types.
    """
    sizes = sorted({node.devices for node in cluster.nodes})
    for world in _worlds(cluster, space.idle_nodes):
        alike = [one.devices for one in blocks(cluster, world)]
        for tp in space.tp or _divisors(world):
            groups = model.kv_heads or model.heads
            # Within a node: between nodes a layer's collectives would take longer than its products.
            if tp > sizes[0] or any(size % tp for size in sizes) or world % tp or groups % tp or model.heads % tp:
                continue
            for pp in space.pp or _divisors(world // tp):
                if world % (tp * pp) or pp > model.layers:
                    continue
                dp = world // (tp * pp)
                if (space.dp and dp not in space.dp) or any(devices % (dp * tp) for devices in alike):
                    continue
                yield from _batches(model, Layout(pp, dp, tp), samples, space)


def _batches(model: Transformer, base: Layout, samples: int, space: Space) -> Iterator[Family]:
    sizes = space.micro_batch_sizes or [1 << n for n in range(MOST_SIZE.bit_length())]
    split = space.shard_vocabulary and base.tp > 1 and model.vocab % base.tp == 0
    for size in sizes:
        if samples % size or samples // size % base.dp:
            continue
        for parts in space.sub_batches:
            if parts > 1 and (base.tp == 1 or size % parts):
                continue
            sequence = space.sequence and base.tp > 1 and model.length % base.tp == 0 and parts == 1
            batch = replace(base, micro_batches=samples // size, micro_batch_size=size, sub_batches=parts,
                            sequence=sequence, shard_vocabulary=split)  # fmt: skip
            for recompute in space.recompute:
                if parts == 1 or recompute != "full":
                    yield Family(replace(batch, recompute=recompute))
    if "chunks" in space.memory and space.device_bytes and base.pp == base.tp == 1 and samples % base.dp == 0:
        size = samples // base.dp  # all of a replica's samples at once
        if not space.micro_batch_sizes or size in space.micro_batch_sizes:
            chunks = replace(base, micro_batches=base.dp, micro_batch_size=size, device_bytes=space.device_bytes)
            yield from (Family(replace(chunks, recompute=recompute)) for recompute in space.recompute)


def _worlds(cluster: Cluster, idle: int) -> list[int]:
    """Devices of all nodes, of all but one, and so on."""
    return [int(cluster.first[-1 - left]) for left in range(min(idle, len(cluster.nodes) - 1) + 1)]


def _chunks(pp: int, schedule: str, layers: int, space: Space) -> list[int]:
    known = SCHEDULES[schedule]
    if not known.takes_chunks:
        return [0]
    if space.chunks:
        return list(space.chunks)
    most = layers // pp
    found = sorted({most, *(1 << n for n in range(1, most.bit_length()) if 1 << n <= most)}, reverse=True)
    return [chunks for chunks in found if chunks > 1]


def _is_possible(layout: Layout, model: Transformer) -> bool:
    try:
        layout.check(model)
    except LayoutError:
        return False
    return True


def _is_another(layout: Layout) -> bool:
    """Whether another member is the same: what is for replicas without any, a pipeline of one rank but with 1f1b."""
    if layout.replicas == 1 and (layout.zero or layout.reduce_pieces):
        return True
    return layout.pp == 1 and layout.schedule != "1f1b"


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
