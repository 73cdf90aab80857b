"""Detection time of a fault: from the instant of injection to the finding in the controller, on one host's clock.

python benchmarks/detection.py [--json] [--kills 60] [--only worker-killed ...]

A local cluster of 2 agents and 4 workers without torch that make a step every 100 ms and wait for each other in
every step. Faults are real signals to real processes, sent from outside at random moments:

    worker-killed     SIGKILL to a worker                     -> the controller has the finding
    agent-killed      SIGKILL to an agent (started again after)
    agent-stopped     SIGSTOP to an agent, default settings
    worker-stopped    SIGSTOP to a worker                     <= 3 median steps + 1 s
    gil-held          a worker that holds the GIL for ever    <= 3 median steps + 1 s
"""

import os
import random
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from common import Json, finish, parser, quantile, scratch, wait_for
from trees import HoldfastError, LocalCluster

STEP_S = 0.1
WORKER = Path(__file__).parent / "workers" / "stepping.py"
KINDS = {
    "worker-killed": {"worker-killed"},
    "agent-killed": {"agent-exit"},
    "agent-stopped": {"node-silent"},
    "worker-stopped": {"worker-stopped", "worker-hang"},
    "gil-held": {"worker-hang"},
}


class Bench:
    def __init__(self, cluster: LocalCluster, folder: Path, seed: int, nodes: int = 2) -> None:
        self.nodes = nodes
        self.cluster, self.client = cluster, cluster.client
        self.random = random.Random(seed)
        self.missed = 0
        self.wrong: list[str] = []
        program = {"target": str(WORKER), "args": ["--seconds", str(STEP_S), "--barrier", str(folder / "barrier")],
                   "module": False, "cwd": os.getcwd(), "env": {}, "hooks": False, "warm": True}  # fmt: skip
        self.client.submit({"name": "steps", "program": program, "nnodes": nodes, "nproc_per_node": 2,
                            "max_restarts": 1_000_000})  # fmt: skip
        self.settled()

    def settled(self) -> None:
        """All is well again: a few steps of the newest generation, no incident open, every agent there."""
        begin = wait_for("a running job", 60, self.well, despite=(HoldfastError,))["step"]
        wait_for("steps", 60, lambda: (job := self.well()) and job["step"] >= begin + 8, despite=(HoldfastError,))

    def well(self) -> Any:
        status = self.client.status()
        job = status["job"]
        healthy = sum(state == "healthy" for state in status["nodes"].values()) == self.nodes
        return job if healthy and job and job["state"] == "running" and not status["open_incidents"] else None

    def worker(self) -> tuple[int, int]:
        """A rank and its process."""
        rank = self.random.randrange(4)
        return rank, self.process(rank)

    def process(self, rank: int) -> int:
        """The process of a rank of the running generation."""
        job = self.client.job()
        assert job is not None
        marker = f"HOLDFAST_WORKER={job['id']}/{job['generation']}/{rank}".encode()
        for process in Path("/proc").iterdir():
            if process.name.isdigit():
                try:
                    if marker in (process / "environ").read_bytes().split(b"\0"):
                        return int(process.name)
                    if (process / "comm").read_text().strip() == f"holdfast-r{rank}" and self.ours(process, rank, job):
                        return int(process.name)
                except OSError:
                    continue
        raise SystemExit(f"no process of rank {rank}")

    def ours(self, process: Path, rank: int, job: Json) -> bool:
        """A forked worker's environment in /proc is its parent's: it is known by the probe file that it maps."""
        return f"/{job['id']}-g{job['generation']}-rank{rank}" in (process / "maps").read_text()

    def agent(self) -> tuple[int, int]:
        node = self.random.randrange(2)
        return node, self.cluster.pids()[f"node{node}"]

    def inject(self, kind: str) -> float | None:
        """One fault; how long until the finding, None if none came. The cluster is whole again afterwards."""
        time.sleep(self.random.random() * 0.3)
        stopped = 0
        if kind in ("agent-killed", "agent-stopped"):
            node, pid = self.agent()
            subject = f"node{node}"
        else:
            rank, pid = self.worker()
            subject = f"rank{rank}"
        number = {"worker-killed": signal.SIGKILL, "agent-killed": signal.SIGKILL, "agent-stopped": signal.SIGSTOP,
                  "worker-stopped": signal.SIGSTOP, "gil-held": signal.SIGUSR2}[kind]  # fmt: skip
        at = time.time()
        os.kill(pid, number)
        stopped = pid if number == signal.SIGSTOP else 0
        try:
            finding = wait_for("finding", 20, lambda: self.finding(kind, subject, at), despite=(HoldfastError,))
        except TimeoutError:
            self.missed += 1
            finding = None
        finally:
            if stopped:
                with suppress(ProcessLookupError):
                    os.kill(stopped, signal.SIGCONT)
        self.settled()
        return finding["at"] - at if finding else None

    def finding(self, kind: str, subject: str, since: float) -> Any:
        for incident in self.client.incidents():
            for finding in incident["findings"]:
                if finding["at"] < since:
                    continue
                if finding["kind"] in KINDS[kind] and finding["subject"] == subject:
                    return finding
        return None

    def false_findings(self, injected: int) -> int:
        """Incidents beyond those that were asked for."""
        return len(self.client.incidents()) - injected


