"""A worker, then a node, is asked to end: the job loses no step, whatever its checkpoints were set to."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.restore.inspect import list_checkpoints, verify
from holdfast.cli.local.cluster import LocalCluster
from tests.e2e.daemons import Commands, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

DEADLINE_S = 90.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    patient = ("--hang-floor", "8s", "--silence-floor", "8s")
    folder = tmp_path_factory.mktemp("preempted")
    with LocalCluster(folder, nodes=2, slots=1, controller_flags=patient, agent_flags=("--drain", "30s")) as one:
        yield one


def submit(cluster: LocalCluster, text: Path, store: Path) -> None:
    settings = {
        "model.layers": 2, "model.d_model": 32, "model.heads": 4, "data.seq_len": 32, "train.log_every": 0,
        "data.cache_dir": store.parent / "cache", "checkpoint.every": 0, "checkpoint.store": store.as_uri(),
    }  # fmt: skip
    args = ["--data", str(text), "--dp", "2", "--steps", "1000000"]
    args += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    program = {"target": "holdfast.trainer", "args": args, "module": True, "cwd": os.getcwd(),
               "env": {"OMP_NUM_THREADS": "1"}, "hooks": False, "warm": True}  # fmt: skip
    cluster.client.submit({"name": "preempted", "program": program, "nnodes": 2, "nproc_per_node": 1})


def job(cluster: LocalCluster) -> dict[str, Any]:
    found = cluster.client.job()
    assert found is not None
    assert found["state"] != "failed", found
    return found


def goes_on(cluster: LocalCluster, generation: int, store: Path) -> dict[str, Any]:
    """The incident that ended the generation before: no step was lost, and the store has the last one."""

    def resumed() -> list[dict[str, Any]]:
        return [one for one in cluster.client.incidents() if one["generation_to"] == generation and one["closed"]]

    wait_for(resumed, DEADLINE_S, lambda: cluster.client.incidents())
    (incident,) = resumed()
    steps = [one.step for one in list_checkpoints(store.as_uri())]
    assert incident["step_resumed"] in steps, (incident, steps)
    assert incident["step_resumed"] > incident["step_at_fault"]
    assert verify(store.as_uri(), incident["step_resumed"]) == []
    return incident


def test_nothing_is_lost_by_who_is_asked_to_end(cluster: LocalCluster, holdfast: Commands, tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("all that is written is written twice " * 2000)
    store = tmp_path / "store"
    submit(cluster, tmp_path / "text", store)
    wait_for(lambda: job(cluster)["step"] > 10, DEADLINE_S, lambda: job(cluster))
    assert list_checkpoints(store.as_uri()) == []

    done = holdfast.run("inject", "sigterm", "rank1", "--controller", cluster.http)
    assert done.process.returncode == 0, done.err
    incident = goes_on(cluster, 2, store)
    assert (incident["kind"], incident["culprit"]) == ("worker-preempted", "rank1")

    # A whole node: its agent is notified, and notifies its workers.
    wait_for(lambda: job(cluster)["step"] > incident["step_resumed"] + 5, DEADLINE_S, lambda: job(cluster))
    os.kill(cluster.pids()["node1"], signal.SIGTERM)
    goes_on(cluster, 3, store)
    reported = [one["summary"] for one in cluster.client.incidents()]
    assert any("the agent is stopping" in line for line in reported), reported
