"""Ends of real jobs: a last rank that does not end by itself, and a worker that a debugger has when it is killed."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.local.cluster import LocalCluster
from tests.agent.support.tracing import traced
from tests.e2e.daemons import Commands, acted_on, stop_job, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.calm, pytest.mark.timeout(240)]

SCRIPT = str(Path(__file__).parent / "scripts" / "leaving.py")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    patient = ("--hang-floor", "3s")
    with LocalCluster(tmp_path_factory.mktemp("cluster"), nodes=1, slots=2, controller_flags=patient) as one:
        yield one


def test_a_rank_that_joins_a_thread_for_ever_is_ended_and_the_job_is_finished(
    holdfast: Commands, cluster: LocalCluster, tmp_path: Path
) -> None:
    """Its idle limit is shorter: it would be restarted again and again."""
    flags = ["--nproc-per-node", "2", "--idle-limit", "2s", "--idle-limit-start", "2s", "--exit-limit", "8s"]
    run = holdfast.start("run", "--controller", cluster.http, *flags, SCRIPT, "threads", str(tmp_path))
    assert run.wait(150) == 0, run.err[-4000:]
    job = cluster.client.job()
    assert job is not None
    assert (job["state"], job["exit_code"], job["restarts"]) == ("finished", 0, 0)
    assert "1 of 2 ranks ended with exit code 0; rank 0 was still running" in job["reason"]
    assert "rank 0 was still running" in run.err.replace("Rank", "rank")
    assert len(list(tmp_path.glob("began-*"))) == 2  # each once


def test_a_worker_that_a_debugger_has_is_replaced_at_once_and_counts_against_no_node(
    holdfast: Commands, cluster: LocalCluster, tmp_path: Path
) -> None:
    flags = ["--nproc-per-node", "2"]
    run = holdfast.start("run", "--controller", cluster.http, *flags, SCRIPT, "steps", str(tmp_path))
    pids = [tmp_path / f"began-1-{rank}" for rank in (0, 1)]
    wait_for(lambda: all(path.exists() and path.read_text() for path in pids), 60, lambda: run.err)
    wait_for(lambda: (cluster.client.job() or {}).get("step", -1) >= 3)
    try:
        with traced(int(pids[1].read_text())):
            os.kill(int(pids[0].read_text()), signal.SIGKILL)
            wait_for(lambda: (job := cluster.client.job()) and job["generation"] >= 2 and job["state"] == "running")
            wait_for(lambda: len(list(tmp_path.glob("began-2-*"))) == 2)
        (tmp_path / "end").touch()
        assert run.wait(60) == 0, run.err[-4000:]
    finally:
        stop_job(cluster.client)
    assert all(incident["action"] == "restart" for incident in acted_on(cluster.client.incidents()))
    (node,) = cluster.client.nodes()
    assert node["state"] in ("healthy", "spare"), node
