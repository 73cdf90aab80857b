"""Which ranks are slow, in simulation: precision and recall of blame, beside two simpler scorings of the same spans.

python benchmarks/blame.py [--json] [--rounds 10] [--sizes 64 1024 12288]

Each job has a mesh of its size (tp 8), pipeline stages in 1F1B with 16 micro-batches and 2% noise on every duration.
One to five culprits are drawn: rank, what is slow of it (forward, backward, all computation, its links) and by how
much (10%, 20%, 30%; a link takes twice to four times as long). A named rank that was drawn is right. Seconds are
processor time of this thread, from the table of spans to the verdict, of one step.

"Busiest" names the ranks with the most time in their spans, "median" those whose spans take longest against the
median of their stage, waits and all: each as many as there are culprits, which gives away what blame has to find out.
"""

import random
import time
from collections import defaultdict

import numpy as np
from common import Json, finish, parser
from simulated_spans import Culprit, Job, simulate

from holdfast.diagnostics.blame.blame import Blame, analyse
from holdfast.diagnostics.steps import graph as step_graph
from holdfast.diagnostics.steps.job_shape import JobShape
from holdfast.diagnostics.steps.span_table import SpanTable
from holdfast.plan.plan import Plan

SCORINGS = ("blame", "busiest", "median")
MESHES = {64: (2, 4, 8), 1024: (8, 16, 8), 12288: (12, 128, 8)}


def draw(rng: random.Random, job: Job, count: int) -> list[Culprit]:
    world = job.pp * job.dp * job.tp
    found = []
    for rank in rng.sample(range(world), count):
        what = rng.choice(("forward", "backward", "compute", "link"))
        found.append(Culprit(rank, what, rng.choice((1.0, 2.0, 3.0) if what == "link" else (0.1, 0.2, 0.3))))
    return found


def busiest(table: SpanTable, plan: Plan, count: int) -> set[int]:
    """Ranks with the most time in computation and transfers, as a profile of each rank alone would say."""
    world = plan.mesh.world
    busy = np.bincount(table.rank, (table.end - table.start).astype(float), minlength=world)
    return set(np.argsort(-busy)[:count].tolist())


def beyond_median(table: SpanTable, plan: Plan, count: int) -> set[int]:
    """Ranks whose forwards and backwards take longest against the median of their stage."""
    wanted = [i for i, kind in enumerate(table.kinds) if kind in ("forward", "backward")]
    part = table.take(np.isin(table.kind, wanted))
    took = np.bincount(part.rank, (part.end - part.start).astype(float), minlength=plan.mesh.world)
    by_stage = took.reshape(plan.mesh.size("pp"), -1)
    middle = np.median(by_stage, axis=1, keepdims=True)
    spread = np.median(np.abs(by_stage - middle), axis=1, keepdims=True) + 1e-9
    return set(np.argsort(-((by_stage - middle) / spread).ravel())[:count].tolist())


def named(blame: Blame) -> set[int]:
    return {culprit.rank for culprit in blame.culprits if culprit.rank >= 0}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=10, help="jobs for each size and number of culprits")
    options.add_argument("--sizes", type=int, nargs="*", default=list(MESHES), choices=list(MESHES))
    options.add_argument("--steps", type=int, default=1, help="steps that are looked at together")
    given = options.parse_args()
    results: list[Json] = []
    for size in given.sizes:
        pp, dp, tp = MESHES[size]
        job = Job(pp, dp, tp, micro_batches=16)
        shape = JobShape("job", "job", tuple(f"n{i}" for i in range(size // 8)), 8)
        for count in range(6):
            scores: dict[str, list[tuple[int, int]]] = defaultdict(list)  # right, named
            seconds, spans = [], 0
            for seed in range(given.rounds):
                culprits = draw(random.Random(f"{size} {count} {seed}"), job, count)
                table, plan = simulate(job, culprits, given.steps, seed)
                truth = {culprit.rank for culprit in culprits}
                began = time.thread_time()
                blame = analyse(step_graph.graphs(table, plan, size), shape)
                seconds.append((time.thread_time() - began) / given.steps)
                assert blame is not None
                spans = len(table)
                answers = {"blame": named(blame), "busiest": busiest(table, plan, count)}
                answers["median"] = beyond_median(table, plan, count)
                for name, answer in answers.items():
                    scores[name].append((len(answer & truth), len(answer)))
            row: Json = {"ranks": size, "culprits": count, "spans": spans, "seconds": max(seconds)}
            for name, pairs in scores.items():
                right, reported = sum(r for r, _ in pairs), sum(n for _, n in pairs)
                row[name] = {"precision": right / reported if reported else None, "named": reported,
                             "recall": right / (count * given.rounds) if count else None}  # fmt: skip
            results.append(row)
    head = ("ranks", "culprits", "spans", "seconds", *(f"{n}: precision, recall, named" for n in SCORINGS))
    rows = [
        (str(r["ranks"]), r["culprits"], r["spans"], f"{r['seconds']:.2f}", *(_score(r[name]) for name in SCORINGS))
        for r in results
    ]
    finish({"rounds": given.rounds, "results": results}, given.json, head, rows)


def _score(score: Json) -> str:
    shown = ("-" if score[name] is None else f"{score[name]:.2f}" for name in ("precision", "recall"))
    return ", ".join((*shown, str(score["named"])))


if __name__ == "__main__":
    main()
