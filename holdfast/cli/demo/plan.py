"""The plan of a demo, checked before anything starts. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.config.client import DemoConfig
from holdfast.base.errors import UsageError
from holdfast.cli.common.bounds import check_local
from holdfast.facts.faults import CONTROLLER_KINDS, FaultSpec, parse_faults

Json = dict[str, Any]

CHECKPOINT_EVERY = 5
MICRO_BATCHES = 8
LAYERS, HEADS = 4, 8


@dataclass(frozen=True, slots=True)
class DemoPlan:
    nodes: int
    nproc: int
    spares: int
    node_counts: tuple[int, ...]
    """Smaller numbers of nodes that also fit the layout."""
    steps: int
    sizes: tuple[int, int, int]
    """(pp, dp, tp)"""
    faults: tuple[FaultSpec, ...]
    """Faults that the controller arms in workers and agents."""
    controller_kills: tuple[FaultSpec, ...]
    """Faults of the controller itself, injected by the demo."""


def make_plan(config: DemoConfig, faults: Sequence[str]) -> DemoPlan:
    """UsageError for faults without a target in the cluster, and for layouts that do not fit it."""
    check_local(config.nodes, config.nproc, config.spares)
    world = config.nodes * config.nproc
    names = [f"node{i}" for i in range(config.nodes)]
    parsed = parse_faults(faults, world, config.nodes, config.steps, names)
    late = next((fault for fault in parsed if fault.step is None), None)
    if late is not None:
        raise UsageError(f"fault {str(late)!r}: say at which step, e.g. {late.kind}@20")
    sizes = layout(world, config.pp, config.dp, config.tp)
    ours = tuple(fault for fault in parsed if fault.kind in CONTROLLER_KINDS)
    return DemoPlan(
        nodes=config.nodes,
        nproc=config.nproc,
        spares=config.spares,
        node_counts=smaller(config.nodes, config.min_nodes, config.nproc, sizes),
        steps=config.steps,
        sizes=sizes,
        faults=tuple(fault for fault in parsed if fault not in ours),
        controller_kills=tuple(sorted(ours, key=lambda fault: fault.step or 0)),
    )


def smaller(nodes: int, least: int, nproc: int, sizes: tuple[int, int, int]) -> tuple[int, ...]:
    """Numbers of nodes below `nodes` for which fewer replicas give the same batch. UsageError when there is none."""
    if not least or least == nodes:
        return ()
    pp, dp, tp = sizes
    fits = tuple(
        count
        for count in range(least, nodes)
        if count * nproc % (pp * tp) == 0 and micro_batches(dp) % (count * nproc // (pp * tp)) == 0
    )
    if not fits:
        raise UsageError(f"min_nodes {least}: with pp {pp} and tp {tp} no fewer than {nodes} nodes give whole replicas")
    return fits


def micro_batches(dp: int) -> int:
    """Each replica takes its share of the micro-batches, so their number must divide."""
    return -(-MICRO_BATCHES // dp) * dp


def mortal_nodes(plan: DemoPlan) -> list[str]:
    """Nodes that stay down when they are killed, since there is a spare to show: by the names of a local cluster."""
    if not plan.spares and not plan.node_counts:
        return []
    return [fault.target for fault in plan.faults if fault.kind == "node-kill"]


def layout(world: int, pp: int, dp: int, tp: int) -> tuple[int, int, int]:
    """(pp, dp, tp) with the sizes that were given; the rest is halved in turn to pipeline, data, tensor."""
    given = max(pp, 1) * max(dp, 1) * max(tp, 1)
    if world % given:
        raise UsageError(f"pp {pp or 1} x dp {dp or 1} x tp {tp or 1} does not divide {world} workers")
    rest = world // given
    if not pp:
        pp = 2 if rest % 2 == 0 else 1
        rest //= pp
    # The replicas come before the tensor slices: a state that has a twin can be taken from a peer.
    if not tp:
        tp = 2 if rest % (2 if dp else 4) == 0 else 1
        rest //= tp
    if not dp:
        dp, rest = rest, 1
    if rest != 1:
        raise UsageError(f"pp {pp} x dp {dp} x tp {tp} are {pp * dp * tp} workers, but there are {world}")
    if pp > LAYERS or HEADS % tp:
        raise UsageError(f"the demo's model has {LAYERS} layers and {HEADS} heads: pp up to {LAYERS}, tp 1, 2, 4 or 8")
    return pp, dp, tp


def job_spec(plan: DemoPlan, store: Path, cwd: Path) -> Json:
    """The submitted job: the embedded trainer, with a checkpoint every few steps."""
    pp, dp, tp = plan.sizes
    flags = {
        "--steps": plan.steps,
        "--pp": pp,
        "--dp": 0 if plan.node_counts else dp,  # 0: as many replicas as there are workers for
        "--tp": tp,
        "--store": store.absolute().as_uri(),
        "--checkpoint-every": CHECKPOINT_EVERY,
        "--set": f"train.micro_batches={micro_batches(dp)}",
    }
    return {
        "name": "demo",
        "program": {
            "target": "holdfast.trainer",
            "args": [str(part) for pair in flags.items() for part in pair],
            "module": True,
            "cwd": str(cwd),
            "env": {"OMP_NUM_THREADS": "1"},
            "hooks": True,  # the trainer reports by itself; hooks add the pending collectives
            "warm": True,
        },
        "nnodes": plan.nodes,
        "node_counts": list(plan.node_counts),
        "nproc_per_node": plan.nproc,
        "max_steps": plan.steps,
        "faults": [str(fault) for fault in plan.faults],
    }
