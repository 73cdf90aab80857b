"""Finding the bad nodes with tests of pairs: Holdfast's rounds beside DLRover's, in simulation.

    python benchmarks/isolation.py [--trials 2000] [--json]

First table: dead nodes, whose pairs never pass; `exact` is the share of runs that name just them, `blamed` how many
healthy nodes a run names, without and with tests that fail for nothing in 5 % of cases. Second table: one slow node of
128 under 3 % noise; a test of a pair is the mean of 5 measurements, as fast as its slower member.

DLRover's pairing, after its `rdzv_manager.py`: adjacent nodes in the first round; in the second, sorted by time (3600 s
for a failure), fastest with slowest; an odd node joins the last pair; a node that failed in both is bad. One that took
more than twice the median is slow.
"""

import random
import statistics
import sys
from collections.abc import Callable

from common import Json, finish, parser

from holdfast.diagnostics.isolation.isolation import Isolation

SIZES = ((5, 1), (8, 1), (8, 3), (9, 4), (16, 4), (64, 16), (128, 16), (1024, 1))
FLAKY = (0.0, 0.05)
SLOWER = (1.1, 1.5, 1.9, 2.2)
SLOW_OF = 128
NOISE, REPEATS = 0.03, 5
FLOOR = 0.95
FAILED_S = 3600.0

Test = Callable[[tuple[int, ...]], float]
"""Seconds that a group's test takes; FAILED_S when it fails."""


def holdfast(nodes: int, test: Test, seed: int) -> tuple[set[int], int, int]:
    """Bad nodes, rounds, tests. A time is good within 1/FLOOR of what the best quarter of all tests takes."""
    isolation = Isolation([str(i) for i in range(nodes)], seed=seed)
    seen: list[float] = []
    while pairs := isolation.next_round():
        times = {pair: test((int(pair[0]), int(pair[1]))) for pair in pairs}
        seen += times.values()
        good = sorted(seen)[len(seen) // 4]
        isolation.report({pair: time < FAILED_S and time <= good / FLOOR for pair, time in times.items()})
    return {int(n) for n in isolation.bad}, isolation.rounds, isolation.tests


def dlrover(nodes: int, test: Test, _: int) -> tuple[set[int], int, int]:
    order = list(range(nodes))
    groups = _groups([(order[i], order[i + 1]) for i in range(0, nodes - 1, 2)], order[-1:] if nodes % 2 else [])
    first = _times(groups, test)
    order.sort(key=lambda node: first[node])
    half = nodes // 2
    second_groups = _groups(
        [(order[i], order[-1 - i]) for i in range(half)], order[half : half + 1] if nodes % 2 else []
    )
    second = _times(second_groups, test)
    best = {node: min(first[node], second[node]) for node in range(nodes)}
    median = statistics.median(best.values())
    bad = {node for node, time in best.items() if time >= FAILED_S or time > 2 * median}
    return bad, 2, len(groups) + len(second_groups)


def _groups(pairs: list[tuple[int, int]], odd: list[int]) -> list[tuple[int, ...]]:
    return [*pairs[:-1], (*pairs[-1], *odd)]


def _times(groups: list[tuple[int, ...]], test: Test) -> dict[int, float]:
    found = {}
    for group in groups:
        time = test(group)
        found |= dict.fromkeys(group, time)
    return found


SYSTEMS = {"holdfast": holdfast, "dlrover": dlrover}


def dead(bad: set[int], flaky: float, draw: random.Random) -> Test:
    def test(group: tuple[int, ...]) -> float:
        return FAILED_S if not bad.isdisjoint(group) or draw.random() < flaky else 1.0

    return test


def slow(bad: int, factor: float, draw: random.Random) -> Test:
    def test(group: tuple[int, ...]) -> float:
        once = factor if bad in group else 1.0
        return statistics.fmean(once * draw.gauss(1.0, NOISE) for _ in range(REPEATS))

    return test


def measure(name: str, nodes: int, bad: int, trials: int, make: Callable[[set[int], random.Random], Test]) -> Json:
    exact = blamed = found = rounds = most = tests = 0
    for seed in range(trials):
        draw = random.Random(seed)
        culprits = set(draw.sample(range(nodes), bad))
        named, took, done = SYSTEMS[name](nodes, make(culprits, draw), seed)
        exact += named == culprits
        blamed += len(named - culprits)
        found += len(named & culprits)
        rounds, most, tests = rounds + took, max(most, took), tests + done
    return {
        "exact": exact / trials, "recall": found / trials / bad, "blamed": blamed / trials,
        "rounds": rounds / trials, "most_rounds": most, "tests_per_node": tests / trials / nodes,
    }  # fmt: skip


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--trials", type=int, default=2000)
    given = arguments.parse_args()
    result: Json = {"medians_exact_share": {}, "cases": []}
    rows = []
    for nodes, bad in SIZES:
        trials = max(1, given.trials // 10) if nodes > 500 else given.trials
        for flaky in FLAKY:
            for name in SYSTEMS:
                case = measure(name, nodes, bad, trials, lambda c, d, f=flaky: dead(c, f, d))
                result["cases"].append({"system": name, "nodes": nodes, "bad": bad, "flaky": flaky, **case})
                rows.append((f"{bad} dead of {nodes}, flaky {flaky:.0%}", name, *_row(case)))
    for factor in SLOWER:
        for name in SYSTEMS:
            case = measure(name, SLOW_OF, 1, max(1, given.trials // 5), lambda c, d, x=factor: slow(min(c), x, d))
            result["cases"].append({"system": name, "nodes": SLOW_OF, "bad": 1, "slower": factor, **case})
            rows.append((f"1 of {SLOW_OF} takes {factor}x", name, *_row(case)))
    for name in SYSTEMS:
        result["medians_exact_share"][name] = statistics.median(
            c["exact"] for c in result["cases"] if c["system"] == name
        )
    head = ("case", "system", "exact", "recall", "healthy blamed", "rounds", "most rounds", "tests per node")
    finish(result, given.json, head, rows)
    return 0


def _row(case: Json) -> tuple[object, ...]:
    return (
        f"{case['exact']:.1%}", f"{case['recall']:.1%}", f"{case['blamed']:.3f}", f"{case['rounds']:.2f}",
        case["most_rounds"], f"{case['tests_per_node']:.2f}",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
