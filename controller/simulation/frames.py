"""What simulated agents say in their heartbeats."""

from collections.abc import Sequence

from holdfast.controller.simulation.hosts import WALL, Host
from holdfast.controller.simulation.state import State
from holdfast.diagnostics.catalog.results import CheckResult, Fault
from holdfast.wire import types as t


def frame(
    world: State,
    workers: Sequence[t.WorkerSample] = (),
    steps: Sequence[t.StepRecord] = (),
    gauges: dict[str, float] | None = None,
) -> t.Frame:
    """One heartbeat, as of now; with nothing to tell the same for all nodes."""
    wall, mono = int((WALL + world.now) * 1e9), int(world.now * 1e9)
    return t.Frame(1, wall, mono, host=gauges or {}, workers=tuple(workers), steps=tuple(steps), cadence=world.cadence)


def samples(world: State, host: Host) -> list[t.WorkerSample]:
    """How workers look while one of them stands still: it shows no life, the others wait for it."""
    job = world.job
    stands = world.hung if world.paused is None else world.paused
    if job is None or stands is None or host.generation != job.generation:
        return []
    victim, since = stands[1:3]
    idle, works = world.now - since, world.paused is not None and world.works
    return [
        t.WorkerSample(
            rank=rank, generation=host.generation, pid=1000 + rank, step=world.done, phase=t.Phase.TRAIN,
            operation="" if rank == victim else "dp:all_reduce", operation_age=idle, progress_age=idle,
            tick_age=idle if rank == victim else 0.05, median_step=world.shape.step,
            activity=t.Activity(idle, 0.0, "R", cpu=1.0) if works and rank == victim
            else t.Activity(watched=idle, quiet=idle, state="S", waits_for="a lock"),
        )
        for rank in job.ranks_on(host.name)
        if rank not in host.ended
    ]  # fmt: skip


def check_results(host: Host, checks: Sequence[str]) -> str:
    """What checks say: of a node that is broken the first one does; what a check measures is not simulated."""
    fault = (Fault(host.broken, component="host"),) if host.broken else ()
    results = [CheckResult(name, faults=() if i else fault, unable="not simulated") for i, name in enumerate(checks)]
    return "\n".join(result.to_json() for result in results)
