"""Three of 64 nodes are lost and no spare is there: what a job trains in the next day, by policy.

python benchmarks/replanning.py [--seeds 1000] [--restart-s 60 600] [--json]

A model of 30 B parameters on 64 nodes with 8 H100, 1,536 samples in a step. `wait`: until all nodes are back. `largest
that divides`: the job keeps its pp and tp, and goes on with as many replicas as there are nodes for and as divide the
samples. `planned`: the planner's layouts, and the controller's decision to wait or to go on with them. All policies
meet the same repairs: some nodes only restart, others wait for a part, as log-normal times; the history has 30 earlier
ones of the same kind. Virtual time; `goodput` is work done over what 64 nodes would have done.
"""

import itertools
import statistics
import time
from dataclasses import replace

from common import finish, parser

from holdfast.controller.cluster.replanning import frontier
from holdfast.controller.simulation.replanning import Policy, Repairs, Trained, compare
from holdfast.plan.transformer import Transformer
from holdfast.planner.cluster.file import parse
from holdfast.planner.cost.layout import Layout
from holdfast.planner.cost.predict import CostModel
from holdfast.planner.search.budget import Budget
from holdfast.planner.search.reasons import NothingFits
from holdfast.planner.search.search import Search
from holdfast.planner.search.space import Space

NODES, LOST, GPUS, SAMPLES = 64, 3, 8, 1536
MODEL = Transformer(layers=48, width=7168, heads=56, vocab=51200, length=2048)
CLUSTER = parse(
    f'gpu = "H100"\nnodes = {NODES}\ngpus_per_node = {GPUS}\nnic = "infiniband"\n[links.switch]\ngbit_per_s = 400\n'
)
SPACE = Space(schedules=("interleaved", "1f1b"), zero=(1,), recompute=("none", "selective"), micro_batch_sizes=(1,))
SEARCH_S = 2.0
WORLDS = {
    "all restart: 3 min": Repairs(1.0, 180.0, 0.0),
    "half restart, half 6 h": Repairs(0.5, 180.0, 21_600.0),
    "all wait for a part: 6 h": Repairs(0.0, 0.0, 21_600.0),
}


def costs(nodes: int) -> CostModel:
    return CostModel(replace(CLUSTER, nodes=CLUSTER.nodes[:nodes]))


def best(nodes: int) -> tuple[Layout, float] | None:
    """The planner's layout on so many nodes, and seconds of its step; None where nothing divides."""
    try:
        search = Search(MODEL, costs(nodes), SAMPLES, space=SPACE, limit_bytes=75e9, kept=1)
        budget = Budget(SEARCH_S, time.process_time)
        found = search.run(budget.is_up, budget.is_too_long).best[0]
    except NothingFits:
        return None
    return found.layout, found.prediction.step_s


def planned() -> tuple[Layout, float, dict[int, float]]:
    """The layout on all nodes, its seconds, and the throughput of the best on so many fewer, as shares."""
    full = best(NODES)
    assert full is not None
    found = {nodes: one[1] for nodes in range(NODES - LOST - 1, NODES) if (one := best(nodes)) is not None}
    table = {nodes: min(1.0, full[1] / seconds) for nodes, seconds in found.items()}
    return *full, {nodes: table[nodes] for nodes in frontier(table.items())}


def divided(full: Layout, full_s: float) -> dict[int, float]:
    """The same with pp and tp of the full layout, for every number of nodes on which dp divides the samples."""
    found = {}
    for nodes in range(NODES // 2, NODES):
        dp, left = divmod(nodes * GPUS, full.pp * full.tp)
        if not left and SAMPLES % dp == 0:
            found[nodes] = full_s / costs(nodes).predict(MODEL, replace(full, dp=dp)).step_s
    return {nodes: found[nodes] for nodes in frontier(found.items())}


def summary(runs: list[Trained]) -> tuple[float, float, float]:
    """Goodput in the mean and of the worst twentieth, in percent; restarts."""
    ordered = sorted(100 * one.goodput for one in runs)
    return statistics.mean(ordered), ordered[len(ordered) // 20], statistics.mean(one.restarts for one in runs)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--seeds", type=int, default=1000)
    made.add_argument(
        "--restart-s", type=float, nargs="+", default=[60.0, 600.0], help="seconds without a step that a restart costs"
    )
    options = made.parse_args()
    if options.seeds < 1 or min(options.restart_s) < 0:
        made.error("--seeds must be 1 or more, --restart-s 0 or more")
    full, full_s, ours = planned()
    theirs = divided(full, full_s)
    tables = {
        "wait": (Policy.WAIT, ours),
        "largest that divides": (Policy.GO_ON, theirs),
        "planned, at once": (Policy.GO_ON, ours),
        "planned": (Policy.CHOOSE, ours),
    }
    rows = []
    for restart_s, (world, repairs) in itertools.product(options.restart_s, WORLDS.items()):
        found = compare(NODES, LOST, tables, repairs, range(options.seeds), restart_s=restart_s)
        for name, runs in found.items():
            mean, worst, restarts = summary(runs)
            rows.append({
                "restart_s": restart_s, "repairs": world, "policy": name, "goodput": mean, "p5": worst,
                "restarts": restarts,
            })  # fmt: skip
    document = {
        "layout": f"pp={full.pp} dp={full.dp} tp={full.tp} {full.schedule}",
        "step_s": full_s,
        "planned": ours,
        "divided": theirs,
        "outages": rows,
    }
    shares = "; ".join(f"{name} {', '.join(f'{n}: {x:.3f}' for n, x in table.items())}"
                       for name, table in (("planned", ours), ("divided", theirs)))  # fmt: skip
    if not options.json:
        print(f"{document['layout']}, {full_s:.3g} s a step; throughput by nodes: {shares}")
    head = ["restart s", "repairs", "policy", "goodput %", "p5 %", "restarts"]
    finish(document, options.json, head, [list(one.values()) for one in rows])


if __name__ == "__main__":
    main()
