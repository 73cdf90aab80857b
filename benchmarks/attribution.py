"""Which rank or link is slow, on real ranks: the embedded trainer on this machine, one of them slowed at a time.

python benchmarks/attribution.py [--json] [--layout 2x2x2] [--cases 12] [--clean 4] [--steps 60] [--small-steps 160]
    [--percents 30 10 5] [--works forward backward load link] [--seed 0] [--out FILE] [--keep FOLDER]
python benchmarks/attribution.py --add FILE... | --judge FOLDER...

One job (layout: pp x dp x tp) runs through all cases. In each, something drawn at random is slow: a rank's
forward or backward by 5%, 10% or 30% (of its processor time, by work), its data loading by so much of a step (by
waiting), or the link between two ranks, by a token bucket. Between stages what they send in a step takes so much of a
step; in a group, a rate above what its collectives need would slow nothing, so a search finds the rate that makes them
take so much of a step longer than before. In between no rank is slow. The spans are read from the controller's files
afterwards. A case is right when the first name on blame's list is the rank, or, for a link, one of its two ends, with
the other one or with no particular peer; a clean stretch when no rank is named. "Busiest" is the rank
with the most time in computation, waits included, "latest" the one that is furthest beyond the median of its stage; of
a link, either end.

--out appends each case to a file as a line of JSON, so that runs add up: --add prints the table of such files, --judge
that of what --keep has kept, judged again.
Needs unshare, ip, tc and ss. The job has a network namespace of its own.
"""

import json
import random
import shutil
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from blame import beyond_median, busiest
from common import Json, finish, get, machine, parser, scratch
from slow_link import Flow, TokenBucket, enter, flows

from holdfast.agent.probe_file.reader import ProbeReader
from holdfast.agent.workers.workers import shared_dir
from holdfast.cli.local.cluster import LocalCluster
from holdfast.diagnostics.blame.model import Slowness
from holdfast.diagnostics.blame.report import blame_of
from holdfast.diagnostics.files import span_files
from holdfast.plan.plan import Mesh

MARGIN = 3
"""Steps between a fault's order and the first step that counts."""
STEADY, TRIES = 20, 3
"""Steps by which it is known how long a link's operations take; how often its rate is set anew by that."""
NODES = 2
SMALL = 5
"""Percent: below this, more steps are needed to exceed the noise of a host with more ranks than cores."""
WORKS = ("forward", "backward", "load", "link")
SCORINGS = ("right", "busiest", "latest")


@dataclass(frozen=True)
class Case:
    """Steps `first` to `last`, in which `rank` was slow (-1: none), or its link to `peer`."""

    layout: str
    rank: int
    peer: int
    what: str
    percent: int
    first: int = 0
    last: int = 0

    @property
    def ends(self) -> set[int]:
        return {self.rank, self.peer} - {-1}


