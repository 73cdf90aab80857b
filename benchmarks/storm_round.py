"""One round of `storm.py`, in one tree: clusters side by side, gusts of faults in each, other work on the processors.

python benchmarks/storm_round.py --seed 1 --gusts 12 --clusters 2 --load 2

Started by storm.py with PYTHONPATH at the tree. Prints one JSON object a cluster.
"""

import argparse
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from common import Json, end, scratch
from detection import Bench
from storm_account import Account, Fault, Hit, gusts, resolve
from trees import HoldfastError, LocalCluster

SIGNALS = {
    "worker-killed": signal.SIGKILL, "worker-segfault": signal.SIGSEGV, "worker-exit": signal.SIGRTMIN + 1,
    "worker-asleep": signal.SIGRTMIN + 2, "worker-exception": signal.SIGRTMIN + 3, "worker-stopped": signal.SIGSTOP,
    "gil-held": signal.SIGUSR2, "agent-killed": signal.SIGKILL, "agent-stopped": signal.SIGSTOP,
}  # fmt: skip
"""What workers/stepping.py does on each of them; processes are hit from outside."""
BURN = "while True: sum(range(1_000_000))"


class Storm(Bench):
    def gust(self, faults: list[Fault]) -> tuple[list[Hit], int]:
        """Faults that overlap, until each is found, overtaken or missed; and incidents that name no hit worker."""
        known = {incident["id"] for incident in self.client.incidents()}
        began = time.monotonic()
        hits: list[Hit] = []
        pids: dict[str, int] = {}
        for fault in faults:
            time.sleep(max(0.0, began + fault.after_s - time.monotonic()))
            with suppress(HoldfastError, SystemExit, ProcessLookupError):  # no such process just now
                if target := self.target(fault, pids):
                    subject, pid = target
                    hits.append(Hit(fault.kind, subject, time.time()))
                    pids[subject] = pid
                    os.kill(pid, SIGNALS[fault.kind])
        self.follow(hits)
        for hit in hits:
            with suppress(ProcessLookupError):
                if hit.kind.endswith("stopped"):
                    os.kill(pids[hit.subject], signal.SIGCONT)
                elif hit.kind == "worker-asleep":  # one that is only reported is left alone for its limit
                    os.kill(pids[hit.subject], signal.SIGKILL)
        self.settled()
        names = {hit.subject for hit in hits}
        new = [one for one in self.client.incidents() if one["id"] not in known]
        beyond = [one for one in new if not names & {finding["subject"] for finding in one["findings"]}]
        for one in beyond:
            print(f"beyond: {one['summary']} while {[(hit.kind, hit.subject) for hit in hits]}", file=sys.stderr)
        return hits, len(beyond)

    def follow(self, hits: list[Hit]) -> None:
        reports: dict[str, float] = {}
        while True:
            findings: list[Json] = []
            with suppress(HoldfastError):
                findings = [finding for one in self.client.incidents() for finding in one["findings"]]
                pause = (self.client.job() or {}).get("pause") or {}
                for rank in pause.get("ranks", ()) if pause.get("waiting") else ():
                    reports.setdefault(f"rank{rank}", time.time())
            if resolve(hits, findings, reports, time.time()):
                return
            time.sleep(0.02)

    def target(self, fault: Fault, taken: dict[str, int]) -> tuple[str, int] | None:
        """An agent or a worker on a node of which nothing has been hit in this gust."""
        job = self.client.job()
        if job is None:
            return None
        places = {entry["node"]: entry["ranks"] for entry in job["assignment"]}
        free = [
            node
            for node, ranks in sorted(places.items())
            if node not in taken and not any(f"rank{rank}" in taken for rank in ranks)
        ]
        if not free:
            return None
        node = free[int(fault.choice * len(free))]
        if fault.is_agents:
            return node, self.cluster.pids()[node]
        rank = places[node][int(fault.choice * 7919) % len(places[node])]
        return f"rank{rank}", self.process(rank)


def play(folder: Path, number: int, options: Any) -> Account:
    account = Account()
    cluster = LocalCluster(folder / f"state{number}", nodes=3, slots=2, agent_flags=["--preload", ""])
    with cluster:
        barrier = folder / f"run{number}"
        barrier.mkdir()
        storm = Storm(cluster, barrier, options.seed, nodes=3)
        for faults in gusts(options.seed * 100 + number, options.gusts):
            hits, beyond = storm.gust(faults)
            account.add(hits, beyond)
            print(*((hit.kind, hit.subject, hit.state, hit.found) for hit in hits), file=sys.stderr, flush=True)
    return account


def main() -> None:
    cli = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cli.add_argument("--seed", type=int, default=1)
    cli.add_argument("--gusts", type=int, default=12)
    cli.add_argument("--clusters", type=int, default=2)
    cli.add_argument("--load", type=int, default=2)
    options = cli.parse_args()
    burners = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(options.load)]
    try:
        with scratch() as folder, ThreadPoolExecutor(options.clusters) as pool:
            for account in pool.map(lambda number: play(folder, number, options), range(options.clusters)):
                print(json.dumps(dataclasses.asdict(account)), flush=True)
    finally:
        for burner in burners:
            end(burner)


if __name__ == "__main__":
    main()
