"""How one tensor is laid out over a mesh. Pure.

Parts are cut as `torch.chunk` cuts, so that a layout is the one that DTensor and FSDP2 have: all parts are as long as
the first, the last may be shorter, and ones behind it are empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from holdfast.plan.plan import Mesh
from holdfast.plan.tiles import TensorShard


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """For each dimension of a tensor, the axes that split it, the outermost first. Other axes hold replicas."""

    mesh: Mesh
    dims: tuple[tuple[str, ...], ...]
    ranks: tuple[int, ...] = ()
    """The job's rank at each place of the mesh. Empty: place 0 is rank 0, and so on."""

    def __post_init__(self) -> None:
        used, known = list(chain.from_iterable(self.dims)), {name for name, _ in self.mesh.axes}
        if len(set(used)) < len(used) or not known.issuperset(used):
            raise ValueError(f"dims {self.dims}: every axis once at most, of {', '.join(sorted(known)) or 'none'}")
        if self.ranks and (len(self.ranks) != self.mesh.world or len(set(self.ranks)) < len(self.ranks)):
            raise ValueError(f"ranks {self.ranks}: a mesh of {self.mesh.world} needs as many different ranks")

    def shard(self, place: int, shape: Sequence[int]) -> TensorShard:
        """What the rank at a place of the mesh holds; its size is 0 somewhere if that is nothing."""
        if len(shape) != len(self.dims):
            raise ValueError(f"a tensor of {len(shape)} dimensions, a layout of {len(self.dims)}")
        at = self.mesh.coordinate(place)
        spans = []
        for length, axes in zip(shape, self.dims, strict=True):
            low, high = 0, length
            for axis in axes:
                part = -(-(high - low) // self.mesh.size(axis))
                low, high = min(low + at[axis] * part, high), min(low + (at[axis] + 1) * part, high)
            spans.append((low, high - low))
        return TensorShard(tuple(low for low, _ in spans), tuple(size for _, size in spans))

    def held(self, shape: Sequence[int]) -> dict[TensorShard, list[int]]:
        """The distinct parts that are not empty, and the ranks that hold them."""
        found: dict[TensorShard, list[int]] = {}
        for place in range(self.mesh.world):
            shard = self.shard(place, shape)
            if shard.count:
                found.setdefault(shard, []).append(self.ranks[place] if self.ranks else place)
        return found
