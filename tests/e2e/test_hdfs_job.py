"""A job whose checkpoints go to a real HDFS: its NameNode stalls and training goes on; the whole job dies and comes
back from there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.restore.inspect import list_checkpoints, verify
from holdfast.cli.local.cluster import LocalCluster
from tests.checkpoint.support.hdfs_cluster import HdfsCluster
from tests.e2e.daemons import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

EVERY = 10
DEADLINE_S = 90.0


def submit(cluster: LocalCluster, text: Path, store: str, steps: int) -> Callable[[], dict[str, Any]]:
    settings = {
        "model.layers": 2, "model.d_model": 64, "model.heads": 4, "data.seq_len": 32, "train.log_every": 0,
        "data.cache_dir": text.parent / "cache", "checkpoint.every": EVERY, "checkpoint.store": store,
        "checkpoint.timeout_s": 3,
    }  # fmt: skip
    args = ["--data", str(text), "--dp", "2", "--steps", str(steps)]
    args += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    program = {"target": "holdfast.trainer", "args": args, "module": True, "cwd": os.getcwd(),
               "env": {"OMP_NUM_THREADS": "1"}, "hooks": False, "warm": True}  # fmt: skip
    cluster.client.submit({"name": "hdfs", "program": program, "nnodes": 2, "nproc_per_node": 1, "max_restarts": 3})

    def job() -> dict[str, Any]:
        found = cluster.client.job()
        assert found is not None
        assert found["state"] != "failed", found
        return found

    return job


def committed(url: str) -> int:
    return max((one.step for one in list_checkpoints(url)), default=0)


def reported(cluster: LocalCluster) -> list[str]:
    return [incident["summary"] for incident in cluster.client.incidents()]


def of_the_store(cluster: LocalCluster) -> list[str]:
    """The states of the incidents about a store."""
    return [incident["state"] for incident in cluster.client.incidents() if incident["kind"] == "store"]


def test_hdfs_stands_still_training_does_not_and_a_dead_job_comes_back(hdfs: HdfsCluster, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.txt").write_text("all that is written is written twice " * 2000)
    store = f"{hdfs.url}/job"
    patient = ("--hang-floor", "8s", "--silence-floor", "8s")
    with LocalCluster(tmp_path / "one", nodes=2, slots=1, controller_flags=patient) as cluster:
        job = submit(cluster, text, store, 1_000_000)
        wait_for(lambda: job()["step"] > 20, DEADLINE_S, job)
        cluster.client.inject("slow:rank0/load+300")  # hundreds of steps at full speed would show no more
        wait_for(lambda: committed(store) >= 10, DEADLINE_S, job)

        hdfs.stop_namenode()
        try:
            before = job()["step"]
            wait_for(lambda: any("checkpoint" in line for line in reported(cluster)), 60, lambda: reported(cluster))
            # Had it waited for the store, it would have come to the next checkpoint and no further.
            wait_for(lambda: job()["step"] > before + EVERY, DEADLINE_S, job)
            reached = job()["step"]
            wait_for(lambda: job()["step"] > reached + 2 * EVERY, DEADLINE_S, job)
            assert of_the_store(cluster) == ["open"]  # one, whatever was tried meanwhile
        finally:
            hdfs.go_on_namenode()
        before = job()["step"]
        wait_for(lambda: committed(store) > before, DEADLINE_S, lambda: (committed(store), reported(cluster)))
        assert job()["generation"] == 1
        wait_for(lambda: of_the_store(cluster) == ["closed"], 60, lambda: reported(cluster))
    # Nothing is left of it but what is in HDFS.
    newest = committed(store)
    for one in list_checkpoints(store):
        assert verify(store, one.step) == []
    with LocalCluster(tmp_path / "two", nodes=2, slots=1, controller_flags=patient) as cluster:
        job = submit(cluster, text, store, newest + 20)
        wait_for(lambda: job()["state"] == "finished", DEADLINE_S, job)
        steps = cluster.client.steps()["step"]
        assert min(steps) == newest
    assert committed(store) == newest + 20