def main() -> None:
    cli = parser(__doc__)
    cli.add_argument("--kills", type=int, default=60, help="workers to kill")
    cli.add_argument("--others", type=int, default=12, help="times for each other fault")
    cli.add_argument("--seed", type=int, default=1)
    cli.add_argument("--only", nargs="*", choices=list(KINDS), default=list(KINDS))
    options = cli.parse_args()
    found: dict[str, list[float]] = {}
    with (
        scratch() as folder,
        LocalCluster(folder / "state", nodes=2, slots=2, agent_flags=["--preload", ""]) as cluster,
    ):
        bench = Bench(cluster, folder, options.seed)
        for kind in options.only:
            count = options.kills if kind == "worker-killed" else options.others
            times = [bench.inject(kind) for _ in range(count)]
            found[kind] = [t for t in times if t is not None]
            print(f"{kind}: {len(found[kind])} of {count}", file=sys.stderr)
        injected = sum(options.kills if kind == "worker-killed" else options.others for kind in options.only)
        extra = bench.false_findings(injected)
        median_step = (cluster.client.job() or {}).get("step_seconds") or STEP_S
        report(found, bench.missed, extra, median_step, options)


def report(found: dict[str, list[float]], missed: int, extra: int, median_step: float, options: Any) -> None:
    hang = 3 * median_step + 1
    goals = {"worker-killed": 0.05, "agent-killed": 0.1, "agent-stopped": 1.0, "worker-stopped": hang, "gil-held": hang}
    rows: list[tuple[object, ...]] = []
    found = {kind: times for kind, times in found.items() if times}  # the others are among the missed
    for kind, times in found.items():
        rows.append((
            kind, len(times), median(times) * 1e3, quantile(times, 0.99) * 1e3, max(times) * 1e3,
            f"p99 <= {goals[kind] * 1e3:.0f}",
        ))  # fmt: skip
    result: Json = {
        "medians_s": {"holdfast": {kind: median(times) for kind, times in found.items()}},
        "p99_s": {"holdfast": {kind: quantile(times, 0.99) for kind, times in found.items()}},
        "goals_s": {kind: goals[kind] for kind in found},
        "times_s": found,
        "median_step_s": median_step,
        "missed": missed,
        "incidents_beyond_those_injected": extra,
    }
    finish(result, options.json, ("fault", "times", "median, ms", "p99, ms", "max, ms", "goal, ms"), rows)
    if not options.json:
        print(f"missed: {missed}; incidents beyond those injected: {extra}; median step {median_step * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
