"""Real jobs that stand still: the one at fault is named, with the stacks of all, and training goes on."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.local_cluster import LocalCluster
from tests.e2e.daemons import acted_on, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

Json = dict[str, Any]
SCRIPT = Path(__file__).parent / "scripts" / "hanging.py"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("hang"), nodes=2, slots=2) as one:
        yield one


def submit(cluster: LocalCluster, target: str, args: list[str], nproc: int, module: bool, restarts: int) -> None:
    program = {"target": target, "args": args, "module": module, "cwd": os.getcwd(),
               "env": {"OMP_NUM_THREADS": "1"}, "hooks": True, "warm": True}  # fmt: skip
    cluster.client.submit({"name": "hang", "program": program, "nnodes": 2, "nproc_per_node": nproc,
                           "max_restarts": restarts})  # fmt: skip


def well(cluster: LocalCluster) -> Json | None:
    status = cluster.client.status()
    job: Json | None = status["job"]
    return job if job and job["state"] == "running" and not status["open_incidents"] else None


def steps(cluster: LocalCluster, count: int) -> None:
    """All is well, and so many steps further."""
    wait_for(lambda: well(cluster), 60)
    begin = (cluster.client.job() or {})["step"]
    wait_for(lambda: (job := well(cluster)) and job["step"] >= begin + count, 60)


def newest(cluster: LocalCluster, known: int) -> Json:
    """The incident after so many known ones, once there is one and something is done about it."""
    wait_for(lambda: len(acted_on(cluster.client.incidents())) > known, 60, lambda: cluster.client.job())
    return acted_on(cluster.client.incidents())[0]


def frames(incident: Json) -> dict[str, str]:
    """The ranks at which some of the calls were."""
    return {row["frame"].rpartition(" ")[2]: row["ranks"] for row in incident["stacks"]["rows"]}


def test_the_worker_that_holds_up_the_others_is_named(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("".join(random.Random(1).choices("abcdefgh \n", k=50_000)))
    settings = {"model.layers": 2, "model.d_model": 32, "model.heads": 4, "data.seq_len": 32, "train.log_every": 0}
    args = ["--data", str(tmp_path / "text"), "--pp", "2", "--tp", "2", "--steps", "1000000"]
    args += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    submit(cluster, "holdfast.trainer", [*args, "--set", f"data.cache_dir={tmp_path}"], 2, True, 100)
    for known, fault in enumerate(("hang:rank3/tp", "stop:rank2/after-tp", "hang:rank0/before-pp")):
        steps(cluster, 5)
        cluster.client.inject(fault)
        found = newest(cluster, known)
        assert found["culprit"] == fault.partition(":")[2].partition("/")[0], found["summary"]
        assert found["kind"] == ("worker-stopped" if fault.startswith("stop") else "worker-hang")
        steps(cluster, 1)
        if fault.startswith("hang"):  # a stopped one can be found before all agents have told
            found = cluster.client.incident(found["id"])
            assert len(found["stacks"]["states"]) == 4
            assert frames(found)["perform"] == fault[9]
    assert len(cluster.client.stacks()["states"]) == 4
    cluster.client.stop(0.0)
    wait_for(lambda: (cluster.client.job() or {})["state"] == "stopped", 30)


@pytest.mark.parametrize(("bug", "culprit"), [("loop", "rank1"), ("order", "job")])
def test_a_bug_of_an_unmodified_script_is_found(cluster: LocalCluster, bug: str, culprit: str) -> None:
    known = len(acted_on(cluster.client.incidents()))
    submit(cluster, str(SCRIPT), [bug], 1, False, 0)
    found = newest(cluster, known)
    assert (found["kind"], found["culprit"]) == ("worker-hang", culprit), found["summary"]
    if bug == "order":
        assert found["findings"][0]["evidence"]["suspects"] == [0, 1]
        assert found["summary"].count("all_reduce 8 of group (0-1)") == 2
    wait_for(lambda: (cluster.client.job() or {})["state"] == "failed", 30)
