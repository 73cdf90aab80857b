"""Two hosts, as Holdfast and NCCL see it, with a rank each on the same GPU: one dies, or they hang for real."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.local.cluster import LocalCluster
from tests.e2e.daemons import acted_on
from tests.e2e.test_run import worker
from tests.gpu import agent_jobs as jobs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(110)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    print()
    with LocalCluster(tmp_path / "state", nodes=2, controller_flags=jobs.FLAGS, env=jobs.DEBUG) as one:
        yield one


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    one = tmp_path / "job"
    one.mkdir()
    return one


def test_a_rank_that_is_killed_is_replaced(cluster: LocalCluster, folder: Path, free_port: int) -> None:
    jobs.submit(cluster, folder, "ddp", 2, free_port)
    pauses = jobs.Pauses(cluster)
    pauses.follow(lambda job: job.get("state") == "running" and job["step"] >= 30, folder)
    os.kill(worker(cluster, 1), signal.SIGKILL)
    killed = time.monotonic()
    pauses.follow(lambda job: job.get("generation") == 2 and job["state"] == "running" and job["step"] >= 31, folder)
    print(f"a step of the second life {time.monotonic() - killed:.1f} s after the kill")
    job = pauses.follow(lambda job: job.get("state") not in ("starting", "running"), folder)
    (incident,) = acted_on(jobs.report(cluster))
    assert (job["state"], job["generation"], job["exit_code"]) == ("finished", 2, 0)
    assert (incident["kind"], incident["culprit"]) == ("worker-killed", "rank1")


@pytest.mark.parametrize(("what", "culprits"), [("lock", {"rank1"}), ("skip", {"job"})])
def test_a_hang_under_nccl_is_found(
    what: str, culprits: set[str], cluster: LocalCluster, folder: Path, free_port: int
) -> None:
    """ "lock": rank 1 does not come, rank 0 spins in CUDA's wait for a kernel that waits for it. "skip": rank 1 left
    one all-reduce out and waits in the next, so that both spin: each has begun fewer than the other in one of two
    communicators, so that no count says which of them is wrong."""
    jobs.submit(cluster, folder, what, 2, free_port, limits={"idle_limit": 4.0})
    pauses = jobs.Pauses(cluster)
    pauses.follow(lambda job: (folder / f"{what}.begun").exists(), folder)
    began = time.monotonic()
    pauses.follow(lambda job: job.get("pause") or acted_on(cluster.client.incidents()), folder, 20)
    print("ranks:", cluster.client.ranks())
    try:
        pauses.follow(lambda job: acted_on(cluster.client.incidents()), folder, 30)
    except AssertionError:
        jobs.evidence(cluster)
        raise
    print(f"found {time.monotonic() - began:.1f} s after it began")
    found = acted_on(jobs.report(cluster))[0]
    cluster.client.stop(0.0)
    jobs.evidence(cluster)
    assert found["kind"] == "worker-hang", found["summary"]
    assert found["culprit"] in culprits, found["summary"]
