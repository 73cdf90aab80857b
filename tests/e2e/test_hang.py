"""Real jobs that stand still: the one at fault is named, with the stacks of all, and training goes on."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.local.cluster import LocalCluster
from tests.e2e.daemons import acted_on, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

Json = dict[str, Any]
SCRIPT = Path(__file__).parent / "scripts" / "hanging.py"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("hang"), nodes=2, slots=2) as one:
        yield one


@pytest.fixture(autouse=True)
def _nothing_left(cluster: LocalCluster) -> Iterator[None]:
    """A test that failed leaves no job to the next."""
    yield
    job = cluster.client.job()
    if job and job["state"] not in ("finished", "failed", "stopped"):
        cluster.client.stop(0.0)
        wait_for(lambda: (cluster.client.job() or {})["state"] == "stopped", 30)


def submit(
    cluster: LocalCluster,
    target: str,
    args: list[str],
    nproc: int,
    module: bool,
    restarts: int,
    limits: Json | None = None,
) -> None:
    program = {"target": target, "args": args, "module": module, "cwd": os.getcwd(),
               "env": {"OMP_NUM_THREADS": "1"}, "hooks": True, "warm": True}  # fmt: skip
    cluster.client.submit({"name": "hang", "program": program, "nnodes": 2, "nproc_per_node": nproc,
                           "max_restarts": restarts, "limits": limits})  # fmt: skip


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


def test_two_orders_of_operations_in_an_unmodified_script_are_found(cluster: LocalCluster) -> None:
    known = len(acted_on(cluster.client.incidents()))
    submit(cluster, str(SCRIPT), ["order"], 1, False, 0)
    found = newest(cluster, known)
    assert (found["kind"], found["culprit"]) == ("worker-hang", "job"), found["summary"]
    assert found["findings"][0]["evidence"]["suspects"] == [0, 1]
    assert found["summary"].count("all_reduce 8 of group (0-1)") == 2
    wait_for(lambda: (cluster.client.job() or {})["state"] == "failed", 30)


def paused(cluster: LocalCluster, life: str, place: str = "") -> Json:
    """The job's pause, once it is of this kind, at this place."""
    found: list[Json] = []

    def look() -> bool:
        pause = (cluster.client.job() or {}).get("pause")
        found[:] = [pause] if pause and pause["life"] == life and place in pause["place"] else []
        return bool(found)

    wait_for(look, 60, lambda: cluster.client.job())
    return found[0]


def test_an_endless_loop_is_reported_as_busy_and_restarted_by_hand(cluster: LocalCluster) -> None:
    known = len(acted_on(cluster.client.incidents()))
    submit(cluster, str(SCRIPT), ["loop"], 1, False, 0)
    seen = paused(cluster, "busy")
    assert seen["ranks"] == [1], seen
    assert "computes" in seen["text"]
    paused(cluster, "busy", "hanging.py")
    assert len(acted_on(cluster.client.incidents())) == known
    cluster.client.restart(dump=True)
    found = newest(cluster, known)
    assert found["kind"] == "restart"
    assert "hanging.py" in str(found["stacks"]["rows"])
    wait_for(lambda: (cluster.client.job() or {})["generation"] == 2, 30)
    cluster.client.stop(0.0)
    wait_for(lambda: (cluster.client.job() or {})["state"] == "stopped", 30)


@pytest.mark.parametrize("bug", ["save", "sort", "sleep"])
def test_an_honest_pause_ends_by_itself(cluster: LocalCluster, bug: str) -> None:
    known = len(acted_on(cluster.client.incidents()))
    submit(cluster, str(SCRIPT), [bug], 1, False, 0)
    life = "idle" if bug == "sleep" else "busy"
    seen = paused(cluster, life)
    assert seen["ranks"] == [1], seen
    wait_for(lambda: (cluster.client.job() or {})["state"] == "finished", 60)
    assert len(acted_on(cluster.client.incidents())) == known
    assert (cluster.client.job() or {})["restarts"] == 0


def test_an_idle_pause_is_ended_at_its_limit_and_the_job_is_not_failed(cluster: LocalCluster) -> None:
    known = len(acted_on(cluster.client.incidents()))
    submit(cluster, str(SCRIPT), ["lock"], 1, False, 3, limits={"idle_limit": 4.0})
    found = newest(cluster, known)
    assert (found["kind"], found["culprit"]) == ("worker-hang", "rank1"), found["summary"]
    assert "(--idle-limit)" in found["summary"]
    assert found["findings"][0]["evidence"]["life"] == "idle"
    wait_for(lambda: (cluster.client.job() or {})["generation"] == 2, 30)
    nodes = {node["name"]: node["state"] for node in cluster.client.nodes()}
    assert set(nodes.values()) == {"healthy"}
    cluster.client.stop(0.0)
    wait_for(lambda: (cluster.client.job() or {})["state"] == "stopped", 30)
