"""What simulated agents say in their heartbeats."""

import math
from collections.abc import Sequence

from holdfast.controller.simulation import pauses
from holdfast.controller.simulation.hosts import SimulatedHost
from holdfast.controller.simulation.state import SimulationState
from holdfast.diagnostics.catalog.results import CheckFault, CheckResult
from holdfast.wire import types as t

_ALL_TALK = 32
"""Nodes of a job up to which all say how their workers look."""


def frame(
    world: SimulationState,
    workers: Sequence[t.WorkerSample] = (),
    steps: Sequence[t.StepRecord] = (),
    gauges: dict[str, float] | None = None,
) -> t.Frame:
    """One heartbeat, as of now; without news the same for all nodes."""
    wall, mono = int((world.epoch + world.now) * 1e9), int(world.now * 1e9)
    return t.Frame(
        1,
        wall,
        mono,
        host=gauges or {},
        workers=tuple(workers),
        steps=tuple(steps),
        heartbeat_interval=world.heartbeat_interval,
    )


def loss(step: int) -> float:
    """A curve as of a language model's training: it falls, ever more slowly, and never the same twice."""
    return 1.7 + 9.0 / math.pow(1.0 + step / 40.0, 0.45) + 0.01 * math.sin(0.7 * step) * math.sin(0.11 * step)


def talkers(world: SimulationState) -> frozenset[str]:
    """Hosts whose agents say in their frames how their workers look: those of a job that stands still.

    Of a large job one that stands and two others: the frames of all would take more time than the run is worth.
    """
    job = world.job
    stands = world.hung if world.life is None else world.paused
    if stands is None:
        return frozenset()
    names = job.nodes if job is not None else ()
    return frozenset((stands[0], *(names if len(names) <= _ALL_TALK else names[:2])))


def samples(world: SimulationState, host: SimulatedHost) -> list[t.WorkerSample]:
    """How workers look while the job stands still."""
    pause = world.paused
    stands = world.hung if pause is None else pause
    if stands is None:
        return []
    if pause is not None:
        return [pauses.sample(pause, one, world.now, world.works) for one in _plain(world, host)]
    return [_hung(one, stands[1], world.now - stands[2]) for one in _plain(world, host)]


def waiting(world: SimulationState, host: SimulatedHost, since: float) -> list[t.WorkerSample]:
    """How workers look while all are in an operation that does not end, and none is missing from it."""
    return [_hung(one, -1, world.now - since) for one in _plain(world, host)]


def _plain(world: SimulationState, host: SimulatedHost) -> list[t.WorkerSample]:
    job = world.job
    if job is None or host.generation != job.generation:
        return []
    return [
        t.WorkerSample(
            rank=rank, generation=host.generation, pid=1000 + rank, step=world.done, phase=t.Phase.TRAIN,
            median_step=world.shape.step,
        )
        for rank in job.ranks_on(host.name)
        if rank not in host.ended
    ]  # fmt: skip


def _hung(sample: t.WorkerSample, victim: int, idle: float) -> t.WorkerSample:
    """The victim shows no activity, the others wait for it."""
    is_victim = sample.rank == victim
    return sample._replace(
        operation="" if is_victim else "dp:all_reduce", operation_age=idle, progress_age=idle,
        tick_age=idle if is_victim else 0.05,
        activity=t.Activity(watched=idle, quiet=idle, state="S", waits_for="a lock"),
        standing=pauses.in_a_lock(sample.pid, idle) if is_victim else None,
    )  # fmt: skip


def check_results(host: SimulatedHost, checks: Sequence[str]) -> str:
    """What checks say: of a node that is broken the first one does; what a check measures is not simulated."""
    fault = (CheckFault(host.broken, component="host"),) if host.broken else ()
    results = [CheckResult(name, faults=() if i else fault, unable="not simulated") for i, name in enumerate(checks)]
    return "\n".join(result.to_json() for result in results)
