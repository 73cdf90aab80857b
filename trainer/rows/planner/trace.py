"""Jobs as on a shared cluster, at random from a seed: for the co-scheduler's rows and its benchmark.

Sizes and durations are those that Gavel draws in the manner of Microsoft's Philly trace (Narayanan et al., OSDI 2020,
7.1 and its code; Jeon et al., ATC 2019, for the trace): 70 % of jobs have one GPU, 10 % two, 15 % four; 80 % take
10^U(1.5, 3) minutes, the others 10^U(3, 4). Of its 5 % with eight GPUs a fifth has sixteen here. Philly has no times
of iterations and no memory by kind: the rest are assumptions, each under its name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from holdfast.planner.sharing.jobs import SharedJob

MEMORY = 80e9
"""Of a slot."""
SIZES = ((1, 0.70), (2, 0.10), (4, 0.15), (8, 0.04), (16, 0.01))
"""GPUs of a job, and the share of jobs."""
_RATIO = (1.5, 2.5)
"""A backward over its forward: 2 FLOPs for 1, more or less by kernels."""


@dataclass(frozen=True, slots=True)
class World:
    slots: int = 32
    jobs: int = 100
    load: float = 1.5
    """Slot seconds that all jobs take as gangs, over those until the last may be submitted."""
    sizes: Sequence[tuple[int, float]] = SIZES
    iteration_s: float = 600.0
    """Of a full iteration, in the median. Iterations of a second, and as many more, would be shared alike: only ratios
    count, and the fewer iterations there are, the more is lost at their ends.
    """
    sync: float = 0.2
    """Seconds of a sync over those of a full iteration, at most, of a job with more than one GPU."""
    states: float = 10e9
    """Bytes of states on a slot, in the median."""
    activations: float = 20e9
    """Bytes of activations of a full backward, in the median."""


def trace(seed: int, world: World = World()) -> tuple[list[SharedJob], float]:
    """The jobs, and the instant until which they are submitted, at any instant alike (a Poisson process of so many)."""
    rng = Random(seed)
    drawn = [_job(rng, world, number) for number in range(world.jobs)]
    horizon = sum(job.alone_s * job.roles for job in drawn) / (world.load * world.slots)
    return [replace(job, submitted_s=rng.uniform(0.0, horizon)) for job in drawn], horizon


def _job(rng: Random, world: World, number: int) -> SharedJob:
    counts, weights = zip(*world.sizes, strict=True)
    roles = rng.choices(counts, weights)[0]
    minutes = 10 ** (rng.uniform(1.5, 3) if rng.random() < 0.8 else rng.uniform(3, 4))
    full = world.iteration_s * rng.lognormvariate(0.0, 0.5)
    sync = full * rng.uniform(0.0, world.sync) if roles > 1 else 0.0
    forward = full / (1 + rng.uniform(*_RATIO))
    states = min(world.states * rng.lognormvariate(0.0, 0.8), 0.75 * MEMORY)
    activations = min(world.activations * rng.lognormvariate(0.0, 0.5), MEMORY - states)
    iterations = max(1, round(minutes * 60 / (full + sync)))
    return SharedJob(
        f"j{number}", roles, forward, full - forward, iterations, sync, math.floor(states), math.floor(activations)
    )
