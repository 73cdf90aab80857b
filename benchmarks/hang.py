"""Whether a worker that holds up all others is named, how soon, and no other worker.

python benchmarks/hang.py [--json] [--cases 50] [--script trainer|ddp] [--seed 1] [--faults stop hang]

Eight workers on two agents: the embedded trainer as 2 x 2 x 2, or an unmodified DistributedDataParallel script. In
each case one of them, chosen at random, is stopped (SIGSTOP) or sleeps for ever while its threads live on, in, before
or after its next operation of one of the three axes; in the script: anywhere in its step. Time runs from the request,
so it includes the wait for that operation. All cases are faults of one job, which recovers from each.

A case is right if that rank alone is named, as dead or idle as it should be, and in time. A worker that cannot go on by
itself is dead: it is named within three median steps and two seconds. One that sleeps in a script without phases may go
on, so it is idle: it is reported within three seconds. Its job is then restarted by hand: that the limit of an idle one
holds is in pauses.py, and here it would double each time.
"""

import random
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from common import Json, finish, parser, quantile, scratch, wait_for

from holdfast.base.config.client import DemoConfig
from holdfast.base.errors import HoldfastError
from holdfast.cli.demo.plan import job_spec, make_plan
from holdfast.cli.local.cluster import LocalCluster

DDP = Path(__file__).parent / "workers" / "plain_ddp.py"
AXES, WHERE = ("tp", "dp", "pp"), ("", "before-", "after-")
WORLD = 8
REPORTED_S = 3.0
"""Seconds until an idle worker is reported."""


class Bench:
    def __init__(self, cluster: LocalCluster, folder: Path, options: Any) -> None:
        self.client, self.random, self.script = cluster.client, random.Random(options.seed), options.script
        self.faults: list[str] = options.faults
        spec = self.trainer(folder) if self.script == "trainer" else self.ddp()
        self.client.submit({**spec, "nnodes": 2, "nproc_per_node": 4, "max_restarts": 1_000_000})
        self.settled()

    def trainer(self, folder: Path) -> Json:
        config = DemoConfig(nodes=2, nproc=4, steps=1_000_000, pp=2, dp=2, tp=2)
        return job_spec(make_plan(config, []), folder / "store", Path.cwd()) | {"max_steps": None}

    def ddp(self) -> Json:
        program = {"target": str(DDP), "args": [], "module": False, "cwd": str(Path.cwd()),
                   "env": {"OMP_NUM_THREADS": "1"}, "hooks": True, "warm": True}  # fmt: skip
        return {"name": "ddp", "program": program}

    def well(self) -> Any:
        status = self.client.status()
        job = status["job"]
        return job if job and job["state"] == "running" and not status["open_incidents"] else None

    def settled(self) -> None:
        """All is well: some steps of the newest generation, no incident open."""
        begin = wait_for("a running job", 90, self.well, despite=(HoldfastError,))["step"]
        wait_for("steps", 90, lambda: (job := self.well()) and job["step"] >= begin + 5, despite=(HoldfastError,))

    def since(self, known: set[str]) -> list[Json]:
        """Incidents that are not among those."""
        return [incident for incident in self.client.incidents() if incident["id"] not in known]

    def case(self) -> Json:
        """One fault: what was found, and after how many seconds."""
        rank, kind = self.random.randrange(WORLD), self.random.choice(self.faults)
        place = self.random.choice(WHERE) + self.random.choice(AXES) if self.script == "trainer" else ""
        fault = f"{kind}:rank{rank}" + (f"/{place}" if place else "")
        time.sleep(self.random.random() * 0.3)
        step_s = self.client.status()["job"]["step_seconds"]
        before = {incident["id"] for incident in self.client.incidents()}
        asked = time.time()
        self.client.inject(fault)
        is_dead = self.script == "trainer" or kind == "stop"
        case: Json = {"fault": fault, "expected": "dead" if is_dead else "idle",
                      "limit": 3 * step_s + 2 if is_dead else REPORTED_S}  # fmt: skip
        try:
            found = wait_for("finding", 90, lambda: self.judged(before, asked, is_dead), despite=(HoldfastError,))
            if not is_dead:
                self.client.restart()
            self.settled()
        except TimeoutError as error:
            return case | {"named": [], "wrong": [str(error)], "seconds": float("nan")}
        case |= found
        return case | {"wrong": wrong(case, f"rank{rank}")}

    def judged(self, known: set[str], asked: float, is_dead: bool) -> Json | None:
        """Ranks named, as what, and how soon: by an incident, or where one is to be idle, by the job's pause."""
        if new := self.since(known):
            findings = [f for i in new for f in i["findings"] if f["kind"] in ("worker-hang", "worker-stopped")]
            return {
                "named": sorted({f["subject"] for f in findings}),
                "life": sorted({str(f["evidence"].get("life")) for f in findings}),
                "seconds": new[-1]["opened"] - asked,
            }
        pause = (self.client.job() or {}).get("pause")
        if is_dead or not pause or pause["life"] != "idle":
            return None
        return {"named": [f"rank{rank}" for rank in pause["ranks"]], "life": ["idle"], "seconds": time.time() - asked}


def wrong(case: Json, rank: str) -> list[str]:
    """What is wrong with how a case went."""
    found = [] if case["named"] == [rank] else [f"named {case['named']}, not {rank}"]
    if case["life"] != [case["expected"]]:
        found.append(f"judged {case['life']}, not {case['expected']}")
    if not case["seconds"] <= case["limit"]:
        found.append(f"found after {case['seconds']:.2f} s, not within {case['limit']:.2f} s")
    return found


def main() -> None:
    cli = parser(__doc__)
    cli.add_argument("--cases", type=int, default=50)
    cli.add_argument("--script", choices=("trainer", "ddp"), default="trainer")
    cli.add_argument("--faults", nargs="*", choices=("stop", "hang"), default=["stop", "hang"])
    cli.add_argument("--seed", type=int, default=1)
    options = cli.parse_args()
    with scratch() as folder, LocalCluster(folder / "state", nodes=2, slots=4) as cluster:
        bench = Bench(cluster, folder, options)
        cases = []
        for _ in range(options.cases):
            cases.append(bench.case())
            print(cases[-1], file=sys.stderr, flush=True)
    report(cases, options)


def report(cases: list[Json], options: Any) -> None:
    rows: list[tuple[object, ...]] = []
    result: Json = {"medians_s": {}, "p99_s": {}, "right": {}, "cases": cases}
    for life in ("dead", "idle"):
        some = [case for case in cases if case["expected"] == life]
        times = [case["seconds"] for case in some if not case["wrong"]]
        if not some:
            continue
        result["medians_s"][life] = median(times) if times else None
        result["p99_s"][life] = quantile(times, 0.99)
        result["right"][life] = [len(times), len(some)]
        what = "found" if life == "dead" else "reported"
        rows.append((options.script, f"{life}, {what}", len(some), len(times), median(times) if times else "-",
                     max(times) if times else "-"))  # fmt: skip
    for case in cases:
        if case["wrong"]:
            print(f"not right: {case}", file=sys.stderr)
    finish(result, options.json, ("script", "expected", "cases", "right", "median, s", "longest, s"), rows)


if __name__ == "__main__":
    main()
