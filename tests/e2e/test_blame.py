"""Blame of real jobs: one rank is slow, all wait, and that one is named, with nothing but the job's own spans."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.local_cluster import LocalCluster
from holdfast.cli.main import main
from holdfast.errors import UsageError

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parent / "scripts" / "ddp_one_slow.py"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    # Steps of milliseconds on a machine that other tests keep busy: half a second without life is nothing here.
    patient = ("--hang-floor", "5s")
    with LocalCluster(tmp_path_factory.mktemp("cluster"), nodes=1, slots=4, controller_flags=patient) as running:
        yield running


def submit(cluster: LocalCluster, target: str, args: list[str], **more: Any) -> str:
    program = {"target": target, "args": args, "cwd": str(Path.cwd()), "env": {"OMP_NUM_THREADS": "1"}, **more}
    return cluster.client.submit({"name": "blame", "program": program, "nnodes": 1, "nproc_per_node": 4})


def stop(cluster: LocalCluster, until: Callable[..., None]) -> None:
    cluster.client.stop(grace=1.0)
    until(lambda: (cluster.client.job() or {"state": ""})["state"] == "stopped", 30.0)


def named(cluster: LocalCluster, rank: int, deadline_s: float = 90.0) -> dict[str, Any]:
    """The verdict on the newest steps, once the first name in it is `rank`."""
    end = time.monotonic() + deadline_s
    said: object = ""
    while time.monotonic() < end:
        job = cluster.client.job()
        assert job is not None
        assert job["state"] in ("pending", "starting", "running"), job
        try:
            found = cluster.client.blame("", -1, -1)
        except UsageError as error:
            found, said = {"culprits": [], "steps": 0}, error
        if found["culprits"]:
            said = [culprit["text"] for culprit in found["culprits"]]
            if found["culprits"][0]["rank"] == rank and found["steps"] >= 16:
                return found
        time.sleep(1.0)
    raise AssertionError(f"rank {rank} was not named within {deadline_s:g} s: {said}")


def test_a_slowed_rank_of_the_trainer_is_named(
    cluster: LocalCluster, tmp_path: Path, until: Callable[..., None]
) -> None:
    args = ["--steps", "100000", "--dp", "2", "--tp", "2", "--set", "train.micro_batches=4"]
    submit(cluster, "holdfast.trainer", args, module=True, hooks=False)
    cluster.client.inject("slow@2:rank2/backward+80")
    found = named(cluster, 2)
    culprit = found["culprits"][0]
    assert (culprit["kind"], culprit["what"]) == ("compute", "backward of stage 0")
    assert culprit["ratio"] > 1.3
    assert culprit["induced_s"] > 0
    trace = tmp_path / "trace.json"
    assert main(["timeline", "--controller", cluster.http, "-o", str(trace), "--steps", f"{found['last']}"]) == 0
    assert '"rank 2"' in trace.read_text()
    stop(cluster, until)


def test_the_slow_rank_of_an_unmodified_script_is_named(
    cluster: LocalCluster, capfd: pytest.CaptureFixture[str], until: Callable[..., None]
) -> None:
    job = submit(cluster, str(SCRIPT), ["1", "100000"])
    culprit = named(cluster, 1)["culprits"][0]
    assert (culprit["kind"], culprit["what"]) == ("compute", "forward")
    assert culprit["peers"] == 3
    stop(cluster, until)
    kept = cluster.state_dir / "controller" / "spans" / job
    pytest.importorskip("pyarrow")
    until(lambda: list(kept.glob("*.parquet")), 60.0)
    capfd.readouterr()
    assert main(["blame", str(kept)]) == 0
    assert "compute: rank 1 (node node0, GPU 1): forward" in capfd.readouterr().out
