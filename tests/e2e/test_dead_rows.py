"""Honest scripts that were once ended, or come close to a proof, each as a job at default settings: it ends with 0, in
its first life.

All rows are submitted at once, and run as nodes become free: a node each.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.local.cluster import LocalCluster
from tests.e2e.daemons import acted_on, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(660)]

Json = dict[str, Any]
SCRIPT = Path(__file__).parent / "scripts" / "dead_rows.py"
NODES, RANKS = 2, 3
OVER = ("finished", "failed", "stopped")
ENDED_S = 600.0
"""From the submission of all: the last one waits for a node, on a machine that may be busy."""
FREEZERS = Path("/sys/fs/cgroup/freezer")
FREEZER = os.access(FREEZERS, os.W_OK)
NEEDS: dict[str, Callable[[], object]] = {
    "recompiles-in-forward": lambda: shutil.which(os.environ.get("CXX", "g++")),
    "traced-by-a-debugger": lambda: shutil.which("gdb"),
    "all-workers-frozen": lambda: FREEZER,
    "one-rank-frozen": lambda: FREEZER,
}
LIMITS = {
    "retries-with-backoff": {"idle_limit": 5.0},
    "a-thread-ends-after-the-training": {"idle_limit": 4.0, "idle_limit_start": 4.0},
}
"""Limits of rows that would take more than a minute at the default ones."""
ROWS = (
    "idle-in-forward", "computes-in-forward", "recompiles-in-forward", "idle-in-backward",
    "idle-in-a-hook-of-backward", "idle-between-backward-and-step", "idle-before-the-next-micro-batch",
    "idle-with-an-update-of-its-own", "executes-itself-again", "reads-with-the-interpreters-lock",
    "a-thread-coordinates-a-checkpoint", "a-pair-goes-on-after-the-third-has-ended", "traced-by-a-debugger",
    "retries-with-backoff", "a-thread-ends-after-the-training", "all-workers-stopped", "whole-node-stopped",
    "all-workers-frozen", "one-rank-frozen", "the-compiler-of-one-rank-waits-for-a-child",
    "one-of-the-world-is-from-elsewhere", "unpickles-within-a-collective",
    "two-threads-leave-their-operations-out-of-order", "one-rank-fell-back-to-eager", "peers-come-late-to-a-new-group",
)  # fmt: skip


class Jobs:
    """One for each row that is asked for."""

    def __init__(self, cluster: LocalCluster, folder: Path, rows: list[str]) -> None:
        self.cluster, self.folder = cluster, folder
        self.ids = {row: self._submit(row) for row in rows}
        self.deadline = time.monotonic() + ENDED_S

    def _submit(self, row: str) -> str:
        (self.folder / row).mkdir()
        program = {"target": str(SCRIPT), "args": [row, str(self.folder / row)], "module": False, "hooks": True,
                   "warm": True, "cwd": str(self.folder / row), "env": {"OMP_NUM_THREADS": "1"}}  # fmt: skip
        spec = {"name": row, "program": program, "nnodes": 1, "nproc_per_node": RANKS, "limits": LIMITS.get(row)}
        return self.cluster.client.submit(spec)

    def of(self, row: str) -> Json:
        found = self.cluster.client.job(self.ids[row])
        assert found is not None
        return found

    def pass_the_agent_on(self, row: str) -> None:
        """The row that stops its node stops the agent as well."""
        self._until(lambda: self.of(row)["assignment"], row)
        (part,) = self.of(row)["assignment"]
        path = self.folder / row / "agent"
        path.with_suffix(".part").write_text(str(self.cluster.pids()[part["node"]]))
        path.with_suffix(".part").rename(path)

    def ended(self, row: str) -> Json:
        """As it ended, or in a life that is not its first."""
        self._until(lambda: self.of(row)["state"] in OVER or self.of(row)["generation"] > 1, row)
        found = self.of(row)
        if found["state"] not in OVER:
            self.stop(row)  # others wait for its node
        return found

    def stop(self, row: str) -> None:
        for path in (self.folder / row).glob("pid-*"):  # frozen ones do not even die
            for group in FREEZERS.glob(f"dead-rows-{path.read_text()}"):
                (group / "freezer.state").write_text("THAWED")
        if self.of(row)["state"] not in OVER:
            self.cluster.client.stop(0.0, self.ids[row])

    def _until(self, what: Callable[[], object], row: str) -> None:
        wait_for(what, max(1.0, self.deadline - time.monotonic()), lambda: self.of(row))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("rows"), nodes=NODES, slots=RANKS) as one:
        yield one


@pytest.fixture(scope="module")
def jobs(
    cluster: LocalCluster, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Jobs]:
    asked = [item.callspec.params["row"] for item in request.session.items if hasattr(item, "callspec")
             and item.path == request.path and "row" in item.callspec.params]  # fmt: skip
    rows = [row for row in asked if NEEDS.get(row, lambda: True)()]
    started = Jobs(cluster, tmp_path_factory.mktemp("jobs"), rows)
    yield started
    for row in rows:
        started.stop(row)


@pytest.mark.parametrize("row", ROWS)
def test_an_honest_script_is_not_ended(jobs: Jobs, cluster: LocalCluster, row: str) -> None:
    if row not in jobs.ids:
        pytest.skip("what it needs is not on this machine")
    if row == "whole-node-stopped":
        jobs.pass_the_agent_on(row)
    job = jobs.ended(row)
    incidents = acted_on(cluster.client.incidents(jobs.ids[row]))
    said = [one["summary"] for one in incidents]
    assert (job["state"], job["exit_code"], job["generation"], job["restarts"]) == ("finished", 0, 1, 0), said
    assert said == []
    assert len(list((jobs.folder / row).glob("done-*"))) == RANKS
    assert {node["state"] for node in cluster.client.nodes()} <= {"healthy", "spare"}
