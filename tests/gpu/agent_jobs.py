"""Jobs with the script `unmodified.py` on a cluster of this machine, and what is said of them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.cli.local.cluster import LocalCluster

Json = dict[str, Any]
SCRIPT = Path(__file__).parent / "scripts" / "unmodified.py"
FLAGS = ("--hang-floor", "3s")
DEBUG = {"HOLDFAST_LOG_LEVEL": "debug"}
NOTHING = ("=0.0", "=''", "=nan", "=False", "=0", "=None")


def submit(cluster: LocalCluster, folder: Path, what: str, ranks: int, ras: int, limits: Json | None = None) -> None:
    """`ras`: a port for NCCL's RAS of this job alone."""
    env = {"OMP_NUM_THREADS": "1", "NCCL_RAS_ADDR": f"127.0.0.1:{ras}"}
    program = {"target": str(SCRIPT), "args": [str(folder), what], "module": False, "cwd": str(folder), "env": env,
               "hooks": True, "warm": True}  # fmt: skip
    cluster.client.submit({"name": what, "program": program, "nnodes": ranks, "nproc_per_node": 1, "max_restarts": 3,
                           "limits": limits})  # fmt: skip


class Pauses:
    """All that was reported of a job's pauses."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.seen: list[tuple[str, str, list[int], str]] = []
        """What had begun, then the pause's life, ranks and text; each once."""

    def follow(self, until: Callable[[Json], object], folder: Path, deadline_s: float = 50.0) -> Json:
        end = time.monotonic() + deadline_s
        while True:
            job: Json = self._cluster.client.job() or {}
            begun = sorted(folder.glob("*.begun"), key=lambda path: path.stat().st_mtime)
            if pause := job.get("pause"):
                one = (begun[-1].stem if begun else "", pause["life"], pause["ranks"], pause["text"])
                if [row[:3] for row in self.seen[-1:]] != [one[:3]]:
                    self.seen.append(one)
                    print("pause:", one)
            if until(job):
                return job
            assert job.get("state") not in ("finished", "failed", "stopped"), f"{job}\n{self.logs()}"
            assert time.monotonic() < end, f"{job}\n{self.logs()}"
            time.sleep(0.1)

    def logs(self) -> str:
        """The ends of what daemons and workers wrote."""
        found = sorted(self._cluster.state_dir.rglob("*.log")) + sorted(self._cluster.state_dir.rglob("*.err"))
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in found[:12])


def evidence(cluster: LocalCluster, every_s: float = 0.5) -> None:
    """What each agent saw of its workers at a standstill, in the order of time: needs HOLDFAST_LOG_LEVEL=debug."""
    for path in sorted(cluster.state_dir.rglob("*.log")):
        rows: list[Json] = []
        for line in path.read_text(errors="replace").splitlines():
            if '"event": "activity.' in line or '"event": "ras.' in line:
                with suppress(ValueError):  # a line that is not yet whole
                    rows.append(json.loads(line))
        shown, last = 0, -1.0
        for row in rows:
            event = row.pop("event")
            at = row.pop("at")
            if event == "activity.seen":
                if at - last < every_s:
                    continue
                last = at
                parts = str(row["activity"]).removeprefix("Activity(").removesuffix(")").split(", ")
                kept = " ".join(part for part in parts if not part.endswith(NOTHING))
                row["activity"] = re.sub(r"(\.\d\d)\d+", r"\1", kept)
            elif event == "activity.moves" and shown > 60:
                continue
            shown += 1
            fields = {key: value for key, value in row.items() if key not in ("level", "pid")}
            print(f"{path.name} {at % 1000:7.2f} {event} {fields}"[:420])
            if shown > 120:
                break


def report(cluster: LocalCluster) -> list[Json]:
    """Print the incidents, the first one first."""
    found = [cluster.client.incident(one["id"]) for one in reversed(cluster.client.incidents())]
    for one in found:
        print(f"incident: {one['kind']} {one['culprit']}, {one['action']}: {one['summary']}")
        for finding in one["findings"]:
            print("   ", finding["text"], finding.get("evidence"))
        for row in (one.get("stacks") or {}).get("rows", [])[:12]:
            print("   ", row)
    return found
