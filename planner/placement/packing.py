"""Orders that fill switches, pods and types of NIC block by block: where a search begins. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.planner.placement.sites import Site, Sites
from holdfast.planner.placement.traffic import Shape


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
    order, left, last = [-1] * count, list(nodes), None
    for block in blocks:
        chosen = _best_fit(len(block), sites, left, last)
        taken = set(chosen)
        left = [one for one in left if one not in taken]
        for position, node in zip(block, chosen, strict=True):
            order[position] = node
        last = chosen[-1]
    return tuple(order)


def _best_fit(size: int, sites: Sites, left: Sequence[int], last: int | None) -> list[int]:
    """So many of the nodes, from the smallest domain that has them, near the last one; of equals the fullest."""
    near = sites.all[last] if last is not None else None
    for depth in (3, 2, 1, 0):
        domains: dict[tuple[str, ...], list[int]] = {}
        for one in left:
            domains.setdefault(_path(sites.all[one])[:depth], []).append(one)
        fitting = [(path, members) for path, members in domains.items() if len(members) >= size]
        if fitting:
            path, members = min(fitting, key=lambda item: (-_shared(item[0], near), len(item[1])))
            return _together(members, sites, path)[:size]
    raise ValueError(f"{size} nodes of {len(left)}")


def _path(site: Site) -> tuple[str, ...]:
    return site.nic, site.pod, site.switch


def _shared(path: tuple[str, ...], near: Site | None) -> int:
    """How many domains, from the outside, it has in common with the last node."""
    if near is None:
        return 0
    alike = [one == other for one, other in zip(path, _path(near), strict=False)]
    return next((i for i, is_alike in enumerate(alike) if not is_alike), len(alike))


def _together(members: Sequence[int], sites: Sites, path: tuple[str, ...]) -> list[int]:
    """Those of the fullest inner domains first, each domain's in one piece."""
    if len(path) == 3:
        return list(members)
    inner: dict[str, list[int]] = {}
    for one in members:
        inner.setdefault(_path(sites.all[one])[len(path)], []).append(one)
    parts = sorted(inner.items(), key=lambda item: -len(item[1]))
    return [one for name, part in parts for one in _together(part, sites, (*path, name))]
