"""Three jobs on three agents, a kill in each, and one that takes the nodes of another: losses as on calm runs."""

import os
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.local.cluster import LocalCluster
from tests.e2e.daemons import Json, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

STEPS = 120
SCRIPT = """
    import os, sys, time
    import torch
    import torch.distributed as dist

    from holdfast.agent import probe
    from holdfast.checkpoint import Checkpointer

    store, steps, seed, gate = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    probe.attach()
    dist.init_process_group("gloo")
    torch.manual_seed(seed)
    model = torch.nn.Linear(8, 1)
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    checkpointer = Checkpointer(store, {"model": model, "optimizer": optimizer}, every=10)
    probe.phase("train")
    for step in range(checkpointer.restore(), steps):
        time.sleep(0.03 if step < 31 or os.path.exists(gate) else 0.5)
        torch.manual_seed(1000 * step + dist.get_rank())
        x = torch.randn(16, 8)
        loss = ((ddp(x) - x.sum(1, keepdim=True)) ** 2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss.data)
        checkpointer.step(step + 1)
        probe.step(step, loss=float(loss))
    checkpointer.close()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    patient = (
        "--hang-floor",
        "8s",
        "--silence-floor",
        "8s",
    )  # this test is about deaths, not about heartbeats that a busy machine delays
    with LocalCluster(tmp_path_factory.mktemp("jobs"), nodes=3, slots=2, controller_flags=patient) as one:
        yield one


class Jobs:
    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.script = folder / "train.py"
        self.script.write_text(textwrap.dedent(SCRIPT))
        self.gate = folder / "gate"
        """While this file is not there, jobs take their time from step 31 on."""
        self.gate.touch()

    def submit(self, name: str, seed: int, steps: int = STEPS, **more: object) -> str:
        args = [(self.folder / f"store-{name}").as_uri(), str(steps), str(seed), str(self.gate)]
        program = {"target": str(self.script), "args": args, "module": False, "cwd": os.getcwd(),
                   "env": {"OMP_NUM_THREADS": "1"}, "hooks": False, "warm": True}  # fmt: skip
        return self.cluster.client.submit(
            {"name": name, "program": program, "nnodes": 1, "nproc_per_node": 2, "max_restarts": -1, **more}
        )

    def of(self, id: str, what: str = "") -> Json:
        found: Json = self.cluster.client._call("GET", f"/jobs/{id}{what}")
        return found

    def until(self, id: str, *states: str) -> Json:
        wait_for(lambda: self.of(id)["state"] in states, 120, lambda: self.of(id))
        return self.of(id)

    def beyond(self, id: str, generation: int, step: int) -> None:
        wait_for(
            lambda: (job := self.of(id))["generation"] == generation and job["step"] > step, 60, lambda: self.of(id)
        )

    def losses(self, id: str) -> list[float]:
        """One for each step, in order."""
        rows = self.of(id, "/steps?limit=100000")
        assert rows["step"] == list(range(len(rows["step"])))
        return list(rows["loss"])


def test_three_jobs_survive_a_kill_each_and_one_is_preempted(cluster: LocalCluster, tmp_path: Path) -> None:
    jobs = Jobs(cluster, tmp_path)
    calm = {seed: jobs.submit(f"calm{seed}", seed) for seed in (1, 2, 3)}
    for id in calm.values():
        assert jobs.until(id, "finished", "failed")["state"] == "finished"
    expected = {seed: jobs.losses(id) for seed, id in calm.items()}
    assert all(len(losses) == STEPS for losses in expected.values())
    assert len({tuple(losses) for losses in expected.values()}) == 3

    jobs.gate.unlink()
    mine = {seed: jobs.submit(f"job{seed}", seed, faults=["kill@15:rank1"]) for seed in (1, 2, 3)}
    for id in mine.values():
        wait_for(
            lambda id=id: jobs.of(id)["generation"] == 2 and jobs.of(id)["step"] >= 30, 60, lambda id=id: jobs.of(id)
        )
    holders = {node["name"]: node["job"] for node in cluster.client.nodes()}
    assert sorted(holders.values()) == sorted(mine.values()), "a node for each job"
    urgent = jobs.submit("urgent", 4, steps=60, priority=5, preempt=True, faults=["kill@20:rank0"])
    jobs.until(urgent, "running", "finished")
    preempted = jobs.until(mine[3], "pending", "running")
    assert preempted["state"] == "pending", "the newest of the lowest priority waits meanwhile"
    assert "waiting for nodes" in preempted["reason"]
    assert [jobs.of(mine[seed])["generation"] for seed in (1, 2)] == [2, 2], "the others notice nothing"
    jobs.gate.touch()
    for id in (*mine.values(), urgent):
        assert jobs.until(id, "finished", "failed")["state"] == "finished"
    for seed, id in mine.items():
        assert jobs.losses(id) == expected[seed]
    assert len(jobs.losses(urgent)) == 60
    kinds = {seed: [i["kind"] for i in reversed(jobs.of(id, "/incidents"))] for seed, id in mine.items()}  # type: ignore[str-bytes-safe]
    assert kinds == {1: ["worker-killed"], 2: ["worker-killed"], 3: ["worker-killed", "job-preempted"]}
    assert [i["culprit"] for i in jobs.of(urgent, "/incidents")] == ["rank0"]
    (requeued,) = [i for i in jobs.of(mine[3], "/incidents") if i["kind"] == "job-preempted"]
    assert (requeued["action"], requeued["state"]) == ("requeue", "closed")
    assert requeued["step_at_fault"] - requeued["step_resumed"] <= 10, "at most what came after its checkpoint"
