"""The parallel sizes that a job declares, as the shape by which its nodes are ordered. Pure."""

from holdfast.base.errors import UsageError
from holdfast.controller.state.model import JobSpec
from holdfast.planner.placement.traffic import AXES, Shape


def shape_of(spec: JobSpec, nodes: int) -> Shape | None:
    """The job's shape on so many nodes: with fewer it has fewer replicas. None if it declares none, or none fits."""
    if not spec.parallel:
        return None
    pp, tp = spec.parallel.get("pp", 1), spec.parallel.get("tp", 1)
    dp, rest = divmod(nodes * spec.nproc, pp * tp)
    if rest or not dp:
        return None
    return Shape(pp, dp, tp, *(spec.step_bytes.get(axis, 0.0) for axis in AXES))


def check_shape(spec: JobSpec) -> None:
    """UsageError in one line for sizes that the job's workers cannot have."""
    for name in (*spec.parallel, *spec.step_bytes):
        if name not in AXES:
            raise UsageError(f"parallel sizes are of {', '.join(AXES)}, not of {name[:40]!r}")
    for axis, size in spec.parallel.items():
        if size < 1:
            raise UsageError(f"parallel size {axis} is {size}: must be 1 or more")
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
