"""The makespan of every pipeline schedule: by formula, simulated, and measured on stages that sleep.

python benchmarks/makespans.py [--schedules 1f1b zbv ...] [--ranks 4] [--micro-batches 8] [--unit-ms 40] [--repeats 5]
    [--fill 0.6] [--virtual] [--json]

Real processes, real messages over gloo (see bubble.py). Makespans are in units: what a forward of a rank's layers takes
for one micro-batch; a backward takes two. A stage's forward sleeps for `--unit-ms`, so a unit of a rank with two stages
takes twice as long. A schedule that cannot run so many micro-batches gets the next number that it can.

`measured` is the median of the repeats after one to warm up, `least` the shortest of them; `apart`, in percent, is what
`measured` is over the formula, or over the simulation where there is no formula. The executor's own time for an action
shows in it, and so does whatever else the machine does: `least` is what is left of it then.

With `--fill X` ranks have second-order work as well (DP-KFAC): for each micro-batch two statistics, and four inversions
a stage, which sleep for a share X of the least bubble of any rank. It is put into the bubbles, so the makespan should
be that without it: each schedule is measured both ways, and `apart` is what the filled one is over the other.

With `--virtual` nothing sleeps: time is virtual (see virtual_time.py), and the figures are exact.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, islice
from statistics import median

from bubble import NAMES, Case, measure
from common import finish, parser
from formulas import BACKWARD, FORWARD, makespan

from holdfast.plan.dynamic import simulate_ready
from holdfast.plan.schedules.table import SCHEDULES
from holdfast.plan.simulate import durations, simulate

TRIED = 64
"""Numbers of micro-batches that are tried for a schedule, from the wanted one on."""


def case_of(name: str, ranks: int, micro_batches: int) -> Case:
    """With as many micro-batches, or the next number that the schedule can run. ValueError if it can run none."""
    schedule = SCHEDULES[name]
    schedule.placement.places(ranks, schedule.chunks)
    for n in islice(count(micro_batches), TRIED):
        if schedule.obstacle(ranks, n) is None:
            return Case(name, ranks, n)
    raise ValueError(f"{name} on {ranks} ranks {schedule.obstacle(ranks, micro_batches)}")


def simulated(case: Case) -> float:
    """The makespan, in units."""
    took = durations(FORWARD, BACKWARD, case.per_rank)
    if not SCHEDULES[case.schedule].is_message_driven:
        return simulate(case.plan, took).makespan
    bare = SCHEDULES[case.schedule].plan(case.ranks, 1, case.micro_batches)
    return simulate_ready(bare, took, 2 * case.ranks).timeline.makespan


def filled_row(case: Case, bare: Sequence[float], filled: Sequence[float]) -> dict[str, float | int | str]:
    """The makespans of a schedule without and with work in its bubbles, in units, by their medians and their least."""
    without, within = (sorted(case.work / case.per_rank / (1 - bubble) for bubble in one) for one in (bare, filled))
    virtual = simulate(case.plan, case.duration).makespan / case.per_rank
    plain = simulate(replace(case, fill=0.0).plan, durations(FORWARD, BACKWARD)).makespan / case.per_rank
    return {
        "schedule": case.schedule,
        "chunks": case.layout.chunks,
        "micro_batches": case.micro_batches,
        "late": sum(action.late for _, action in case.plan.actions()),
        "simulated_without": plain,
        "simulated": virtual,
        "without": median(without),
        "measured": median(within),
        "least_without": without[0],
        "least": within[0],
        "apart_percent": 100 * (median(within) / median(without) - 1),
    }


def row(case: Case, bubbles: Sequence[float]) -> dict[str, float | int | str | None]:
    """Of the bubbles measured, what the table says of a schedule."""
    units = sorted(case.work / case.per_rank / (1 - bubble) for bubble in bubbles)
    formula, virtual = makespan(case.schedule, case.ranks, case.layout.chunks, case.micro_batches), simulated(case)
    measured = median(units)
    return {
        "schedule": case.schedule,
        "chunks": case.layout.chunks,
        "micro_batches": case.micro_batches,
        "formula": formula,
        "simulated": virtual,
        "measured": measured,
        "least": units[0],
        "apart_percent": 100 * (measured / (formula or virtual) - 1),
    }


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--schedules", nargs="+", choices=NAMES, default=NAMES)
    made.add_argument("--ranks", type=int, default=4)
    made.add_argument("--micro-batches", type=int, default=8, help="in a step, or the next number that is possible")
    made.add_argument("--unit-ms", type=float, default=40.0, help="of a stage's forward of a micro-batch")
    made.add_argument("--repeats", type=int, default=5)
    made.add_argument("--fill", type=float, default=0.0, metavar="X", help="share of the bubble that is filled")
    made.add_argument("--virtual", action="store_true", help="in virtual time: nothing sleeps, figures are exact")
    options: argparse.Namespace = made.parse_args()
    if min(options.ranks, options.micro_batches, options.unit_ms, options.repeats) <= 0:
        made.error("--ranks, --micro-batches, --unit-ms and --repeats must be above 0")
    try:
        cases = [case_of(name, options.ranks, options.micro_batches) for name in options.schedules]
    except ValueError as impossible:
        made.error(f"--ranks {options.ranks}: {impossible}")
    if options.fill:
        if not 0 < options.fill < 1 or any(SCHEDULES[case.schedule].is_message_driven for case in cases):
            made.error("--fill must be from 0 to 1, and needs --schedules of a fixed order")
        full = [replace(case, fill=options.fill) for case in cases]
        # Each beside its own: the machine is not the same an hour later.
        both = measure([one for pair in zip(cases, full, strict=True) for one in pair], options.unit_ms / 1000,
                       options.repeats, options.virtual)  # fmt: skip
        filled = [filled_row(case, *both[2 * n : 2 * n + 2]) for n, case in enumerate(full)]
        head = ["schedule", "V", "N", "late", "simulated without", "with", "measured without", "with",
                "least without", "with", "apart, %"]  # fmt: skip
        finish({"filled": filled}, options.json, head, [list(one.values()) for one in filled])
        return
    found = measure(cases, options.unit_ms / 1000, options.repeats, options.virtual)
    rows = [row(case, bubbles) for case, bubbles in zip(cases, found, strict=True)]
    shown = [["-" if cell is None else cell for cell in one.values()] for one in rows]
    finish({"makespans": rows}, options.json, ["schedule", "V", "N", *list(rows[0])[3:7], "apart, %"], shown)


if __name__ == "__main__":
    main()
