"""Who is slow, on real ranks: the embedded trainer at 2 x 2 x 2 on this machine, one rank slowed at a time.

python benchmarks/attribution.py [--json] [--cases 12] [--steps 40] [--clean 4] [--percents 30 10 5] [--seed 0]

One job runs through all cases. In each, a rank drawn at random has its forward or backward slowed by 5%, 10% or 30%
(of its processor time, by work), or its data loading by so much of a step (by waiting); between them nobody is slow.
The spans are read from the controller's files afterwards. A case is right when the first name on blame's list is the
rank; a clean stretch when nobody is named. "Busiest" is the rank with the most time in computation, waits included,
"latest" the one that is furthest beyond the median of its stage.
"""

import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from blame import beyond_median, busiest
from common import Json, finish, parser, scratch

from holdfast.cli.local_cluster import LocalCluster
from holdfast.diagnostics import span_files
from holdfast.diagnostics.blame_report import blame_of
from holdfast.diagnostics.blame_suspects import Slowness

MARGIN = 3
"""Steps between a fault's order and the first step that counts."""
WORLD = 8
SIZES = ("--pp", "2", "--dp", "2", "--tp", "2")


@dataclass(frozen=True)
class Case:
    """Steps `first` to `last`, in which `rank` was slow (-1: nobody)."""

    rank: int
    what: str
    percent: int
    first: int
    last: int


@contextmanager
def training(folder: Path, steps: int) -> Iterator[LocalCluster]:
    with LocalCluster(folder, nodes=2, slots=4) as cluster:
        args = ["--steps", str(steps), *SIZES, "--set", "train.micro_batches=8"]
        program = {"target": "holdfast.trainer", "args": args, "module": True, "cwd": str(folder), "hooks": False,
                   "env": {"OMP_NUM_THREADS": "1"}, "warm": True}  # fmt: skip
        cluster.client.submit({"name": "attribution", "program": program, "nnodes": 2, "nproc_per_node": 4})
        yield cluster
        cluster.client.stop(grace=1.0)


def step_of(cluster: LocalCluster) -> int:
    job = cluster.client.job()
    if job is None or job["state"] not in ("pending", "starting", "running"):
        sys.exit(f"the job ended early: {job}")
    return int(job["step"])


def reach(cluster: LocalCluster, step: int) -> None:
    while step_of(cluster) < step:
        time.sleep(0.1)


def play(cluster: LocalCluster, drawn: list[tuple[int, str, int]], steps: int) -> list[Case]:
    """Go through the cases, each for so many steps."""
    reach(cluster, 10)
    cases = []
    for rank, what, percent in drawn:
        if rank >= 0:
            cluster.client.inject(f"slow:rank{rank}/{what}+{percent}")
        first = step_of(cluster) + MARGIN
        reach(cluster, first + steps)
        cases.append(Case(rank, what, percent, first, first + steps - 1))
        if rank >= 0:
            cluster.client.inject(f"slow:rank{rank}/{what}+0")
            reach(cluster, step_of(cluster) + MARGIN)
    return cases


def draw(dice: random.Random, cases: int, clean: int, percents: list[int]) -> list[tuple[int, str, int]]:
    kinds = [(what, percent) for percent in percents for what in ("forward", "backward", "load")]
    drawn = [(dice.randrange(WORLD), *kinds[i % len(kinds)]) for i in range(cases)]
    for i in range(clean):
        drawn.insert(i * (len(drawn) + 1) // max(clean, 1), (-1, "nothing", 0))
    return drawn


def judged(case: Case, folder: Path) -> Json:
    table, shape = span_files.read(folder, case.first - 1, case.last)
    plan = shape.decoded()
    assert plan is not None
    blame = blame_of(table, shape)
    assert blame is not None
    named = [c for c in blame.culprits if c.kind is not Slowness.IMBALANCE]
    best = named[0] if named else None
    return {
        "rank": case.rank, "what": case.what, "percent": case.percent, "steps": [case.first, case.last],
        "named": [c.rank for c in named], "first": -1 if best is None else best.rank,
        "kind": "" if best is None else best.kind.value, "text": "" if best is None else best.text,
        "right": (-1 if best is None else best.rank) == case.rank,
        "busiest": busiest(table, plan, 1) == {case.rank}, "latest": beyond_median(table, plan, 1) == {case.rank},
    }  # fmt: skip


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--cases", type=int, default=12, help="cases with a slow rank")
    options.add_argument("--clean", type=int, default=4, help="stretches without one")
    options.add_argument("--steps", type=int, default=40, help="steps in each")
    options.add_argument("--percents", type=int, nargs="*", default=[30, 10, 5], help="by how much, in turn")
    options.add_argument("--seed", type=int, default=0, help="of the draw")
    given = options.parse_args()
    drawn = draw(random.Random(given.seed), given.cases, given.clean, given.percents)
    with scratch() as folder:
        with training(folder, 1_000_000) as cluster:
            cases = play(cluster, drawn, given.steps)
        (spans,) = (folder / "controller" / "spans").iterdir()
        results = [judged(case, spans) for case in cases]
    rows = []
    for percent in (*given.percents, 0):
        of_it = [r for r in results if r["percent"] == percent]
        if of_it:
            scores = [f"{sum(r[name] for r in of_it)} of {len(of_it)}" for name in ("right", "busiest", "latest")]
            rows.append((f"{percent} %" if percent else "clean", *(scores if percent else (scores[0], "-", "-"))))
    if not given.json:
        for r in results:
            print(f"rank {r['rank']:>2} {r['what']:>8} +{r['percent']:<2} -> {r['first']:>2} {r['kind']} {r['text']}")
    finish({"results": results}, given.json, ("slowed by", "blame", "busiest", "latest"), rows)


if __name__ == "__main__":
    main()
