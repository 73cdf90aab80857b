"""Jobs with partial backwards share GPUs by roles (JigSaw): what is gained over gangs, on traces like Philly's.

python benchmarks/jigsaw.py [--seeds 20] [--worlds usual "no sync" ...] [--jobs 100] [--slots 32] [--json]

Virtual time; the co-scheduler's own decisions (holdfast.planner.sharing). Systems: `gangs` have full backwards and
slots of their own, in the order of submission, as the controller's queue gives nodes. `shared` has two jobs a slot with
full backwards; `shared, partial` has partial ones too (JigSaw). Gangs with partial backwards take as long as full ones.

An iteration counts as one, however little of it is computed. `work`: what is done by the last submission, over what
the slots could do of full iterations, in percent; `gain` is of work over that of gangs of the same seed: mean, least
and most. `makespan` and `completion` (from submission to end, mean of the jobs) are ratios to those of gangs; a value
below 1 is better. `slower`: jobs that complete later than as gangs. `busy`: the share of slot time with a role, until
the last end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from common import finish, parser

from holdfast.planner.sharing.jobs import SharedJob
from holdfast.planner.sharing.simulate import Outcome, simulate
from holdfast.trainer.rows.planner.trace import MEMORY, World, trace

SYSTEMS: dict[str, Callable[[list[SharedJob], int], Outcome]] = {
    "gangs": lambda jobs, slots: simulate(full(jobs), slots, MEMORY, is_shared=False),
    "shared": lambda jobs, slots: simulate(full(jobs), slots, MEMORY),
    "shared, partial": lambda jobs, slots: simulate(jobs, slots, MEMORY),
}
WORLDS = {
    "usual": World(),
    "load 3": World(load=3.0),
    "no sync": World(sync=0.0),
    "half load": World(load=0.5),
    "one GPU each": World(sizes=((1, 1.0),)),
    "four GPUs each": World(sizes=((4, 1.0),)),
    "large states": World(states=45e9),
    "short jobs": World(iteration_s=7200.0),
}
"""`large states`: hardly two jobs fit on a slot. `short jobs`: a twelfth of the iterations."""


@dataclass(frozen=True, slots=True)
class Run:
    """One system on one seed's trace."""

    work: float
    outcome: Outcome


def full(jobs: Sequence[SharedJob]) -> list[SharedJob]:
    return [replace(job, is_partial=False) for job in jobs]


def measure(world: World, seeds: int) -> dict[str, list[Run]]:
    """By system, seed after seed."""
    found: dict[str, list[Run]] = {name: [] for name in SYSTEMS}
    for seed in range(seeds):
        jobs, horizon = trace(seed, world)
        for name, system in SYSTEMS.items():
            outcome = system(jobs, world.slots)
            found[name].append(Run(outcome.done_by(horizon) / (world.slots * horizon), outcome))
    return found


def row(name: str, runs: list[Run], base: list[Run]) -> dict[str, object]:
    gains = [100 * (one.work / other.work - 1) for one, other in zip(runs, base, strict=True)]
    pairs = [(one.outcome, other.outcome) for one, other in zip(runs, base, strict=True)]
    slower = [
        sum(stay.completion_s > 1.001 * other.stays[job].completion_s for job, stay in one.stays.items())
        / len(one.stays)
        for one, other in pairs
    ]
    return {
        "system": name,
        "work_percent": 100 * mean(one.work for one in runs),
        "gain_percent": mean(gains),
        "gain_least": min(gains),
        "gain_most": max(gains),
        "makespan": mean(one.makespan_s / other.makespan_s for one, other in pairs),
        "completion": mean(one.mean_completion_s / other.mean_completion_s for one, other in pairs),
        "slower_percent": 100 * mean(slower),
        "busy_percent": 100 * mean(one.outcome.busy for one in runs),
    }


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--seeds", type=int, default=20)
    made.add_argument("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS))
    made.add_argument("--jobs", type=int, default=World().jobs)
    made.add_argument("--slots", type=int, default=World().slots)
    options = made.parse_args()
    if options.seeds < 1 or options.jobs < 1:
        made.error("--seeds and --jobs must be 1 or more")
    if options.slots < 16:
        made.error("--slots must be 16 or more: a job of the trace may have sixteen GPUs")
    found: dict[str, list[dict[str, object]]] = {}
    for name in options.worlds:
        runs = measure(replace(WORLDS[name], jobs=options.jobs, slots=options.slots), options.seeds)
        found[name] = [row(system, each, runs["gangs"]) for system, each in runs.items()]
    head = ["world: system", "work %", "gain %", "least", "most", "makespan", "completion", "slower %", "busy %"]
    rows = [[f"{name}: {one['system']}", *list(one.values())[1:]] for name, each in found.items() for one in each]
    finish({"worlds": found, "seeds": options.seeds}, options.json, head, rows)


if __name__ == "__main__":
    main()
