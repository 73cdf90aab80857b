"""Honest pauses that must not be ended, and true hangs that must be found: unmodified scripts, default settings.

python benchmarks/pauses.py [--json] [--only honest|hangs] [--case TEXT ...] [--seconds 8] [--parallel 2]
    [--sides holdfast torchrun] [--torchrun-seconds 30] [--random N --seed S] [--load L]

Each case is a job of its own: three DDP ranks on one agent (workers/honest_pauses.py, workers/true_hangs.py), and right
after it the same script under torchrun. An honest one is right if the job ends with 0, without a restart. What is
expected of a hang is in pause_rows.py: which ranks are to be named, whether as dead or idle, how soon, and that the job
goes on. Its time runs from the hang to the incident. Under torchrun a hang is right if torchrun ends it within
--torchrun-seconds (its own limit is that of the process groups, 30 minutes here).

With --random, N scripts that are composed at random instead (workers/random_pauses.py), each of which writes down its
own truth; `--case random:S:I` repeats one. --load: so many busy processes beside them.
"""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import pause_random
from common import Json, child_pids, end, finish, parser, quantile, scratch, table
from pause_rows import (
    CASE_HEAD,
    IDLE_LIMIT_S,
    SUM_HEAD,
    case_rows,
    expected,
    hang_cases,
    sum_rows,
    wrong_hang,
    wrong_honest,
)

from holdfast.base.errors import HoldfastError
from holdfast.cli.local.cluster import LocalCluster

WORKERS = Path(__file__).parent / "workers"
sys.path.insert(0, str(WORKERS))
WORLD = 3
MOST_S = 600.0
"""Of one case: a first step of 90 s, or an idle limit of 60 s, and a start on a busy host."""
ENDED = ("finished", "failed", "stopped")
SIDES = ("holdfast", "torchrun")
SHOWN = ("kind", "culprit", "action", "summary", "findings")
"""Of an incident of a random script."""


def honest_cases() -> list[str]:
    import honest_pauses

    if not any("torch-compile" in case for case in honest_pauses.CASES):
        print("torch-compile: not run, there is no C++ compiler", file=sys.stderr)
    return list(honest_pauses.CASES)


