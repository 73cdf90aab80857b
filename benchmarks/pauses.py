"""Honest pauses that must not be ended, and true hangs that must be found: unmodified scripts, default settings.

python benchmarks/pauses.py [--json] [--only honest|hangs] [--case TEXT] [--seconds 8] [--parallel 2] [--torchrun]

Each case is a job of its own: three DDP ranks on one agent (workers/honest_pauses.py, workers/true_hangs.py). An honest
one is right if the job ends with 0 without a restart. A hang that cannot end by itself (dead) is right if the rank is
named; its time runs from the hang to the incident. One that may (idle) is right if the rank is reported as idle, and
the job is restarted at its limit. `--torchrun` runs the honest scripts under torchrun as well.
"""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from common import Json, end, finish, parser, quantile, scratch

from holdfast.base.errors import HoldfastError
from holdfast.cli.local.cluster import LocalCluster

WORKERS = Path(__file__).parent / "workers"
sys.path.insert(0, str(WORKERS))
WORLD = 3
MOST_S = 240.0
"""Of one case: a first step of 90 s, or an idle limit of 60 s, and a start on a busy host."""
ENDED = ("finished", "failed", "stopped")


def honest_cases() -> list[str]:
    import honest_pauses

    return list(honest_pauses.CASES)


def hang_cases() -> list[str]:
    """Thirty, of eighteen kinds. What rank 0 broadcasts may end without the others; in `order` rank 1 differs."""
    import true_hangs

    ranks = {kind: (0, 1, 2) for kind in ("stop", "native-sleep", "receive", "barrier", "lock-twice")}
    ranks |= {"broadcast": (1, 2), "empty-pipe": (2,), "sleep-loop": (0, 1)}
    kinds = [*true_hangs.DEAD, *true_hangs.IDLE]
    return [f"{kind}@{rank}" for kind in kinds for rank in ranks.get(kind, (1,))] + ["order"]


class Slot:
    """A cluster that runs one case after the other."""

    def __init__(self, cluster: LocalCluster, seconds: float) -> None:
        self.client, self.seconds = cluster.client, seconds

    def start(self, script: str, case: str, folder: Path) -> str:
        program = {"target": str(WORKERS / script), "args": [case, str(folder), str(self.seconds)], "module": False,
                   "cwd": str(folder), "env": {"OMP_NUM_THREADS": "1"}, "hooks": True, "warm": True}  # fmt: skip
        nproc = 1 if "in-one-process" in case else WORLD
        return str(self.client.submit({"name": "case", "program": program, "nnodes": 1, "nproc_per_node": nproc}))

    def follow(self, job: str, look: Any) -> Json:
        """The job as it ended; `look` sees it every 50 ms, and ends the watch by returning True."""
        deadline, found = time.monotonic() + MOST_S, {}
        while time.monotonic() < deadline:
            with suppress(HoldfastError):
                found = self.client.job() or {}
                if found.get("id") == job and (found["state"] in ENDED or look(found)):
                    return found
            time.sleep(0.05)
        return found

    def incidents(self, since: float) -> list[Json]:
        return [one for one in self.client.incidents() if one["opened"] >= since]

    def honest(self, case: str, folder: Path) -> Json:
        began, texts = time.time(), set()

        def look(job: Json) -> bool:
            if job.get("pause"):
                texts.add(f"{job['pause']['life']}: {job['pause']['text']}")
            return False

        found = self.follow(self.start("honest_pauses.py", case, folder), look)
        self.clear()
        told = [i["summary"] for i in self.incidents(began) if i["action"] != "alert"]
        return {
            "case": case,
            "is_right": found.get("state") == "finished" and not found.get("restarts") and not told,
            "state": found.get("state"),
            "restarts": found.get("restarts"),
            "seconds": time.time() - began,
            "reported": sorted(texts)[:3],
            "incidents": told,
        }

    def hang(self, case: str, folder: Path) -> Json:
        kind, _, rank = case.partition("@")
        began, seen = time.time(), {"reported": None, "text": ""}

        def begun() -> float | None:
            marks = [float(path.read_text() or "nan") for path in folder.glob("begun-*")]
            return max(marks) if marks and (rank or len(marks) == WORLD) else None

        def look(job: Json) -> bool:
            pause, at = job.get("pause"), begun()
            if pause and at and seen["reported"] is None and pause["life"] == "idle":
                seen["reported"], seen["text"] = time.time() - at, pause["text"]
            return False

        found = self.follow(self.start("true_hangs.py", case, folder), look)
        self.clear()
        incidents = [i for i in self.incidents(began) if i["action"] != "alert"]
        first, at = (incidents[-1] if incidents else None), begun()
        named = first["culprit"] if first else ""
        life = (first["findings"][0]["evidence"].get("life") if first else None) or "none"
        return {
            "case": case,
            "kind": kind,
            "is_right": bool(first) and named == f"rank{rank or 1}" and found.get("state") == "finished",
            "life": life,
            "named": named,
            "seconds": first["opened"] - at if first and at else float("nan"),
            "reported_s": seen["reported"],
            "summary": first["summary"] if first else seen["text"],
            "state": found.get("state"),
        }

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


