"""How a tensor lies on a mesh, and what it costs to lay it otherwise. Pure.

A `Spec` has for each dimension of the tensor the mesh axes that cut it; an axis in none of them has copies. No axis
cuts two dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from holdfast.planner.partition.axes import Collective, MeshAxis

Spec = tuple[tuple[int, ...], ...]
Shape = tuple[int, ...]


def place_of(spec: Spec, axis: int) -> int | None:
    """The dimension that a mesh axis cuts, None if it has copies."""
    return next((dim for dim, axes in enumerate(spec) if axis in axes), None)


def spec_of(rank: int, places: Sequence[int | None]) -> Spec:
    """Of a tensor with `rank` dimensions; `places` has the dimension that each mesh axis cuts."""
    return tuple(tuple(axis for axis, dim in enumerate(places) if dim == of) for of in range(rank))


def pieces(spec: Spec, mesh: Sequence[MeshAxis], but: int | None = None) -> int:
    """Into how many pieces a tensor is cut, by all axes or by all `but` one."""
    return math.prod(mesh[axis].size for axes in spec for axis in axes if axis != but)


def fits(shape: Shape, spec: Spec, mesh: Sequence[MeshAxis]) -> bool:
    """Whether every dimension divides evenly."""
    return all(size % math.prod(mesh[a].size for a in axes) == 0 for size, axes in zip(shape, spec, strict=True))


def reshard(num_bytes: float, source: Spec, target: Spec, mesh: Sequence[MeshAxis]) -> float:
    """Cost to get from one layout to another of a tensor of `num_bytes` in all.

    First copies are cut, which costs nothing, then cuts move to other dimensions by all-to-all, then cuts are gathered:
    so each collective is of as little as can be.
    """
    now = [place_of(source, axis) for axis in range(len(mesh))]
    goal = [place_of(target, axis) for axis in range(len(mesh))]
    for axis in range(len(mesh)):
        if now[axis] is None:
            now[axis] = goal[axis]
    total = 0.0
    for collective in (Collective.ALL_TO_ALL, Collective.ALL_GATHER):
        for axis, one in enumerate(mesh):
            if now[axis] == goal[axis] or (collective is Collective.ALL_TO_ALL) == (goal[axis] is None):
                continue
            others = math.prod(other.size for i, other in enumerate(mesh) if i != axis and now[i] is not None)
            total += one.cost(collective, num_bytes / others)
            now[axis] = goal[axis]
    return total
