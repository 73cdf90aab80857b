"""Rectangular parts of tensors, and where the parts that some hold and others want meet. Pure: tuples of numbers.

Checkpoints (who writes and who reads what) and transfers between meshes are cut with this.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


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
    """Cells along `dim` that differ in nothing else, as one."""

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
