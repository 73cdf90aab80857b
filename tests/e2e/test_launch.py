"""The controller is killed at many moments of a launch: what was started goes on, and nothing is started twice."""

import collections
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.base.errors import Unavailable
from holdfast.cli.local.cluster import LocalCluster
from holdfast.cli.local.daemon import QUICK_S
from tests.e2e.daemons import Commands, Json, wait_for
from tests.e2e.test_run import WARM_S, Runs, script, worker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

NOTES_ITS_START = """
import os, sys, time
from holdfast.agent import probe
folder, = sys.argv[1:]
generation, rank = os.environ["HOLDFAST_GENERATION"], os.environ["RANK"]
with open(f"{folder}/starts", "a") as file:
    file.write(f"{generation} {rank}\\n")
probe.phase("train")
n = 0
while not os.path.exists(f"{folder}/end"):
    time.sleep(0.02)
    probe.step(n)
    n += 1
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    patient = ("--hang-floor", "5s", "--silence-floor", "30s")  # with an agent that a test holds up, too
    with LocalCluster(tmp_path_factory.mktemp("cluster"), nodes=2, slots=2, controller_flags=patient) as one:
        yield one


@pytest.fixture
def runs(holdfast: Commands, cluster: LocalCluster) -> Runs:
    return Runs(holdfast, cluster)


def starts(folder: Path) -> collections.Counter[str]:
    path = folder / "starts"
    return collections.Counter(path.read_text().splitlines() if path.exists() else ())


def expected(generations: int) -> collections.Counter[str]:
    return collections.Counter(f"{g} {r}" for g in range(1, generations + 1) for r in range(4))


class Orders:
    """Counts what agents have answered from now on."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.logs = [cluster.state_dir / "logs" / f"{name}.log" for name in cluster.node_names]
        self.before = self.count()

    def count(self) -> int:
        return sum(path.read_text(errors="replace").count('"command"') for path in self.logs)

    def wait(self, more: int) -> None:
        wait_for(lambda: self.count() - self.before >= more, WARM_S)


def job(cluster: LocalCluster) -> Json:
    try:
        return cluster.client.job() or {}
    except Unavailable:
        return {}


def wait_until_running(cluster: LocalCluster, generation: int) -> Json:
    def where() -> tuple[object, object]:
        found = job(cluster)
        return found.get("state"), found.get("generation")

    wait_for(lambda: where() == ("running", generation), WARM_S, where)
    return job(cluster)


def kill_controller(cluster: LocalCluster) -> None:
    """Once it has run long enough for the cluster not to mark it failed."""
    stable = time.monotonic() + QUICK_S
    cluster.kill_controller()
    wait_for(lambda: time.monotonic() > stable and bool(job(cluster)), WARM_S)


@pytest.mark.parametrize(("first", "second"), [(0, 3), (1, 4), (2, 2)])
def test_a_controller_that_is_killed_in_a_launch_adopts_it(
    runs: Runs, cluster: LocalCluster, tmp_path: Path, first: int, second: int
) -> None:
    """How many answers to orders the agents had given before the kill, in the launch of the job and of its restart."""
    seen = Orders(cluster)
    submit = runs.start("--nnodes", "2", "--nproc-per-node", "2", script(tmp_path, NOTES_ITS_START), str(tmp_path))
    wait_for(lambda: job(cluster).get("state") in ("starting", "running"), WARM_S)
    seen.wait(first)
    kill_controller(cluster)
    wait_for(lambda: starts(tmp_path) == expected(1), WARM_S, lambda: starts(tmp_path))
    assert wait_until_running(cluster, 1)["restarts"] == 0
    seen = Orders(cluster)
    os.kill(worker(cluster, 3), signal.SIGKILL)
    seen.wait(second)
    kill_controller(cluster)
    wait_for(lambda: starts(tmp_path) == expected(2), WARM_S, lambda: starts(tmp_path))
    wait_until_running(cluster, 2)
    (tmp_path / "end").touch()
    assert submit.wait(WARM_S) == 0, submit.err[-4000:]
    assert starts(tmp_path) == expected(2)


def submit(cluster: LocalCluster, path: str) -> None:
    folder = str(Path(path).parent)
    program = {"target": path, "args": [folder], "module": False, "cwd": folder, "env": {}, "hooks": True,
               "warm": True}  # fmt: skip
    cluster.client.submit({"name": "launch", "program": program, "nnodes": 2, "nproc_per_node": 2})


def ends(cluster: LocalCluster) -> None:
    wait_for(lambda: job(cluster)["state"] == "finished", WARM_S, lambda: job(cluster))


def test_the_incident_says_that_the_launch_was_adopted(cluster: LocalCluster, tmp_path: Path) -> None:
    """One agent is stopped before its order comes, so that the launch is under way for as long as is needed."""
    before = len(cluster.client.incidents())
    agent = cluster.pids()["node1"]
    path = script(tmp_path, NOTES_ITS_START)
    (tmp_path / "end").touch()
    submit(cluster, path)  # once at leisure: the first launch of all waits for torch's import
    ends(cluster)
    (tmp_path / "end").unlink()
    (tmp_path / "starts").unlink()
    os.kill(agent, signal.SIGSTOP)
    try:
        submit(cluster, path)
        wait_for(lambda: len(starts(tmp_path)) == 2, WARM_S, lambda: job(cluster))
        assert (job(cluster)["state"], job(cluster)["generation"]) == ("starting", 1)
        kill_controller(cluster)
    finally:
        os.kill(agent, signal.SIGCONT)
    wait_until_running(cluster, 1)

    def reported() -> list[Json]:
        new = list(reversed(cluster.client.incidents()))[before:]
        return [one for one in new if one["kind"] == "controller-restart" and one["state"] == "closed"]

    wait_for(reported, 60, lambda: cluster.client.incidents())
    (incident,) = reported()
    assert incident["summary"].endswith("generation 1 was being launched when it stopped")
    assert incident["reason"].startswith("node0")
    assert "had the workers of generation 1" in incident["reason"]
    assert incident["reason"].endswith(": the launch was adopted, no worker was stopped")
    (tmp_path / "end").touch()
    ends(cluster)
    assert starts(tmp_path) == expected(1)
