"""A run of the controller's own decision code in a cluster that does not exist, and what came of it."""

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from holdfast.controller.simulation.baselines import BASELINES, goodput
from holdfast.controller.simulation.breaks import Breaks
from holdfast.controller.simulation.faults import STOPS, SimulatedFault, draw
from holdfast.controller.simulation.formula import expected
from holdfast.controller.simulation.hosts import ClusterShape
from holdfast.controller.simulation.world import World
from holdfast.controller.state.goodput import LOSSES, Account
from holdfast.controller.state.model import Options


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """Seconds, but for what is counted."""

    seed: int
    simulated: float
    cpu: float
    events: int
    state: str
    goodput: float
    expected: float
    """Goodput by formula, from the rate of the faults that were drawn and the mean time to training again."""
    lost: dict[str, float]
    faults: int
    """Those that stop training."""
    stops: int
    """How often training stopped: one may hide another."""
    detected: list[float] = field(repr=False)
    recovered: list[float] = field(repr=False)
    """From the fault to training again."""
    evictions: int
    wrong_evictions: int
    pauses: dict[str, int]
    """Honest ones, and such as are longer than their limit, by kind."""
    wrong_ends: int
    """Verdicts that a worker hangs, and restarts of the job, in a pause that would have ended by itself."""
    actions: dict[str, int]
    incidents: int
    crashes: int
    """Of the controller."""
    steps: int


def simulate(
    shape: ClusterShape,
    seed: int,
    days: float,
    rate: float = 1.0,
    hurry: float = 1.0,
    options: Options | None = None,
    progress: Callable[[float], None] | None = None,
    links: float = 0.0,
) -> SimulationOutcome:
    """One run, the same for the same arguments on any machine. BrokenInvariant when one does not hold. `progress` is
    given the share of the time that has gone by. `links`: rate of faults of the network, in units of HPN's."""
    begun = time.process_time()
    seconds = days * 86_400
    faults = draw(seed, shape.nodes * shape.gpus, shape.nodes, seconds, rate, hurry, links)
    world = World(shape, seed, options)
    breaks = Breaks(world)
    for fault in faults:
        world.later(fault.at, breaks.strike, fault)
    if progress is not None:
        world.progress = lambda now: progress((now - world.began) / seconds)
    world.run(world.began + seconds)
    return _outcome(world, seed, faults, time.process_time() - begun)


def baselines(shape: ClusterShape, seed: int, days: float, rate: float = 1.0) -> dict[str, float]:
    """Goodput of the same faults under other ways of running a job."""
    seconds = days * 86_400
    faults = draw(seed, shape.nodes * shape.gpus, shape.nodes, seconds, rate)
    return {name: goodput(shape, faults, seconds, pause) for name, pause in BASELINES.items()}


def _outcome(world: World, seed: int, faults: Sequence[SimulatedFault], cpu: float) -> SimulationOutcome:
    assert world.job_brain is not None  # a world submits its job when it is made
    c, wall = world.job_brain.c, world.epoch + world.now
    totals = c.time.totals(wall)
    total = c.time.wall(wall) or 1.0
    incidents = list(world.brain.c.book.incidents.values())
    stopping = sum(fault.how in STOPS for fault in faults)
    recovered = [again - stopped for stopped, _, again, _ in world.stops]
    pause = statistics.mean(recovered) if recovered else 0.0
    simulated = world.now - world.began
    return SimulationOutcome(
        seed=seed,
        simulated=simulated,
        cpu=cpu,
        events=world.events,
        state=c.job.state.value,
        goodput=(totals[Account.PRODUCTIVE] + totals[Account.TRAINING]) / total,
        expected=expected(stopping / simulated, pause, world.shape.step),  # a snapshot after every step
        lost={account.value: totals[account] for account in LOSSES},
        faults=stopping,
        stops=len(world.stops),
        detected=[max(0.0, seen - stopped) for stopped, seen, _, _ in world.stops],
        recovered=recovered,
        evictions=len(world.evicted),
        wrong_evictions=sum(not faulty for _, faulty in world.evicted),
        pauses=dict(world.pauses),
        wrong_ends=len(world.wronged),
        actions=dict(Counter(incident.action for incident in incidents)),
        incidents=len(incidents),
        crashes=world.boots - 1,
        steps=world.done + 1,
    )


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, 90th and 99th percentile and the most; empty for nothing."""
    if not values:
        return {}
    ordered = sorted(values)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return {"median": statistics.median(ordered), "p90": at(0.9), "p99": at(0.99), "max": ordered[-1]}
