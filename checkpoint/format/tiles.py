"""Which part of which tensor lies where. Pure: tuples of numbers in and out.

A shard is a rectangular part of a global tensor. A layout says which shards each worker holds; workers that hold the
same elements are replicas, however their shards are cut. Elements are counted in row-major order everywhere.
"""

from __future__ import annotations

import bisect
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.checkpoint.errors import CheckpointMismatch

# Names of element types as safetensors writes them, and their bytes.
ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True, order=True)
class TensorShard:
    """A rectangular part of a tensor; of a number without dimensions, both tuples are empty."""

    offset: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def count(self) -> int:
        """Elements inside."""
        return math.prod(self.size)

    @property
    def stop(self) -> tuple[int, ...]:
        return tuple(o + s for o, s in zip(self.offset, self.size, strict=True))

    def meet(self, other: TensorShard) -> TensorShard | None:
        """What both hold; None when that is nothing."""
        low = tuple(map(max, self.offset, other.offset))
        size = tuple(min(a, b) - o for a, b, o in zip(self.stop, other.stop, low, strict=True))
        return TensorShard(low, size) if all(s > 0 for s in size) else None

    def holds(self, other: TensorShard) -> bool:
        """Whether all of `other` lies inside."""
        low = all(a <= b for a, b in zip(self.offset, other.offset, strict=True))
        return low and all(a >= b for a, b in zip(self.stop, other.stop, strict=True))

    def within(self, outer: TensorShard) -> TensorShard:
        """The same shard counted from the corner of `outer`."""
        return TensorShard(tuple(a - b for a, b in zip(self.offset, outer.offset, strict=True)), self.size)

    @property
    def slices(self) -> tuple[slice, ...]:
        """To index an array with."""
        return tuple(slice(o, o + s) for o, s in zip(self.offset, self.size, strict=True))


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


@dataclass(frozen=True, slots=True)
class Cell:
    """A part of a tensor for which the same workers have it and the same ones want it."""

    shard: TensorShard
    sources: tuple[int, ...]
    targets: tuple[int, ...]


def cells(sources: Mapping[TensorShard, Sequence[int]], targets: Mapping[TensorShard, Sequence[int]]) -> list[Cell]:
    """Cut along the edges of all shards, so that every element wanted is in one cell. In row-major order.

    Cells have no sources where no worker holds what is wanted.
    """
    shards = [*sources, *targets]
    if not shards:
        return []
    dims = range(len(shards[0].offset))
    edges = [sorted({edge for shard in shards for edge in (shard.offset[d], shard.stop[d])}) for d in dims]
    grid: dict[tuple[int, ...], tuple[set[int], set[int]]] = {}
    for side, held in enumerate((sources, targets)):
        for shard, workers in held.items():
            for at in _places(shard, edges):
                grid.setdefault(at, (set(), set()))[side].update(workers)
    found = []
    for at in sorted(grid):
        have, want = grid[at]
        if want:
            low = tuple(edges[d][i] for d, i in enumerate(at))
            size = tuple(edges[d][i + 1] - edges[d][i] for d, i in enumerate(at))
            found.append(Cell(TensorShard(low, size), tuple(sorted(have)), tuple(sorted(want))))
    for d in reversed(dims):
        found = _joined(found, d)
    return sorted(found, key=lambda cell: cell.shard)


def _places(shard: TensorShard, edges: list[list[int]]) -> Iterator[tuple[int, ...]]:
    """Grid places that `shard` covers."""
    spans = [
        range(bisect.bisect_left(edges[d], low), bisect.bisect_left(edges[d], high))
        for d, (low, high) in enumerate(zip(shard.offset, shard.stop, strict=True))
    ]
    return itertools.product(*spans)


def _joined(found: list[Cell], dim: int) -> list[Cell]:
    """HostPeers along `dim` that differ in nothing else, as one."""

    def across(cell: Cell) -> tuple[Any, ...]:
        rest = [(o, s) for d, (o, s) in enumerate(zip(cell.shard.offset, cell.shard.size, strict=True)) if d != dim]
        return (rest, cell.sources, cell.targets)

    joined: list[Cell] = []
    for cell in sorted(found, key=lambda cell: (across(cell), cell.shard.offset[dim])):
        last = joined[-1] if joined else None
        if last and across(last) == across(cell) and last.shard.stop[dim] == cell.shard.offset[dim]:
            size = list(last.shard.size)
            size[dim] += cell.shard.size[dim]
            joined[-1] = Cell(TensorShard(last.shard.offset, tuple(size)), cell.sources, cell.targets)
        else:
            joined.append(cell)
    return joined


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
