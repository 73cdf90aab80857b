"""Real jobs that hang: the faulty rank is named, with the stacks of all, and training goes on."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.local.cluster import LocalCluster
from tests.e2e.daemons import acted_on, stop_job, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

Json = dict[str, Any]
SCRIPT = Path(__file__).parent / "scripts" / "hanging.py"
PAUSES = SCRIPT.with_name("honest_pauses.py")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    # These tests wait until no incident is open: on a busy machine some rank is a straggler for a while.
    flags = ("--detectors", "straggler.action=off")
    with LocalCluster(tmp_path_factory.mktemp("hang"), nodes=2, slots=2, controller_flags=flags) as one:
        yield one


@pytest.fixture(autouse=True)
def _nothing_left(cluster: LocalCluster) -> Iterator[None]:
    yield
    stop_job(cluster.client)


def submit(
    cluster: LocalCluster,
    target: str,
    args: list[str],
    nproc: int,
    module: bool,
    restarts: int,
    limits: Json | None = None,
    nnodes: int = 2,
) -> None:
    program = {"target": target, "args": args, "module": module, "cwd": os.getcwd(),
               "env": {"OMP_NUM_THREADS": "1"}, "hooks": True, "warm": True}  # fmt: skip
    cluster.client.submit({"name": "hang", "program": program, "nnodes": nnodes, "nproc_per_node": nproc,
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
        if fault.startswith("hang"):  # a stopped one can be found before all agents have reported
            found = cluster.client.incident(found["id"])
            assert len(found["stacks"]["states"]) == 4
            assert frames(found)["perform"] == fault[9]
    assert len(cluster.client.stacks()["states"]) == 4
    cluster.client.stop(0.0)
    wait_for(lambda: (cluster.client.job() or {})["state"] == "stopped", 60)


def test_two_orders_of_operations_in_an_unmodified_script_are_found(cluster: LocalCluster) -> None:
    known = len(acted_on(cluster.client.incidents()))
    submit(cluster, str(SCRIPT), ["order"], 1, False, 0)
    found = newest(cluster, known)
    assert (found["kind"], found["culprit"]) == ("worker-hang", "job"), found["summary"]
    assert found["findings"][0]["evidence"]["suspects"] == [0, 1]
    assert found["summary"].count("all_reduce 8 of group (0-1)") == 2
    wait_for(lambda: (cluster.client.job() or {})["state"] == "failed", 60)


def test_a_rank_that_makes_a_group_alone_is_named_with_a_proof(cluster: LocalCluster) -> None:
    """It waits at the store, with torch's default timeout."""
    known = len(acted_on(cluster.client.incidents()))
    submit(cluster, str(SCRIPT), ["group"], 2, False, 0)
    found = newest(cluster, known)
    assert (found["kind"], found["culprit"]) == ("worker-hang", "rank1"), found["summary"]
    assert found["findings"][0]["evidence"]["life"] == "dead"
    assert "new_group" in found["summary"]
    wait_for(lambda: (cluster.client.job() or {})["state"] == "failed", 60)


def paused(cluster: LocalCluster, life: str, place: str = "", does: str = "") -> Json:
    """The job in a pause of this kind, at this place, and reported in these words: what writes in bursts has written
    nothing in some of the half seconds that rates are of."""
    found: list[Json] = []

    def look() -> bool:
        job = cluster.client.job() or {}
        pause = job.get("pause")
        is_it = pause and pause["life"] == life and place in pause["place"] and does in pause["text"]
        found[:] = [job] if is_it else []
        return bool(found)

    wait_for(look, 90, lambda: cluster.client.job())
    return found[0]