@contextmanager
def training(folder: Path, layout: str) -> Iterator[LocalCluster]:
    sizes = [word for pair in zip(("--pp", "--dp", "--tp"), layout.split("x"), strict=True) for word in pair]
    slots = -(-mesh_of(layout).world // NODES)
    # More ranks than cores, and others on the same ones: silence of seconds is no fault. Loopback is no network.
    patient = ("--hang-floor", "60s", "--silence-floor", "30s", "--detectors", "traffic-stopped.action=off")
    with LocalCluster(folder, nodes=NODES, slots=slots, controller_flags=patient) as cluster:
        args = ["--steps", "1000000", *sizes, "--set", "train.micro_batches=8"]
        program = {"target": "holdfast.trainer", "args": args, "module": True, "cwd": str(folder), "hooks": False,
                   "env": {"OMP_NUM_THREADS": "1"}, "warm": True}  # fmt: skip
        cluster.client.submit({"name": "attribution", "program": program, "nnodes": NODES, "nproc_per_node": slots})
        yield cluster
        cluster.client.stop(grace=1.0)


class Ended(Exception):
    """The job has changed; the reason."""


def step_of(cluster: LocalCluster) -> int:
    job = cluster.client.job() or {"state": "gone"}
    if job["state"] not in ("pending", "starting", "running"):
        found = [(i["summary"], [f["text"] for f in i["findings"]]) for i in cluster.client.incidents()]
        raise Ended(f"{job['state']}: {found}")
    return int(job["step"])


def reach(cluster: LocalCluster, step: int) -> None:
    while step_of(cluster) < step:
        time.sleep(0.1)


def pids(cluster: LocalCluster) -> dict[int, int]:
    """By rank: the process that reports through its probe."""
    found = {}
    for node in cluster.node_names:
        for path in shared_dir(cluster.state_dir / node).glob("*-rank?"):
            reader = ProbeReader(str(path))
            found[reader.rank] = reader.pid
            reader.close()
    return found


def traffic(ends: tuple[int, int], cluster: LocalCluster, steps: int = STEADY) -> tuple[list[Flow], float, float]:
    """Connections between two processes; the bytes that they exchange in a step, and its seconds."""
    begin, first = time.monotonic(), step_of(cluster)
    before = sum(flow.sent for flow in flows(*ends))
    reach(cluster, first + steps)
    between, done = flows(*ends), step_of(cluster) - first
    return between, (sum(flow.sent for flow in between) - before) / done, (time.monotonic() - begin) / done


def moving(cluster: LocalCluster, layout: str, ends: tuple[int, int], first: int) -> float:
    """Seconds of a step, from step `first` on, in which collectives between two ranks are under way, all of their group
    being there. 0 between stages: a message has no such time to hide in, what the bucket takes it takes longer."""
    mesh = mesh_of(layout)
    one, other = (mesh.coordinate(rank) for rank in ends)
    (axis,) = (name for name in one if one[name] != other[name])
    if axis == "pp":
        return 0.0
    group = {rank for rank in range(mesh.world) if mesh.coordinate(rank) | {axis: 0} == one | {axis: 0}}
    spans = json.loads(get(cluster.http, f"/api/v1/spans?first={first}&ranks={','.join(map(str, group))}"))
    met: dict[tuple[int, int, int], dict[int, tuple[int, int]]] = {}
    seen: Counter[tuple[int, int, int]] = Counter()
    names = ("group", "rank", "step", "kind", "start", "took")
    for of, rank, step, kind, start, took in zip(*(spans[name] for name in names), strict=True):
        if spans["groups"][of] == axis:
            met.setdefault((step, kind, seen[rank, step, kind]), {})[rank] = (start, start + took)
            seen[rank, step, kind] += 1
    taken = dict.fromkeys(spans["step"], 0)
    for (step, _, _), of_ranks in met.items():
        if of_ranks.keys() == group:
            starts, done = zip(*of_ranks.values(), strict=True)
            taken[step] += max(max(done) - max(starts), 0)
    return median(taken.values()) / 1e6


def slow_down(cluster: LocalCluster, case: Case, ends: tuple[int, int], bucket: TokenBucket) -> None:
    """Make a link, between two processes, as slow as the case says."""
    first = step_of(cluster) + MARGIN
    reach(cluster, first)
    between, size, step_s = traffic(ends, cluster)
    ranks = (case.rank, case.peer)
    usual = moving(cluster, case.layout, ranks, first)
    # Beside what the processors take anyway nothing is seen of the bucket, or after it all: the rate is in between.
    wanted = taken = case.percent / 100 * step_s
    bucket.limit(between, 8 * size / taken)
    for _ in range(TRIES if usual else 0):
        first = step_of(cluster) + MARGIN
        reach(cluster, first + STEADY)
        longer = moving(cluster, case.layout, ranks, first) - usual
        taken = min(max(taken + wanted - longer, wanted), wanted + usual)
        bucket.limit(between, 8 * size / taken)


def play(cluster: LocalCluster, drawn: list[Case], steps: int, small: int, seconds: float) -> Iterator[Case]:
    """Go through the cases, each for so many steps, `small` for those of 5 %; none is begun after so many seconds."""
    reach(cluster, 10)
    processes, bucket = pids(cluster), TokenBucket()
    until = time.monotonic() + seconds
    for case in drawn:
        if time.monotonic() > until:
            return
        if case.what == "link":
            slow_down(cluster, case, (processes[case.rank], processes[case.peer]), bucket)
        elif case.rank >= 0:
            cluster.client.inject(f"slow:rank{case.rank}/{case.what}+{case.percent}")
        first = step_of(cluster) + MARGIN
        count = small if 0 < case.percent <= SMALL else steps
        reach(cluster, first + count)
        yield Case(case.layout, case.rank, case.peer, case.what, case.percent, first, first + count - 1)
        if case.what == "link":
            bucket.lift()
        elif case.rank >= 0:
            cluster.client.inject(f"slow:rank{case.rank}/{case.what}+0")
        if case.rank >= 0:
            reach(cluster, step_of(cluster) + MARGIN)


def draw(rng: random.Random, layout: str, cases: int, clean: int, percents: list[int], works: list[str]) -> list[Case]:
    mesh = mesh_of(layout)
    ends = (0, mesh.size("pp") - 1)
    kinds = [(what, percent) for what in works for percent in percents]
    drawn = []
    for i in range(cases):
        what, percent = kinds[i % len(kinds)]
        # The ranks of stages in the middle read nothing.
        able = [r for r in range(mesh.world) if what != "load" or mesh.coordinate(r)["pp"] in ends]
        rank = rng.choice(able)
        peer = rng.choice(neighbours(mesh, rank)) if what == "link" else -1
        drawn.append(Case(layout, rank, peer, what, percent))
    rng.shuffle(drawn)
    for i in range(clean):
        drawn.insert(i * (len(drawn) + 1) // max(clean, 1), Case(layout, -1, -1, "nothing", 0))
    return drawn


def mesh_of(layout: str) -> Mesh:
    pp, dp, tp = (int(size) for size in layout.split("x"))
    return Mesh.of(pp=pp, dp=dp, tp=tp)


def neighbours(mesh: Mesh, rank: int) -> list[int]:
    """The ranks a rank communicates with: all of its groups, and the stages before and after its own."""
    mine = mesh.coordinate(rank)
    found = []
    for other in range(mesh.world):
        apart = {axis: abs(mine[axis] - at) for axis, at in mesh.coordinate(other).items() if mine[axis] != at}
        if len(apart) == 1 and apart.get("pp", 1) == 1:
            found.append(other)
    return found


def judged(case: Case, folder: Path) -> Json:
    table, shape = span_files.read(folder, case.first - 1, case.last)
    plan = shape.decoded()
    assert plan is not None
    blame = blame_of(table, shape)
    assert blame is not None
    named = [c for c in blame.culprits if c.kind is not Slowness.IMBALANCE]
    best = named[0] if named else None
    if best is None or case.rank < 0:
        right = best is None and case.rank < 0
    elif case.what == "link":
        right = best.kind is Slowness.LINK and best.rank in case.ends and best.peer in case.ends | {-1}
    else:
        right = best.rank == case.rank
    return asdict(case) | {
        "step_s": blame.step_s, "named": [(c.rank, c.peer, c.kind.value) for c in named],
        "text": "" if best is None else best.text, "right": right,
        "busiest": busiest(table, plan, 1) <= case.ends, "latest": beyond_median(table, plan, 1) <= case.ends,
        "load": machine()["load_1m"],
    }  # fmt: skip


def summary(results: list[Json]) -> list[tuple[str, ...]]:
    """By how much slower, and then by what was slow."""
    groups = [(f"{p} %", lambda r, p=p: r["percent"] == p) for p in sorted({r["percent"] for r in results} - {0})]
    groups += [(what, lambda r, w=what: r["what"] == w) for what in WORKS]
    groups += [("clean", lambda r: r["rank"] < 0)]
    rows = []
    for name, belongs in groups:
        of_it = [r for r in results if belongs(r)]
        if of_it:
            scores = [f"{sum(r[scoring] for r in of_it)} of {len(of_it)}" for scoring in SCORINGS]
            rows.append((name, *(scores if name != "clean" else (scores[0], "-", "-"))))
    return rows


def measure(
    layout: str, drawn: list[Case], steps: int, small: int, seconds: float, keep: Path | None
) -> Iterator[Json]:
    with scratch() as folder:
        with training(folder, layout) as cluster:
            cases = []
            try:
                cases.extend(play(cluster, drawn, steps, small, seconds))
            except Ended as error:
                print(f"no more cases after {len(cases)}: {error}", file=sys.stderr, flush=True)
            counts = {name: counted(cluster, name) for name in ("spans", "spans_lost")}
        (spans,) = (folder / "controller" / "spans").iterdir()
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            shutil.copytree(spans, keep / spans.name)
            (keep / f"{spans.name}.json").write_text(json.dumps([asdict(case) for case in cases]))
        for case in cases:
            yield judged(case, spans) | counts | {"job": spans.name}


def judged_again(kept: Path) -> Iterator[Json]:
    """The cases of all jobs in a folder that --keep made."""
    for reported in sorted(kept.glob("*.json")):
        for case in json.loads(reported.read_text()):
            yield judged(Case(**case), reported.with_suffix("")) | {"job": reported.stem, "spans": 0, "spans_lost": 0}


def counted(cluster: LocalCluster, name: str) -> int:
    """A counter of the controller."""
    text = get(cluster.http, "/metrics").decode()
    return int(float(next(line for line in text.splitlines() if line.startswith(f"holdfast_{name}_total ")).split()[1]))


def found_by(given: Namespace) -> Iterator[Json]:
    """The results, from wherever they were asked for."""
    if given.add:
        for path in given.add:
            yield from map(json.loads, path.read_text().splitlines())
        return
    if given.judge:
        for folder in given.judge:
            yield from judged_again(folder)
        return
    enter()
    drawn = draw(random.Random(given.seed), given.layout, given.cases, given.clean, given.percents, given.works)
    small = given.small_steps or given.steps
    yield from measure(given.layout, drawn, given.steps, small, given.seconds, given.keep)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--layout", default="2x2x2", help="pp x dp x tp, of an even number of ranks")
    options.add_argument("--cases", type=int, default=12, help="cases with something slow")
    options.add_argument("--clean", type=int, default=4, help="stretches without")
    options.add_argument("--steps", type=int, default=60, help="steps in each")
    options.add_argument("--small-steps", type=int, default=0, help="steps of a case of 5%% or less; 0: as others")
    options.add_argument("--seconds", type=float, default=1e9, help="begin no case after so long a time of training")
    options.add_argument("--percents", type=int, nargs="*", default=[30, 10, 5], help="by how much, in turn")
    options.add_argument("--works", nargs="*", default=list(WORKS), choices=WORKS, help="what is slowed, in turn")
    options.add_argument("--seed", type=int, default=0, help="of the draw")
    options.add_argument("--out", type=Path, help="append each case to this file")
    options.add_argument("--keep", type=Path, help="copy the spans, and when what was slow, into this folder")
    options.add_argument("--add", type=Path, nargs="+", help="measure nothing: the table of these files")
    options.add_argument("--judge", type=Path, nargs="+", help="measure nothing: judge what --keep left here again")
    given = options.parse_args()
    results: list[Json] = []
    for found in found_by(given):
        results.append(found)
        if given.out and not given.add:
            with given.out.open("a") as out:
                out.write(json.dumps(found) + "\n")
        if not given.json and not given.add:
            who = "no rank" if found["rank"] < 0 else f"rank {found['rank']}"
            who += f"-{found['peer']}" if found["peer"] >= 0 else ""
            verdict = "right" if found["right"] else "WRONG"
            print(f"{verdict}: {who} {found['what']} +{found['percent']}: {found['text']}", flush=True)
    jobs = {r["job"]: r for r in results}.values()
    received, lost = (sum(r[name] for r in jobs) for name in ("spans", "spans_lost"))
    finish(
        {"results": results, "spans": received, "spans_lost": lost},
        given.json,
        ("slowed by", "blame", "busiest", "latest"),
        summary(results),
    )
    if not given.json:
        print(f"{received} spans received, {lost} lost")


if __name__ == "__main__":
    main()
