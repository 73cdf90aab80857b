"""Which part of which tensor lies where. Pure: tuples of numbers in and out.

A layout says which shards each worker holds; workers that hold the same elements are replicas, however their shards
are cut. Elements are counted in row-major order everywhere. Shards and where they meet: `holdfast.plan.tiles`.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.checkpoint.errors import CheckpointMismatch
from holdfast.plan.tiles import TensorShard

# Names of element types as safetensors writes them, and their bytes.
ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GlobalTensor:
    """A whole tensor, as the job sees it."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """As safetensors spells it: F32, BF16, I64..."""

    @property
    def shard(self) -> TensorShard:
        return TensorShard((0,) * len(self.shape), self.shape)

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.item_bytes


@dataclass(frozen=True, slots=True)
class Layout:
    """What every worker holds, or is to hold."""

    tensors: Mapping[str, GlobalTensor]
    held: Sequence[Mapping[str, Sequence[TensorShard]]]
    """For each worker, by its number: the shards of each tensor it has a part of. Empty shards may be left out."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """State of the whole job that is no tensor, as JSON: steps done, position in the data, the scheduler's."""

    def holders(self, name: str) -> dict[TensorShard, list[int]]:
        """Distinct shards of a tensor that are not empty, and the workers that hold them."""
        found: dict[TensorShard, list[int]] = {}
        for worker, shards in enumerate(self.held):
            for shard in shards.get(name, ()):
                workers = found.setdefault(shard, [])
                if shard.count and (not workers or workers[-1] != worker):
                    workers.append(worker)
        return {shard: workers for shard, workers in found.items() if shard.count}


def layout_to_json(held: Iterable[tuple[GlobalTensor, TensorShard]]) -> str:
    """What one worker holds, as JSON."""
    table: dict[str, Any] = {}
    for tensor, shard in held:
        entry = table.setdefault(tensor.name, [tensor.dtype, tensor.shape, []])
        entry[2].append([shard.offset, shard.size])
    return json.dumps(table)


def layout_from_json(workers: Iterable[str]) -> Layout:
    """The layout of workers that each described themselves. Raises CheckpointMismatch if they contradict each other."""
    tensors: dict[str, GlobalTensor] = {}
    held: list[dict[str, list[TensorShard]]] = []
    for worker, text in enumerate(workers):
        held.append({})
        for name, (dtype, shape, shards) in json.loads(text).items():
            tensor = GlobalTensor(name, tuple(shape), dtype)
            if tensors.setdefault(name, tensor) != tensor:
                raise CheckpointMismatch(f"worker {worker} has {name} as {dtype}{shape}, others otherwise")
            held[-1][name] = [TensorShard(tuple(offset), tuple(size)) for offset, size in shards]
    return Layout(tensors, held)


def runs(shard: TensorShard, outer: TensorShard) -> Iterator[tuple[int, int]]:
    """`shard`, which lies inside `outer`, as runs of elements of `outer`: (first, count), in order, none empty."""
    if not shard.count:
        return
    inner = shard.within(outer)
    # Trailing dimensions that are taken whole make one run with the first that is not.
    last = len(inner.size)
    while last > 0 and inner.size[last - 1] == outer.size[last - 1]:
        last -= 1
    last = max(last - 1, 0)
    strides = [math.prod(outer.size[d + 1 :]) for d in range(len(outer.size))]
    length = math.prod(inner.size[last:])
    start = sum(o * s for o, s in zip(inner.offset, strides, strict=True))
    for at in itertools.product(*(range(n) for n in inner.size[:last])):
        yield start + sum(i * s for i, s in zip(at, strides, strict=False)), length


def shards_of_run(outer: TensorShard, first: int, stop: int) -> list[TensorShard]:
    """The elements [first, stop) of `outer` as shards of the global tensor, in order: at most 2 x dimensions - 1."""
    if first >= stop:
        return []
    if not outer.size:
        return [outer]
    row = math.prod(outer.size[1:])
    top, bottom = -(-first // row), stop // row
    if top > bottom:  # all inside one row
        return _in_row(outer, bottom, first - bottom * row, stop - bottom * row)
    found = _in_row(outer, top - 1, first - (top - 1) * row, row) if first < top * row else []
    if top < bottom:
        found.append(TensorShard((outer.offset[0] + top, *outer.offset[1:]), (bottom - top, *outer.size[1:])))
    return found + (_in_row(outer, bottom, 0, stop - bottom * row) if stop > bottom * row else [])


def _in_row(outer: TensorShard, row: int, first: int, stop: int) -> list[TensorShard]:
    inner = shards_of_run(TensorShard(outer.offset[1:], outer.size[1:]), first, stop)
    return [TensorShard((outer.offset[0] + row, *shard.offset), (1, *shard.size)) for shard in inner]


def pieces(shard: TensorShard, count: int) -> list[TensorShard]:
    """`shard` cut into at most `count` even parts along the first dimension that is long enough, or the longest."""
    if count <= 1 or not shard.size:
        return [shard]
    dim = next(
        (d for d, n in enumerate(shard.size) if n >= count), max(range(len(shard.size)), key=shard.size.__getitem__)
    )
    count = min(count, shard.size[dim])
    edges = [i * shard.size[dim] // count for i in range(count + 1)]
    return [
        TensorShard(
            (*shard.offset[:dim], shard.offset[dim] + low, *shard.offset[dim + 1 :]),
            (*shard.size[:dim], high - low, *shard.size[dim + 1 :]),
        )
        for low, high in itertools.pairwise(edges)
    ]
