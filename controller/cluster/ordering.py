"""Which of a job's nodes gets which of its ranks: by the groups of its parallel sizes, where it declares them. Pure.

The search is the planner's (`planner.placement`); here nodes become sites, and a job's declaration a shape.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from holdfast.controller.state.job_size import shape_of
from holdfast.controller.state.model import Job, JobSpec, Node
from holdfast.planner.cluster.identity import nic_types, pod_of
from holdfast.planner.placement.order import arranged, avoided
from holdfast.planner.placement.report import Comparison, compared
from holdfast.planner.placement.sites import Site, Sites, SlowLinks
from holdfast.planner.placement.traffic import AXES, Shape


def ordered(
    spec: JobSpec,
    placed: Sequence[str],
    is_kept: Sequence[bool],
    spares: Sequence[str],
    known: Mapping[str, Node],
    slow: SlowLinks,
) -> list[str]:
    """The nodes in the order in which the job's traffic goes least far: `placed` itself where no other is better.

    `is_kept`: of each position, whether its node held these ranks before and keeps them. Only where kept nodes meet
    over a link that a diagnosis found slow may they change places too, and then as few as avoid it. `spares`:
    others that may be taken as well.
    """
    shape = shape_of(spec, len(placed))
    if shape is None or len(placed) < 2:
        return list(placed)
    names = [*placed, *spares]
    sites = sites_of(tuple(known[name] for name in names), slow)
    start, more = tuple(range(len(placed))), tuple(range(len(placed), len(names)))
    free = tuple(i for i, kept in enumerate(is_kept) if not kept)
    found = arranged(shape, spec.nproc, sites, start, free, more)
    if slow and any(is_kept):
        found = avoided(shape, spec.nproc, sites, found, tuple(is_kept))
    return [names[i] for i in found]


def sites_of(nodes: Sequence[Node], slow: SlowLinks) -> Sites:
    types = nic_types(node.identity.nics for node in nodes)
    sites = (
        Site(one.name, one.identity.switch, pod_of(one.identity), nic) for one, nic in zip(nodes, types, strict=True)
    )
    return Sites(tuple(sites), slow)


def placement_doc(
    job: Job, known: Mapping[str, Node], by_name: Sequence[str], slow: SlowLinks
) -> dict[str, Any] | None:
    """How far a step's traffic goes with the job's order of nodes, and with `by_name`, the same in the order of names.
    None without declared sizes, or before it has nodes that are all known."""
    shape = shape_of(job.spec, len(job.nodes))
    if shape is None or not job.nodes or not all(name in known for name in job.nodes):
        return None
    sites = sites_of(tuple(known[name] for name in job.nodes), slow)
    number = {name: i for i, name in enumerate(job.nodes)}
    found = _compared(shape, job.spec.nproc, sites, tuple(number[name] for name in by_name))
    return {
        "parallel": {axis: shape.size(axis) for axis in AXES},
        "in_bytes": found.in_bytes,
        "levels": [{"level": one.level, "total": one.total, "naive": one.naive, **one.by_axis} for one in found.levels],
        "slow": found.slow,
        "naive_slow": found.naive_slow,
    }


@lru_cache(maxsize=64)
def _compared(shape: Shape, nproc: int, sites: Sites, naive: tuple[int, ...]) -> Comparison:
    """Kept: every look at the page asks for it."""
    return compared(shape, nproc, sites, range(len(naive)), naive)
