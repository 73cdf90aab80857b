"""What the planner predicts of a step, beside what its stages take when they are executed.

python benchmarks/planned.py [--layers 6] [--micro-batches 8] [--unit-ms 60] [--repeats 3] [--virtual] [--json]

The planner cuts a model for a node of three and of four devices, with links that are fast and slow, so that stages are
unlike in layers and in tp. The trainer's executor runs each plan, one process a pipeline rank: real messages over gloo,
stages that sleep for what the planner says they take (see bubble.py). `--unit-ms` is the forward of the slowest stage.
Times are in units of that; `formula` is Alpa's sum t + (B - 1) max t, `simulated` goes action by action. `least` is the
shortest of the repeats, and `apart`, in percent, what it is over the formula. With `--virtual` nothing sleeps: time is
virtual (see virtual_time.py), and the figures are exact.
"""

import argparse
from collections.abc import Iterator, Sequence

from bubble import Case, measure
from common import finish, parser

from holdfast.planner.partition.inter import pipeline_time
from holdfast.planner.partition.scored import simulated
from holdfast.trainer.graphs.cuts import Cut, Machines, find
from holdfast.trainer.settings.load import load


def cuts(layers: int, micro_batches: int) -> Iterator[Cut]:
    """The fastest plan without replicas on three and on four devices, with links that are fast and slow."""
    settings = [
        ("model.layers", layers),
        ("model.d_model", 256),
        ("model.heads", 4),
        ("train.micro_batches", micro_batches),
        ("train.micro_batch_size", 4),
    ]
    for devices, bytes_per_s in ((3, 300e9), (3, 0.2e9), (4, 0.2e9)):
        machines = Machines(1, devices, flops=50e9, memory_bytes=4e9, inside_beta=1 / bytes_per_s)
        found = find(load(overrides=settings), machines, keep=1000)
        yield from [cut for cut in found.cuts if cut.layout.dp == 1 and cut.layout.pp > 1][:1]


def row(cut: Cut, case: Case, bubbles: Sequence[float]) -> dict[str, float | int | str]:
    """Of the bubbles measured, what the table says of a plan."""
    units = case.units
    took = sorted(case.work / (1 - bubble) for bubble in bubbles)
    formula = pipeline_time([3 * unit for unit in units], case.micro_batches)
    return {
        "tp of stages": "+".join(map(str, cut.layout.tps)),
        "layers": "+".join(map(str, cut.layout.stage_layers)),
        "formula": formula,
        "simulated": simulated([3 * unit for unit in units], case.micro_batches),
        "least": took[0],
        "apart_percent": 100 * (took[0] / formula - 1),
    }


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--layers", type=int, default=6)
    made.add_argument("--micro-batches", type=int, default=8, help="in a step")
    made.add_argument("--unit-ms", type=float, default=60.0, help="of the slowest stage's forward of a micro-batch")
    made.add_argument("--repeats", type=int, default=3)
    made.add_argument("--virtual", action="store_true", help="in virtual time: nothing sleeps, figures are exact")
    options: argparse.Namespace = made.parse_args()
    if min(options.layers, options.micro_batches, options.unit_ms, options.repeats) <= 0:
        made.error("--layers, --micro-batches, --unit-ms and --repeats must be above 0")
    rows = []
    for cut in cuts(options.layers, options.micro_batches):
        slowest = max(cut.stage_seconds)
        units = tuple(seconds / slowest for seconds in cut.stage_seconds)
        case = Case("1f1b", len(units), options.micro_batches, units=units)
        (found,) = measure([case], options.unit_ms / 1000, options.repeats, options.virtual)
        rows.append(row(cut, case, found))
    finish({"planned": rows}, options.json, [*list(rows[0])[:5], "apart, %"], [list(one.values()) for one in rows])


if __name__ == "__main__":
    main()
