"""Whether a worker that holds up all others is named, by which time, and nobody else.

python benchmarks/hang.py [--json] [--cases 50] [--script trainer|ddp] [--seed 1] [--faults stop hang]

Eight workers on two agents: the embedded trainer as 2 x 2 x 2, or an unmodified DistributedDataParallel script. In
each case one of them, chosen at random, is stopped (SIGSTOP) or sleeps for ever while its threads live on, in, before
or after its next operation of one of the three axes; in the script: anywhere in its step. Time runs from the request,
so it includes the wait for that operation. All cases are faults of one job, which recovers from each.
"""

import random
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from common import Json, finish, parser, quantile, scratch, wait_for

from holdfast.base.config import DemoConfig
from holdfast.base.errors import HoldfastError
from holdfast.cli.demo.plan import job_spec, make_plan
from holdfast.cli.local.cluster import LocalCluster

DDP = Path(__file__).parent / "workers" / "plain_ddp.py"
AXES, WHERE = ("tp", "dp", "pp"), ("", "before-", "after-")
WORLD = 8


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
        try:
            new = wait_for("finding", 90, lambda: self.since(before), despite=(HoldfastError,))
            self.settled()
        except TimeoutError:
            return {"fault": fault, "named": [], "is_right": False, "seconds": float("nan"), "limit": 0.0}
        subjects = {f["subject"] for i in new for f in i["findings"] if f["kind"] in ("worker-hang", "worker-stopped")}
        at = new[-1]["opened"]
        stacks = next((i["stacks"] for i in self.client.incidents() if i["id"] == new[-1]["id"]), None)
        return {
            "fault": fault,
            "named": sorted(subjects),
            "is_right": subjects == {f"rank{rank}"},
            "seconds": at - asked,
            "limit": 3 * step_s + 2,
            "stacks": len(stacks["states"]) if stacks else 0,
        }


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
    times = [case["seconds"] for case in cases if case["is_right"]]
    in_time = sum(case["is_right"] and case["seconds"] <= case["limit"] for case in cases)
    result: Json = {
        "medians_s": {"holdfast": median(times) if times else None},
        "p99_s": {"holdfast": quantile(times, 0.99)},
        "named_right": len(times),
        "in_time": in_time,
        "cases": cases,
    }
    row = (options.script, len(cases), len(times), in_time, median(times) if times else 0.0, max(times, default=0.0))
    finish(result, options.json, ("script", "cases", "named right", "in time", "median, s", "max, s"), [row])


if __name__ == "__main__":
    main()
