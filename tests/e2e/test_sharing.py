"""Three jobs that share all three nodes, and a kill in one of them: losses as on nodes of their own."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.local.cluster import LocalCluster
from tests.e2e.daemons import Json, acted_on, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

STEPS, EVERY = 60, 10
SEEDS = (1, 2, 3)
DEADLINE_S = 150.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    # This test is about turns and a death, not about heartbeats that a busy machine delays.
    patient = ("--hang-floor", "8s", "--silence-floor", "8s")
    with LocalCluster(tmp_path_factory.mktemp("sharing"), nodes=3, slots=1, controller_flags=patient) as one:
        yield one


class Jobs:
    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.text = folder / "text"
        self.text.mkdir()
        (self.text / "fox.txt").write_text("the quick brown fox jumps over the lazy dog. " * 200)

    def submit(self, name: str, seed: int, *faults: str) -> str:
        settings = {
            "model.layers": 3, "model.d_model": 32, "model.heads": 4, "model.tied": "false", "data.seq_len": 32,
            "data.cache_dir": self.folder / "cache", "parallel.partial_backward": 3, "parallel.zero": 0,
            "optim.name": "adamw", "train.micro_batches": 3, "train.seed": seed, "train.log_every": 0,
            "checkpoint.every": EVERY, "checkpoint.store": (self.folder / f"store-{name}").as_uri(),
        }  # fmt: skip
        args = ["--data", str(self.text), "--dp", "3", "--steps", str(STEPS)]
        args += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        program = {"target": "holdfast.trainer", "args": args, "module": True, "cwd": os.getcwd(),
                   "env": {"OMP_NUM_THREADS": "1"}, "hooks": False, "warm": True}  # fmt: skip
        return self.cluster.client.submit(
            {"name": name, "program": program, "nnodes": 3, "share_bytes": 1 << 28, "max_restarts": 3,
             "faults": list(faults)}
        )  # fmt: skip

    def of(self, id: str, what: str = "") -> Json:
        found: Json = self.cluster.client._call("GET", f"/jobs/{id}{what}")
        return found

    def finished(self, id: str) -> None:
        wait_for(lambda: self.of(id)["state"] in ("finished", "failed"), DEADLINE_S, lambda: self.of(id))
        assert self.of(id)["state"] == "finished", self.of(id)["reason"]

    def losses(self, id: str) -> list[float]:
        """One for each step, in order."""
        rows = self.of(id, "/steps?limit=100000")
        assert rows["step"] == list(range(STEPS))
        return list(rows["loss"])

    def turns(self, id: str) -> int:
        """That its workers which ended by themselves had."""
        texts = [path.read_text(errors="replace") for path in self.cluster.state_dir.glob(f"node*/logs/{id}/**/*.out")]
        return sum(int(many) for text in texts for many in re.findall(r"waited [\d.]+ s for (\d+) turns", text))


def test_three_jobs_share_three_nodes_and_a_kill_in_one_is_its_own(cluster: LocalCluster, tmp_path: Path) -> None:
    jobs = Jobs(cluster, tmp_path)
    alone = {}
    for seed in SEEDS:
        id = jobs.submit(f"alone{seed}", seed)
        jobs.finished(id)
        alone[seed] = jobs.losses(id)
        assert jobs.turns(id) == 0, "alone on its nodes it need not ask"
    assert len({tuple(losses) for losses in alone.values()}) == 3

    ids = {seed: jobs.submit(f"job{seed}", seed, *(["kill@25:rank1"] if seed == 2 else [])) for seed in SEEDS}
    beside = {seed: [ids[other] for other in SEEDS if other != seed] for seed in SEEDS}
    wait_for(lambda: {seed: jobs.of(id)["shares_with"] for seed, id in ids.items()} == beside, 60)
    assert [node["jobs"] for node in cluster.client.nodes()] == [list(ids.values())] * 3
    for id in ids.values():
        jobs.finished(id)
    assert {seed: jobs.losses(id) for seed, id in ids.items()} == alone
    assert [jobs.of(id)["generation"] for id in ids.values()] == [1, 2, 1]
    known = [one for id in ids.values() for one in cluster.client.incidents(id)]
    acted = {one["job"] for one in acted_on(known)}
    assert acted == {ids[2]}
    assert all(jobs.turns(id) > 0 for id in ids.values())
