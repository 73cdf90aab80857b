"""Is a job of a size that can be, and of which parallel sizes is it? Asked before anything is made of it. Pure."""

from collections.abc import Mapping

from holdfast.base.bounds import MAX_GENERATION, MAX_RANKS
from holdfast.base.errors import UsageError
from holdfast.controller.state.model import Job, JobSpec
from holdfast.facts.faults import parse_fault
from holdfast.planner.placement.traffic import AXES, Shape


def check_life(job: Job) -> None:
    """UsageError in one line for what no job of a journal can be."""
    check_size(job.spec)
    for fault in job.spec.faults:
        parse_fault(fault)
    if not 0 <= job.generation <= MAX_GENERATION:
        raise UsageError(f"a job's generation is between 0 and {MAX_GENERATION}, not {job.generation}")
    if len(job.nodes) > job.spec.nnodes:
        raise UsageError(f"a job for {job.spec.nnodes} nodes cannot have {len(job.nodes)}")


def check_size(job: JobSpec) -> None:
    """UsageError in one line for a job that is too large, or too small."""
    if job.nnodes < 1 or job.nproc < 1:
        raise UsageError(f"a job needs at least 1 node and 1 worker, not {job.nnodes} and {job.nproc}")
    if job.world > MAX_RANKS:
        raise UsageError(
            f"a job has {MAX_RANKS:,} workers at most, not {str(job.nnodes)[:20]} x {str(job.nproc)[:20]}: "
            "give fewer nnodes or nproc_per_node"
        )
    if job.node_counts and not 1 <= min(job.node_counts) <= max(job.node_counts) < job.nnodes:
        counts = f"{list(job.node_counts)[:20]}"
        raise UsageError(f"node_counts must be from 1 to nnodes, {job.nnodes}, not {counts}")
    if not 0 <= job.share_bytes <= 1 << 53:
        raise UsageError(f"share_bytes must be from 1 to 2**53, or 0 for nodes of its own, not {job.share_bytes}")
    check_shape(job)
    if job.layouts and sorted(one.nodes for one in job.layouts) != sorted(job.node_counts):
        sizes = f"{[one.nodes for one in job.layouts][:20]}"
        raise UsageError(f"layouts must be one for each of node_counts, {list(job.node_counts)[:20]}, not for {sizes}")
    for one in job.layouts:
        if not 0 < one.throughput <= 1:
            raise UsageError(f"the throughput on {one.nodes} nodes must be a share above 0 and at most 1, not "
                             f"{one.throughput:g}")  # fmt: skip
        _check_axes(one.parallel)


def shape_of(spec: JobSpec, nodes: int) -> Shape | None:
    """The job's shape on so many nodes: with fewer it has fewer replicas. None if it declares none, or none fits."""
    planned = spec.layout_on(nodes)
    sizes, known = (spec.parallel, spec.step_bytes) if planned is None else (planned.parallel, {})
    if not sizes:
        return None
    pp, tp = sizes.get("pp", 1), sizes.get("tp", 1)
    dp, rest = divmod(nodes * spec.nproc, pp * tp)
    if rest or not dp:
        return None
    return Shape(pp, dp, tp, *(known.get(axis, 0.0) for axis in AXES))


def check_shape(spec: JobSpec) -> None:
    """UsageError in one line for sizes that the job's workers cannot have."""
    _check_axes(spec.parallel)
    _check_axes(dict.fromkeys(spec.step_bytes, 1))
    for axis, value in spec.step_bytes.items():
        if not 0 <= value < 1e30:
            raise UsageError(f"bytes of a step in {axis} are {value:g}: must be 0 or more")
    if not spec.parallel:
        return
    shape = shape_of(spec, spec.nnodes)
    if shape is None or spec.parallel.get("dp", shape.dp) != shape.dp:
        pp, tp = spec.parallel.get("pp", 1), spec.parallel.get("tp", 1)
        own = f"dp {spec.parallel['dp']} x " if "dp" in spec.parallel else ""
        raise UsageError(
            f"{spec.world} workers are not pp {pp} x {own}tp {tp}: the product of pp, dp and tp is the number of "
            "workers; leave dp out, and it is what remains"
        )


def _check_axes(sizes: Mapping[str, int]) -> None:
    for axis, size in sizes.items():
        if axis not in AXES:
            raise UsageError(f"parallel sizes are of {', '.join(AXES)}, not of {axis[:40]!r}")
        if size < 1:
            raise UsageError(f"parallel size {axis} is {size}: must be 1 or more")