class Slot:
    """A cluster that runs one case after the other."""

    def __init__(self, cluster: LocalCluster, seconds: float) -> None:
        self.client, self.seconds = cluster.client, seconds

    def start(self, script: str, case: str, folder: Path, limits: Json | None = None) -> str:
        program = {"target": str(WORKERS / script), "args": [case, str(folder), str(self.seconds)], "module": False,
                   "cwd": str(folder), "env": {"OMP_NUM_THREADS": "1"}, "hooks": True, "warm": True}  # fmt: skip
        nproc = 1 if "in-one-process" in case else WORLD
        spec = {"name": "case", "program": program, "nnodes": 1, "nproc_per_node": nproc, "limits": limits}
        return str(self.client.submit(spec))

    def follow(self, job: str, look: Any, most_s: float = MOST_S, every_s: float = 0.05) -> Json:
        """The job as it ended, or as it is after so long; `look` sees it every so many seconds."""
        deadline, found = time.monotonic() + most_s, {}
        while time.monotonic() < deadline:
            with suppress(HoldfastError):
                found = self.client.job() or {}
                if found.get("id") == job:
                    look(found)
                    if found["state"] in ENDED:
                        return found
            time.sleep(every_s)
        return found

    def incidents(self, since: float) -> list[Json]:
        return [one for one in self.client.incidents() if one["opened"] >= since]

    def honest(self, case: str, folder: Path) -> Json:
        began, texts = time.time(), set()

        def look(job: Json) -> None:
            if job.get("pause"):
                texts.add(f"{job['pause']['life']}: {job['pause']['text']}")

        found = self.follow(self.start("honest_pauses.py", case, folder), look)
        self.clear()
        ours: Json = {
            "state": found.get("state"),
            "restarts": found.get("restarts"),
            "seconds": time.time() - began,
            "reported": sorted(texts)[:3],
            "incidents": [i["summary"] for i in self.incidents(began) if i["action"] != "alert"],
        }
        return ours | {"wrong": wrong_honest(ours)}

    def hang(self, case: str, folder: Path) -> Json:
        began, seen = time.time(), {"reported": None, "text": ""}
        all_take_part = "@" not in case

        def begun() -> float | None:
            marks = [float(path.read_text() or "nan") for path in folder.glob("begun-*")]
            return max(marks) if marks and len(marks) >= (WORLD if all_take_part else 1) else None

        def look(job: Json) -> None:
            pause, at = job.get("pause"), begun()
            if pause and at and seen["reported"] is None and pause["life"] == "idle":
                seen["reported"], seen["text"] = time.time() - at, pause["text"]

        limit = expected(case).limit_s
        most = MOST_S + (0.0 if math.isnan(limit) else limit)
        found = self.follow(self.start("true_hangs.py", case, folder), look, most)
        self.clear()
        incidents = [i for i in self.incidents(began) if i["action"] != "alert"]
        first, at = (incidents[-1] if incidents else None), begun()
        ours: Json = {
            "case": case,
            "state": found.get("state"),
            "incidents": len(incidents),
            "named": first["culprit"] if first else "",
            "life": (first["findings"][0]["evidence"].get("life") if first else None) or "",
            "seconds": first["opened"] - at if first and at else math.nan,
            "reported_s": seen["reported"],
            "summary": first["summary"] if first else seen["text"],
        }
        return ours | {"wrong": wrong_hang(ours)}

    def random(self, case: str, folder: Path, most_s: float) -> Json:
        began = time.time()
        limits = pause_random.limits(case)
        limit = 0.0 if pause_random.is_honest(case) else (limits or {}).get("idle_limit", IDLE_LIMIT_S)
        found = self.follow(self.start("random_pauses.py", case, folder, limits), lambda job: None, most_s + limit, 0.3)
        pause_random.thaw(folder)
        self.clear()
        incidents = sorted((i for i in self.incidents(began) if i["action"] != "alert"), key=lambda i: i["opened"])
        first, truth = (incidents[0] if incidents else None), pause_random.truth(folder)
        ours: Json = {
            "truth": truth,
            "state": found.get("state"),
            "restarts": found.get("restarts"),
            "total_s": time.time() - began,
            "nodes": {node["name"]: node["state"] for node in self.client.nodes()},
            "named": first["culprit"] if first else "",
            "life": (first["findings"][0]["evidence"].get("life") if first and first["findings"] else None) or "",
            "seconds": first["opened"] - truth.get("began", math.nan) if first else math.nan,
            "incidents": [
                {k: i.get(k) for k in ("kind", "culprit", "action", "summary", "findings")} for i in incidents
            ],
        }
        for name in (name for name, state in ours["nodes"].items() if state != "healthy"):
            self.client.cordon(name, False)  # or the next case would wait for it
        return ours | {"wrong": pause_random.wrong(ours)}

    def clear(self) -> None:
        """Nothing of this case is left before the next begins."""
        with suppress(HoldfastError):
            if (self.client.job() or {}).get("state") not in ENDED:
                self.client.stop(0.0)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with suppress(HoldfastError):
                if (self.client.job() or {}).get("state") in ENDED:
                    return
            time.sleep(0.1)


def torchrun(kind: str, case: str, folder: Path, options: Any) -> Json:
    """The same script. `code` is None if it stood still for as long as it was given."""
    nproc = 1 if "in-one-process" in case else WORLD
    script = "honest_pauses.py" if kind == "honest" else "true_hangs.py"
    script = "random_pauses.py" if case.startswith("random:") else script
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(nproc)]
    command += [str(WORKERS / script), case, str(folder), str(options.seconds)]
    began = time.time()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        code: int | None = process.wait(MOST_S if kind == "honest" else options.torchrun_seconds)
    except subprocess.TimeoutExpired:
        code = None
    seconds = time.time() - began
    workers = child_pids(process.pid) if code is None else []
    end(process)
    for pid in workers:  # a stopped one heeds no SIGTERM
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return {"code": code, "seconds": seconds, "is_right": code == 0 if kind == "honest" else code is not None}