def torchrun(case: str, folder: Path, seconds: float) -> Json:
    nproc = 1 if "in-one-process" in case else WORLD
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(nproc)]
    command += [str(WORKERS / "honest_pauses.py"), case, str(folder), str(seconds)]
    began = time.time()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))
    try:
        code = process.wait(MOST_S)
    except subprocess.TimeoutExpired:
        code = None
    end(process)
    return {"case": case, "code": code, "seconds": time.time() - began}


def run_all(cases: list[tuple[str, str]], options: Any, root: Path) -> list[Json]:
    free: list[Slot] = []
    lock, clusters = threading.Lock(), []
    for n in range(options.parallel):
        cluster = LocalCluster(root / f"state{n}", nodes=1, slots=WORLD)
        cluster.start()
        clusters.append(cluster)
        free.append(Slot(cluster, options.seconds))

    def one(item: tuple[int, tuple[str, str]]) -> Json:
        number, (kind, case) = item
        folder = root / f"case{number}"
        folder.mkdir()
        with lock:
            slot = free.pop()
        try:
            result = slot.honest(case, folder) if kind == "honest" else slot.hang(case, folder)
        finally:
            with lock:
                free.append(slot)
        print(result, file=sys.stderr, flush=True)
        subprocess.run(["rm", "-rf", str(folder)], check=False)
        return {**result, "set": kind}

    try:
        with ThreadPoolExecutor(options.parallel) as pool:
            return list(pool.map(one, enumerate(cases)))
    finally:
        for cluster in clusters:
            cluster.stop()


def main() -> None:
    cli = parser(__doc__)
    cli.add_argument("--only", choices=("honest", "hangs"))
    cli.add_argument("--case", default="", help="those whose name holds this")
    cli.add_argument("--seconds", type=float, default=8.0, help="of most of the honest pauses")
    cli.add_argument("--parallel", type=int, default=2, help="clusters side by side")
    cli.add_argument("--torchrun", action="store_true", help="run the honest scripts under torchrun as well")
    options = cli.parse_args()
    cases = [("honest", case) for case in honest_cases() if options.only != "hangs"]
    cases += [("hang", case) for case in hang_cases() if options.only != "honest"]
    cases = [(kind, case) for kind, case in cases if options.case in case]
    with scratch() as root:
        found = run_all(cases, options, root)
        peers = []
        for number, (kind, case) in enumerate(cases if options.torchrun else []):
            if kind == "honest":
                (root / f"peer{number}").mkdir()
                peers.append(torchrun(case, root / f"peer{number}", options.seconds))
                print(peers[-1], file=sys.stderr, flush=True)
    report(found, peers, options.json)


def report(found: list[Json], peers: list[Json], as_json: bool) -> None:
    honest = [one for one in found if one["set"] == "honest"]
    hangs = [one for one in found if one["set"] == "hang"]
    dead = [one for one in hangs if one["life"] == "dead"]
    idle = [one for one in hangs if one["life"] == "idle"]
    times = [one["seconds"] for one in dead if one["is_right"]]
    reports = [one["reported_s"] for one in idle if one["reported_s"] is not None]
    rows = [
        ("honest pauses: holdfast", len(honest), sum(one["is_right"] for one in honest), "", ""),
        *([("honest pauses: torchrun", len(peers), sum(one["code"] == 0 for one in peers), "", "")] if peers else []),
        ("hangs that are dead", len(dead), len(times), _or_dash(times, median), _or_dash(times, max)),
        ("hangs that are idle, reported", len(idle), len(reports), _or_dash(reports, median), _or_dash(reports, max)),
        ("hangs, all: named right", len(hangs), sum(one["is_right"] for one in hangs), "", ""),
    ]
    result: Json = {
        "medians_s": {"holdfast": median(times) if times else None},
        "p99_s": {"holdfast": quantile(times, 0.99) if times else None},
        "honest_left_alone": sum(one["is_right"] for one in honest),
        "hangs_named_right": sum(one["is_right"] for one in hangs),
        "cases": found,
        "torchrun": peers,
    }
    for one in found:
        if not one["is_right"]:
            print(f"not right: {one}", file=sys.stderr)
    finish(result, as_json, ("case", "count", "right", "median, s", "longest, s"), rows)


def _or_dash(values: list[float], of: Any) -> object:
    return float(of(values)) if values else "-"


if __name__ == "__main__":
    main()
