"""Every kind of fault on eight hosts and two spares: is it found, is the right node blamed, is the right action taken?

    python benchmarks/chaos.py [--injections 12] [--seed 1] [--skip 0] [--kinds NAME ...] [--json]     (as root)
    python benchmarks/chaos.py --calm 200 --out calm.json
    python benchmarks/chaos.py --merge part1.json part2.json ... --reference calm.json

Hosts are namespaces (network, processes, mounts) under two bridges with one link between them; controller, agents
(mutual TLS), trainer (pp 2 x dp 2 x tp 2, one worker a host) and checkpoints in the nodes' memory, with copies at
peers, are the real ones. Faults come one after the other, those that only alert four at once, at places and moments
drawn by `--seed`; evicted hosts are repaired and serve as spares. `--calm` only trains. `--skip` goes on in
the schedule of a seed, `--merge` adds portions up: their losses must agree with those of a calm run, and with each
other's, bit for bit.
"""

import argparse
import json
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from chaos_campaign import Campaign
from chaos_faults import KINDS, LIMITS, schedule
from chaos_hosts import Hosts, missing
from chaos_report import compared, merge, report
from common import Json, parser

FLAGS = ["--max-evictions", "1000", "--detectors", ",".join(f"{name}={value}" for name, value in LIMITS.items())]


def arguments() -> argparse.ArgumentParser:
    found = parser(__doc__)
    found.add_argument("--injections", type=int, default=12)
    found.add_argument("--seed", type=int, default=1)
    found.add_argument("--skip", type=int, default=0, help="injections of this seed that were done in earlier portions")
    found.add_argument("--kinds", nargs="+", choices=sorted(KINDS), metavar="NAME", help="only these")
    found.add_argument("--seconds", type=float, default=600, help="no further injection after so long")
    found.add_argument("--quiet-seconds", type=float, default=5, help="undisturbed training before the first fault")
    found.add_argument("--calm", type=float, default=0, help="only train undisturbed, for so many seconds")
    found.add_argument("--reference", type=Path, help="result of a run with --calm: losses are compared with its")
    found.add_argument("--out", type=Path, help="file for the raw result, for --merge and --reference")
    found.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="add up the results in these files")
    found.add_argument("--keep", type=Path, help="folder for logs and state, which stays")
    return found


def run(given: argparse.Namespace, folder: Path) -> Json:
    kinds = given.kinds or [name for name, kind in KINDS.items() if kind.drawn]
    began = time.monotonic()
    with Hosts(folder, 10, FLAGS) as hosts:
        campaign = Campaign(hosts, folder)
        campaign.settle("first steps", 200)
        campaign.calm(given.calm or given.quiet_seconds)
        done = 0
        for names, draw in schedule(kinds, given.seed):
            if given.calm or done >= given.skip + given.injections or time.monotonic() - began > given.seconds:
                break
            if done >= given.skip:
                campaign.inject(names, draw)
            done += len(names)
            if campaign.failure:
                print(f"chaos: {campaign.failure}", file=sys.stderr)
                break
        campaign.end()
    return {"seed": given.seed, "next": done, **asdict(campaign.result)}


def main() -> int:
    given = arguments().parse_args()
    calm = [json.loads(given.reference.read_text())] if given.reference else []
    if given.merge:
        results = [json.loads(path.read_text()) for path in given.merge]
        report(merge([compared(one, [*results, *calm]) for one in results]), given.json)
        return 0
    if why := missing():
        print(f"cannot run here: {why}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is taken down
    with tempfile.TemporaryDirectory(prefix="holdfast-chaos-", ignore_cleanup_errors=True) as scratch:
        folder = given.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        result = run(given, folder)
    if given.out:
        given.out.write_text(json.dumps(result))
    report(compared(result, calm), given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