def run_all(cases: list[tuple[str, str]], options: Any, root: Path) -> list[Json]:
    free: list[Slot | None] = []
    lock, clusters = threading.Lock(), []
    for n in range(options.parallel):
        if "holdfast" not in options.sides:
            free.append(None)
            continue
        cluster = LocalCluster(root / f"state{n}", nodes=1, slots=WORLD)
        cluster.start()
        clusters.append(cluster)
        free.append(Slot(cluster, options.seconds))

    def one(item: tuple[int, tuple[str, str]]) -> Json:
        number, (kind, case) = item
        result: Json = {"set": kind, "case": case}
        with lock:
            slot = free.pop()
        try:
            for side in options.sides:
                folder = root / f"{side}{number}"
                folder.mkdir()
                if side == "torchrun":
                    result[side] = torchrun(kind, case, folder, options)
                elif slot is not None and case.startswith("random:"):
                    result[side] = slot.random(case, folder, MOST_S * (1 + options.load / 5))
                elif slot is not None:
                    result[side] = slot.honest(case, folder) if kind == "honest" else slot.hang(case, folder)
                subprocess.run(["rm", "-rf", str(folder)], check=False)
        finally:
            with lock:
                free.append(slot)
        print(json.dumps(result), file=sys.stderr, flush=True)
        return result

    try:
        with ThreadPoolExecutor(options.parallel) as pool:
            return list(pool.map(one, enumerate(cases)))
    finally:
        for cluster in clusters:
            cluster.stop()


def main() -> None:
    cli = parser(__doc__)
    cli.add_argument("--only", choices=("honest", "hangs"))
    cli.add_argument("--case", nargs="*", default=[""], help="those whose name holds one of these")
    cli.add_argument("--seconds", type=float, default=8.0, help="of most of the honest pauses")
    cli.add_argument("--parallel", type=int, default=2, help="clusters side by side")
    cli.add_argument("--sides", nargs="*", choices=SIDES, default=list(SIDES))
    cli.add_argument("--torchrun-seconds", type=float, default=30.0, help="that a hang is given under torchrun")
    cli.add_argument("--random", type=int, default=0, help="so many scripts that are composed at random")
    cli.add_argument("--seed", type=int, default=1, help="of those")
    cli.add_argument("--load", type=int, default=0, help="busy processes beside them")
    options = cli.parse_args()
    if options.random or options.case[0].startswith("random:"):
        return run_random(options)
    cases = [("honest", case) for case in honest_cases() if options.only != "hangs"]
    cases += [("hang", case) for case in hang_cases() if options.only != "honest"]
    cases = [(kind, case) for kind, case in cases if any(text in case for text in options.case)]
    with scratch() as root:
        found = run_all(cases, options, root)
    report(found, options.json)


def run_random(options: Any) -> None:
    names = pause_random.cases(options.random, options.seed, options.only) if options.random else options.case
    cases = [("honest" if pause_random.is_honest(name) else "hang", name) for name in names]
    with pause_random.load(options.load), scratch() as root:
        found = run_all(cases, options, root)
    result: Json = {"medians_s": {"holdfast": pause_random.median_s(found)}, "load": options.load, "cases": found}
    if not options.json:
        table(("case", "what", "wrong"), pause_random.wrong_rows(found))
        print()
    finish(result, options.json, pause_random.HEAD, pause_random.rows(found))


def report(found: list[Json], as_json: bool) -> None:
    ours = [one for one in found if one.get("holdfast")]
    dead = [one for one in ours if one["set"] == "hang" and expected(one["case"]).life == "dead"]
    times = [one["holdfast"]["seconds"] for one in dead if not one["holdfast"]["wrong"]]
    result: Json = {
        "medians_s": {"holdfast": median(times) if times else None},
        "p99_s": {"holdfast": quantile(times, 0.99) if times else None},
        "honest_left_alone": sum(one["set"] == "honest" and not one["holdfast"]["wrong"] for one in ours),
        "hangs_named_right": sum(one["set"] == "hang" and not one["holdfast"]["wrong"] for one in ours),
        "cases": found,
    }
    if not as_json:
        table(CASE_HEAD, case_rows(found))
        print()
    finish(result, as_json, SUM_HEAD, sum_rows(found))


if __name__ == "__main__":
    main()
