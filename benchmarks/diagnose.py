"""`holdfast diagnose` on hosts with injected faults: is the faulty one found, is a healthy one blamed?

    python benchmarks/diagnose.py [--placements 10] [--hosts 8] [--seed 0] [--json]     (as root)

Eight hosts, a network namespace each, under two bridges, with real agents and a real controller. In every placement
four hosts drawn at random are broken, each in its way: link limited by tc to 30 % of the others', 1 % of packets lost,
processor held to 30 %, matrix products with a wrong element now and then. Then `holdfast diagnose --test gemm --test
pair` must fail these four and no other.
"""

import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

from common import Json, finish, from_tests, parser

FAULTS = ("slow link", "lossy link", "slow processor", "wrong numbers")


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--placements", type=int, default=10)
    arguments.add_argument("--hosts", type=int, default=8)
    arguments.add_argument("--seed", type=int, default=0)
    given = arguments.parse_args()
    fabric = from_tests("diagnostics.support.fabric")
    why = fabric.missing()
    if why:
        print(f"cannot run here: {why}", file=sys.stderr)
        return 1
    draw = random.Random(given.seed)
    found = dict.fromkeys(FAULTS, 0)
    blamed, seconds, rounds = 0, [], []
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-diagnose-") as folder,
        fabric.Fabric(Path(folder), given.hosts) as hosts,
    ):
        for placement in range(given.placements):
            victims = dict(zip(FAULTS, draw.sample(hosts.names, len(FAULTS)), strict=True))
            hosts.break_hosts(victims)
            start = time.monotonic()
            doc = hosts.ask("diagnose", "--test", "gemm", "--test", "pair")
            seconds.append(time.monotonic() - start)
            rounds.append(doc["rounds"])
            hosts.mend_hosts(victims)
            for fault, victim in victims.items():
                found[fault] += victim in doc["failed"]
            healthy = sorted(set(doc["failed"]) - set(victims.values()))
            blamed += len(healthy)
            missed = [f"{fault} on {victim}" for fault, victim in victims.items() if victim not in doc["failed"]]
            said = f"missed {missed}, blamed {healthy}" if missed or healthy else "right"
            print(f"placement {placement}: {said}, {seconds[-1]:.1f} s", file=sys.stderr, flush=True)
            if missed:
                speeds = {v["node"]: v["value"] for v in doc["verdicts"] if v["metric"] == "flops"}
                print(f"  speeds {speeds}", file=sys.stderr, flush=True)
    result: Json = {
        "placements": given.placements, "hosts": given.hosts, "found": found, "healthy_blamed": blamed,
        "medians_s": {"holdfast": statistics.median(seconds)}, "most_s": max(seconds), "most_rounds": max(rounds),
    }  # fmt: skip
    rows = [(fault, f"{count} of {given.placements}") for fault, count in found.items()]
    rows += [("healthy hosts failed", blamed), ("seconds, median", statistics.median(seconds)),
             ("seconds, most", max(seconds)), ("rounds, most", max(rounds))]  # fmt: skip
    finish(result, given.json, ("fault", "found"), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
