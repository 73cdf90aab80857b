"""Finding parts that fail in some tests of pairs only, in simulation: what is named, what healthy part is blamed.

    python benchmarks/intermittent.py [--runs 100] [--probability 0.5] [--suite incident] [--passes 6] [--json]

A node, the way out of its switch (uplink), the path between two switches, or the link of two nodes under one switch
fails each test with the given probability. `found`: runs in which just this part is named; `of shown`: of the runs in
which it failed once. `passed`: runs in which it is neither named nor in doubt. `blamed`: runs in which a healthy part
is named; `nodes blamed`: in which a healthy node is; `not certain`: in which a part that failed is neither bad nor
passed at the end. `named after`: rounds. `incident`: the node at fault (of a path: one under it, of a link: one of the
two) is the one that is asked for, all others are partners. The last rows of each suite have no fault: in `noise` 1 % of
all tests fail for nothing, in `no fault` none does.
"""

import random
import sys
from itertools import combinations, product

from common import Json, finish, parser

from holdfast.diagnostics.catalog.catalog import INCIDENT_PASSES, MOST_ROUNDS, PASSES
from holdfast.diagnostics.isolation.isolation import Isolation, Pair

SHAPES = {
    "node": ([4], [8], [4, 4]), "uplink": ([4, 4], [4] * 3), "path": ([4, 4], [4] * 3), "link": ([4], [4, 4]),
    "noise": ([8], [4, 4]), "": ([4], [8], [4, 4], [4] * 3),
}  # fmt: skip


def names_of(isolation: Isolation) -> list[set[str]]:
    nodes = [{name} for name in isolation.bad | isolation.crossing]
    return nodes + [set(pair) for pair in isolation.ways | isolation.links]


INCIDENT = "incident"
WANTED = {**{str(suite): passes for suite, passes in PASSES.items()}, INCIDENT: INCIDENT_PASSES}


def play(sizes: list[int], fault: str, probability: float, suite: str, passes: int, seed: int) -> Json:
    draw = random.Random(seed)
    switch = {f"n{s}{i:02d}": f"s{s}" for s, size in enumerate(sizes) for i in range(size)}
    culprit: set[str] = set()
    match fault:
        case "node" | "uplink":
            culprit = {draw.choice(list(switch))}
        case "path":
            culprit = set(draw.choice(list(combinations(sorted(set(switch.values())), 2))))
        case "link":
            culprit = set(draw.sample([name for name in switch if switch[name] == "s0"], 2))
    shown = False

    def is_pass(pair: Pair) -> bool:
        nonlocal shown
        ends = {switch[name] for name in pair}
        is_hit = not culprit.isdisjoint(pair) and (fault == "node" or (fault == "uplink" and len(ends) == 2))
        is_hit = is_hit or (fault == "path" and ends == culprit) or (fault == "link" and set(pair) == culprit)
        if is_hit and draw.random() < probability:
            shown = True
            return False
        return draw.random() >= noise

    noise = 0.01 if fault == "noise" else 0.0
    asked = next((name for name in switch if name in culprit or switch[name] in culprit), next(iter(switch)))
    isolation = Isolation(
        list(switch), switches=switch if len(sizes) > 1 else None, max_rounds=MOST_ROUNDS, seed=seed, passes=passes,
        partners=[name for name in switch if name != asked] if suite == INCIDENT else (),
    )  # fmt: skip
    after = 0
    while pairs := isolation.next_round():
        isolation.report({pair: is_pass(pair) for pair in pairs})
        if not after and culprit in names_of(isolation):
            after = isolation.rounds
    named = names_of(isolation)
    wrong = [part for part in named if part != culprit]
    doubts = [{name} for name in isolation.undecided if isolation.doubt(name)]
    doubts += [set(pair) for pair in (*isolation.way_doubts(), *isolation.link_doubts())]
    return {"found": bool(culprit) and culprit in named, "shown": shown,
            "passed": bool(culprit) and culprit not in named and culprit not in doubts, "blamed": bool(wrong),
            "nodes": any(len(part) == 1 for part in wrong), "rounds": isolation.rounds, "after": after,
            "not_certain": bool(doubts), "tests": isolation.tests}  # fmt: skip


def summary(runs: list[Json]) -> Json:
    mean = {
        key: sum(run[key] for run in runs) / len(runs) for key in ("found", "passed", "not_certain", "rounds", "tests")
    }
    after = sorted(run["after"] for run in runs if run["found"]) or [0]
    return mean | {
        "of_shown": sum(run["found"] for run in runs) / max(1, sum(run["shown"] for run in runs)),
        "blamed": sum(run["blamed"] for run in runs),
        "nodes_blamed": sum(run["nodes"] for run in runs),
        "after_median": after[len(after) // 2],
        "after_p90": after[int(0.9 * len(after))],
        "most_rounds": max(run["rounds"] for run in runs),
    }


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--runs", type=int, default=100)
    arguments.add_argument("--probability", type=float, default=0.5)
    arguments.add_argument("--suite", choices=WANTED, help="Default: all.")
    arguments.add_argument("--passes", type=int, help="Default: as the suite.")
    given = arguments.parse_args()
    result: Json = {"cases": []}
    rows = []
    for suite, (fault, shapes) in product([given.suite] if given.suite else WANTED, SHAPES.items()):
        for sizes in shapes:
            passes = given.passes or WANTED[suite]
            runs = [play(sizes, fault, given.probability, suite, passes, n) for n in range(given.runs)]
            case = {"suite": suite, "passes": passes, "fault": fault, "nodes_under": sizes, **summary(runs)}
            result["cases"].append(case)
            rows.append((
                suite, fault or "no fault", "+".join(map(str, sizes)), f"{case['found']:.1%}",
                f"{case['of_shown']:.1%}", f"{case['passed']:.1%}",
                case["blamed"], case["nodes_blamed"], f"{case['not_certain']:.1%}",
                f"{case['after_median']} ({case['after_p90']})", f"{case['rounds']:.1f}", case["most_rounds"],
            ))  # fmt: skip
    head = ("suite", "fault", "nodes", "found", "of shown", "passed", "blamed", "nodes blamed", "not certain",
            "named after (p90)", "rounds", "most")  # fmt: skip
    finish(result, given.json, head, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