def test_an_endless_loop_is_reported_as_busy_and_restarted_by_hand(cluster: LocalCluster) -> None:
    known = len(acted_on(cluster.client.incidents()))
    submit(cluster, str(SCRIPT), ["loop"], 1, False, 0)
    seen = paused(cluster, "busy")["pause"]
    assert seen["ranks"] == [1], seen
    assert "computes" in seen["text"]
    paused(cluster, "busy", "hanging.py")
    assert len(acted_on(cluster.client.incidents())) == known
    cluster.client.restart(dump=True)
    found = newest(cluster, known)
    assert found["kind"] == "restart"
    assert "hanging.py" in str(found["stacks"]["rows"])
    wait_for(lambda: (cluster.client.job() or {})["generation"] == 2, 60)
    cluster.client.stop(0.0)
    wait_for(lambda: (cluster.client.job() or {})["state"] == "stopped", 60)


def ends_well(cluster: LocalCluster, known: int) -> None:
    wait_for(lambda: (cluster.client.job() or {})["state"] not in ("starting", "running"), 60)
    job = cluster.client.job() or {}
    assert (job["state"], job["generation"], job["restarts"]) == ("finished", 1, 0), job
    assert len(acted_on(cluster.client.incidents())) == known


def test_honest_pauses_of_many_kinds_end_by_themselves(cluster: LocalCluster, tmp_path: Path) -> None:
    known = len(acted_on(cluster.client.incidents()))
    submit(cluster, str(PAUSES), [str(tmp_path)], 1, False, -1)
    for name, life, ranks, does in (
        ("save", "busy", [0], "B/s"),
        ("evaluate", "busy", [0, 1], "computes"),
        ("upload", "busy", [1], "over the network"),
        ("delegate", "busy", [0], "waits for its child"),
        ("wait", "idle", [1], "system call"),
    ):
        wait_for((tmp_path / f"{name}.begun").exists, 60, lambda: cluster.client.job())
        seen = paused(cluster, life, name, does)["pause"]
        assert seen["ranks"] == ranks, seen
        (tmp_path / f"{name}.seen").touch()
        if name == "wait":
            (tmp_path / name).write_text("")
    ends_well(cluster, known)
    for call in ("json", "sort"):
        assert float((tmp_path / f"{call}.held").read_text()) > 3.0


def test_evaluations_in_one_process_are_not_ended_and_are_no_stragglers(cluster: LocalCluster, tmp_path: Path) -> None:
    """The first lasts until it is seen, two others two seconds each."""
    known = len(acted_on(cluster.client.incidents()))
    submit(cluster, str(PAUSES), [str(tmp_path), "alone"], 1, False, -1, nnodes=1)
    paused(cluster, "busy", "evaluate", "computes")
    (tmp_path / "alone.seen").touch()
    ends_well(cluster, known)
    lost = (cluster.client.job() or {})["time"]["lost"]
    assert lost["other"] > 3 * 1.9, lost
    assert lost["straggling"] < 1.9, lost


def test_an_idle_pause_is_ended_at_its_limit_which_doubles_and_the_job_is_not_failed(cluster: LocalCluster) -> None:
    """Neither restart counts towards the only one that the job may have."""
    known = len(acted_on(cluster.client.incidents()))
    submit(cluster, str(SCRIPT), ["pipe"], 1, False, 1, limits={"idle_limit": 3.0})
    places = set()
    for times in range(2):
        found = newest(cluster, known + times)
        assert (found["kind"], found["culprit"]) == ("worker-hang", "rank1"), found["summary"]
        assert "(--idle-limit)" in found["summary"]
        evidence = found["findings"][0]["evidence"]
        assert (evidence["life"], evidence["limit_s"], evidence["restarts_here"]) == ("idle", 3.0 * 2**times, times)
        assert evidence["idle_s"] > evidence["limit_s"]
        assert (f"restarted {times} times at this place before" in found["summary"]) == bool(times)
        places.add(evidence["place"])
        wait_for(lambda times=times: (cluster.client.job() or {})["generation"] == times + 2, 60)
    (place,) = places
    assert place.startswith("hanging.py:")
    job = paused(cluster, "idle", place)
    assert {node["state"] for node in cluster.client.nodes()} == {"healthy"}
    assert (job["state"], job["generation"], job["restarts"]) == ("running", 3, 2)
    cluster.client.stop(0.0)
    wait_for(lambda: (cluster.client.job() or {})["state"] == "stopped", 60)
