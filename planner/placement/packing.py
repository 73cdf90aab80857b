"""Orders that fill switches, pods and types of NIC block by block: where a search begins. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from holdfast.planner.placement.sites import Site, Sites
from holdfast.planner.placement.traffic import Shape

Path = tuple[str, ...]
"""Type of NIC, pod, switch; or the outer ones of these."""


def packed(shape: Shape, per_node: int, sites: Sites, nodes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """For as many positions as the job has nodes: once with the nodes of a stage together, once with those of a
    replica in all stages. `nodes`: numbers of those that there are, the ones to take first in front."""
    count = shape.world // per_node
    stage = shape.dp * shape.tp
    wide = max(1, -(-stage // per_node)) if stage % per_node == 0 or stage > per_node else 1
    rows = [range(at, min(at + wide, count)) for at in range(0, count, wide)]
    yield _filled(rows, sites, nodes, count)
    if wide > 1 and stage % per_node == 0 and shape.pp > 1:
        own = max(1, shape.tp // per_node)  # nodes of one tp group stay together
        columns = [[row[i] for row in rows for i in range(at, min(at + own, wide))] for at in range(0, wide, own)]
        yield _filled(columns, sites, nodes, count)


def _filled(blocks: Sequence[Sequence[int]], sites: Sites, nodes: Sequence[int], count: int) -> tuple[int, ...]:
    order, left = [-1] * count, {one: _path(sites.all[one]) for one in nodes}
    near: Path | None = None
    for size, alike in groupby(blocks, key=len):
        positions = [position for block in alike for position in block]
        for position, node in zip(positions, _best_fit(len(positions) // size, size, left, near), strict=True):
            order[position] = node
            near = left.pop(node)
    return tuple(order)


def _best_fit(many: int, size: int, paths: Mapping[int, Path], near: Path | None) -> list[int]:
    """Nodes for so many blocks of one size, each from the smallest domain that has them, near the block before.

    A domain that is begun is filled with blocks as far as they fit, since none is nearer: so each is looked at once
    by level, however many blocks there are.
    """
    left, found = dict(paths), list[int]()
    for depth in (3, 2, 1, 0):
        domains: dict[Path, list[int]] = {}
        for one, path in left.items():
            domains.setdefault(path[:depth], []).append(one)
        fitting = {path: members for path, members in domains.items() if len(members) >= size}
        for path in _nearest(fitting, depth, near):
            some = min(len(fitting[path]) // size * size, many * size - len(found))
            for one in _together(fitting[path], paths, depth)[:some]:
                found.append(one)
                near = left.pop(one)
    if len(found) < many * size:
        raise ValueError(f"{many} blocks of {size} nodes of {len(paths)}")
    return found


def _path(site: Site) -> Path:
    return site.nic, site.pod, site.switch


def _nearest(domains: Mapping[Path, Sequence[int]], depth: int, near: Path | None) -> list[Path]:
    """As one goes through them from `near`: within each outer domain first, and of several the smallest first."""
    least: dict[Path, tuple[int, int]] = {}
    for i, (path, members) in enumerate(domains.items()):
        for outer in (path[:level] for level in range(1, depth + 1)):
            least[outer] = min(least.get(outer, (len(members), i)), (len(members), i))

    def key(path: Path) -> list[tuple[bool, int, int]]:
        outer = [path[:level] for level in range(1, depth + 1)]
        return [(near is None or one != near[: len(one)], *least[one]) for one in outer]

    return sorted(domains, key=key)


def _together(members: Sequence[int], paths: Mapping[int, Path], depth: int) -> list[int]:
    """Those of the fullest inner domains first, each domain's in one piece."""
    if depth == 3:
        return list(members)
    inner: dict[str, list[int]] = {}
    for one in members:
        inner.setdefault(paths[one][depth], []).append(one)
    parts = sorted(inner.values(), key=len, reverse=True)
    return [one for part in parts for one in _together(part, paths, depth + 1)]
