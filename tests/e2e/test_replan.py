"""Eight workers lose a node for good: six go on with the layout planned for them, and eight again once it is back."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.restore.inspect import list_checkpoints
from holdfast.cli.job.launch.layouts import plan_all
from holdfast.cli.local.cluster import LocalCluster
from tests.e2e.daemons import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DEADLINE_S = 120.0
EVERY = 5
COMPARED = 24
"""Steps, of all that the six workers did."""
TRAINER = "holdfast.trainer"
CLUSTER = """
nodes = 4
gpus_per_node = 2
gpu = { flops = 1e10, memory_bytes = 4e9, memory_bytes_per_s = 1e10 }
links = { node = { gb_per_s = 1 }, switch = { gb_per_s = 1 } }
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    flags = ("--hang-floor", "15s", "--silence-floor", "15s", "--agent-grace", "2s", "--grow-after", "2s")
    folder = tmp_path_factory.mktemp("replanned")
    with LocalCluster(folder, nodes=4, slots=2, mortal=["node3"], controller_flags=flags) as one:
        yield one


def arguments(folder: Path) -> list[str]:
    (folder / "text").mkdir()
    (folder / "text" / "a.txt").write_text("all that is lost is planned again for what is left " * 2000)
    settings = {
        "model.layers": 2, "model.d_model": 32, "model.heads": 4, "data.seq_len": 32, "train.log_every": 0,
        "train.micro_batches": 12, "train.micro_batch_size": 1, "data.cache_dir": folder / "cache",
        "checkpoint.every": EVERY, "checkpoint.keep": 1000,
    }  # fmt: skip
    words = ["--data", str(folder / "text"), "--pp", "2", "--dp", "4"]
    return words + [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def submit(cluster: LocalCluster, args: list[str], nodes: int, layouts: list[dict[str, Any]]) -> str:
    program = {"target": TRAINER, "args": args, "module": True, "cwd": os.getcwd(), "env": {"OMP_NUM_THREADS": "1"},
               "hooks": False, "warm": True}  # fmt: skip
    counts = [one["nodes"] for one in layouts]
    spec = {"name": "replanned", "program": program, "nnodes": nodes, "nproc_per_node": 2}
    return cluster.client.submit({**spec, "node_counts": counts, "layouts": layouts})


def job(cluster: LocalCluster, name: str) -> dict[str, Any]:
    found = cluster.client.job(name)
    assert found is not None
    assert found["state"] != "failed", found
    return found


def losses(cluster: LocalCluster, name: str, generation: int) -> dict[int, float]:
    rows = cluster.client.steps(job=name)
    found = zip(rows["step"], rows["loss"], rows["generation"], strict=True)
    return {step: loss for step, loss, of in found if of == generation}


def did(cluster: LocalCluster, name: str, generation: int, steps: int) -> None:
    """Wait until the generation did so many steps."""
    wait_for(lambda: len(losses(cluster, name, generation)) > steps, DEADLINE_S, lambda: job(cluster, name))


def test_six_workers_go_on_as_planned_and_eight_when_the_node_is_back(cluster: LocalCluster, tmp_path: Path) -> None:
    args = arguments(tmp_path)
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    layouts = plan_all(tmp_path / "cluster.toml", args, TRAINER, (3, 4), "2")
    assert [one["nodes"] for one in layouts] == [3]
    store = tmp_path / "store"
    name = submit(cluster, [*args, "--steps", "1000000", "--store", store.as_uri()], 4, layouts)
    did(cluster, name, 1, 12)  # as many as the measured throughput is of
    wait_for(lambda: list_checkpoints(store.as_uri()), DEADLINE_S)

    cluster.client.inject("node-kill:node3", name)
    did(cluster, name, 2, 14)
    (shrunk,) = [one for one in cluster.client.incidents(name) if one["generation_to"] == 2]
    assert shrunk["action"] == "shrink"
    assert f"planned for 3 nodes: {layouts[0]['text']}" in shrunk["reason"]
    assert "of the throughput predicted" in shrunk["reason"]
    wait_for(lambda: "; measured" in cluster.client.incident(shrunk["id"])["reason"], DEADLINE_S)

    cluster.bring_back("node3")
    did(cluster, name, 3, 3)
    assert job(cluster, name)["world_size"] == 8
    (grown,) = [one for one in cluster.client.incidents(name) if one["generation_to"] == 3]
    assert grown["action"] == "grow"
    assert "planned for 4 nodes: its own layout" in grown["reason"]
    six = losses(cluster, name, 2)
    cluster.client.stop(5.0, name)
    wait_for(lambda: job(cluster, name)["state"] == "stopped", DEADLINE_S)

    # A calm run of the layout, from the newest checkpoint of before.
    first = min(six)
    last = min(first + COMPARED, max(six))
    calm = tmp_path / "calm"
    shutil.copytree(store, calm)
    kept = max(one.step for one in list_checkpoints(calm.as_uri()) if one.step <= first)
    for one in calm.glob("step-*"):
        if int(one.name.split("-")[1]) > kept:
            shutil.rmtree(one)
    assert list_checkpoints(calm.as_uri())[0].step == kept
    words = [*args, *layouts[0]["args"], "--steps", str(last), "--store", calm.as_uri()]
    again = submit(cluster, words, 3, [])
    wait_for(lambda: job(cluster, again)["state"] == "finished", DEADLINE_S, lambda: job(cluster, again))
    alone = losses(cluster, again, 1)
    both = sorted(six.keys() & alone.keys())  # no more than COMPARED: rounding grows with each step
    assert len(both) >= 10
    # Some steps after the checkpoint were of eight workers, whose sums are taken in another order.
    assert [six[step] for step in both] == pytest.approx([alone[step] for step in both], rel=1e-4)
    assert six[both[0]] != pytest.approx(six[both[-1]], rel=1e-3)  # the losses do move
