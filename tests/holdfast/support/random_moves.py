"""Random layouts of random tensors over random meshes, and transfers executed on plain arrays."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.plan.moves.shard_spec import ShardSpec
from holdfast.plan.moves.transfer_plan import TransferPlan
from holdfast.plan.plan import Mesh
from holdfast.plan.tiles import TensorShard

Arrays = dict[int, tuple[TensorShard, "np.ndarray[Any, Any]"]]
"""By rank: what it holds of the one tensor."""


@dataclass(frozen=True)
class Case:
    shape: tuple[int, ...]
    source: ShardSpec
    target: ShardSpec
    hosts: tuple[int, ...]


def random_case(seed: int) -> Case:
    """Sizes that axes do not divide, meshes of 1 to 3 axes; ranks apart, shared, or partly so; 1 to 3 ranks a host."""
    generator = random.Random(seed)
    shape = tuple(generator.randint(1, 9) for _ in range(generator.randint(0, 3)))
    meshes = [_mesh(generator) for _ in range(2)]
    shift = generator.choice((meshes[0].world, meshes[0].world, 0, meshes[0].world // 2))
    order = [list(range(meshes[0].world)), list(range(shift, shift + meshes[1].world))]
    for ranks in order:
        generator.shuffle(ranks)
    specs = [
        ShardSpec(mesh, _dims(generator, mesh, len(shape)), tuple(ranks))
        for mesh, ranks in zip(meshes, order, strict=True)
    ]
    per_host = generator.randint(1, 3)
    world = max(max(order[0]), max(order[1])) + 1
    return Case(shape, specs[0], specs[1], tuple(rank // per_host for rank in range(world)))


def _mesh(generator: random.Random) -> Mesh:
    axes = generator.randint(1, 3)
    return Mesh(tuple((name, generator.randint(1, 3 if axes > 1 else 6)) for name in "abc"[:axes]))


def _dims(generator: random.Random, mesh: Mesh, count: int) -> tuple[tuple[str, ...], ...]:
    dims: list[list[str]] = [[] for _ in range(count)]
    for name, _ in generator.sample(mesh.axes, len(mesh.axes)):
        at = generator.randint(-1, count - 1)
        if at >= 0:
            dims[at].append(name)
    return tuple(tuple(names) for names in dims)


def execute(plan: TransferPlan, source: Arrays, target: Arrays) -> dict[int, np.ndarray[Any, Any]]:
    """Do all messages one after the other, on arrays. How often each element was written, by rank of the target."""
    written = {rank: np.zeros(array.shape, int) for rank, (_, array) in target.items()}
    for move in plan.moves:
        unit = move.unit
        at = {rank: unit.shard.within(source[rank][0]).slices for rank in unit.senders}
        flat = {rank: source[rank][1][at[rank]].reshape(-1).copy() for rank in unit.senders}
        have = {rank: np.ones(unit.shard.count, bool) for rank in unit.senders}
        count = {rank: np.ones(unit.shard.count, int) for rank in unit.senders}
        messages = plan.messages(move)
        for index, message in enumerate(messages):
            where = slice(message.start, message.stop)
            assert message.start < message.stop, "an empty message"
            assert have[message.source][where].all(), "sends what it does not have"
            if message.source in unit.senders:
                assert message.after == -1, "waits for what it has"
            else:
                before = messages[message.after]
                assert 0 <= message.after < index, "waits for something before"
                assert (before.target, before.start, before.stop) == (message.source, message.start, message.stop)
            flat.setdefault(message.target, np.zeros(unit.shard.count, flat[unit.senders[0]].dtype))
            have.setdefault(message.target, np.zeros(unit.shard.count, bool))[where] = True
            count.setdefault(message.target, np.zeros(unit.shard.count, int))[where] += 1
            flat[message.target][where] = flat[message.source][where]
        for rank in unit.receivers:
            inside = unit.shard.within(target[rank][0]).slices
            target[rank][1][inside] = flat[rank].reshape(unit.shard.size)
            written[rank][inside] += count[rank].reshape(unit.shard.size)
        assert flat.keys() == {*unit.senders, *unit.receivers}, "only those that want it receive it"
    return written
