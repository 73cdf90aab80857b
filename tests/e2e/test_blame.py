"""Blame of real jobs: one rank is slow, all wait, and that one is named, with nothing but the job's own spans."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.local.cluster import LocalCluster
from holdfast.cli.main import main
from tests.browser import chromium
from tests.diagnostics.support import trace_processor as tp
from tests.diagnostics.support.perfetto_ui import perfetto
from tests.e2e.daemons import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(360)]

Json = dict[str, Any]
SCRIPT = Path(__file__).parent / "scripts" / "ddp_one_slow.py"
TWO_SLOW = SCRIPT.with_name("ddp_two_slow.py")
LOGS = SCRIPT.with_name("ddp_logs.py")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    pytest.importorskip("pyarrow")
    # Steps of milliseconds on a machine that other tests keep busy: half a second without a step means nothing here.
    # Looks follow one another closely: meanwhile each of these jobs takes both processors.
    # An agent that a busy machine keeps from speaking is no incident that others would be evidence of.
    patient = ("--hang-floor", "5s", "--silence-floor", "10s")
    flags = (*patient, "--blame-every", "1s", "--blame-share", "0.5")
    with LocalCluster(tmp_path_factory.mktemp("blame"), nodes=2, slots=2, controller_flags=flags) as one:
        yield one


def submit(cluster: LocalCluster, target: str, args: list[str], nproc: int, **more: Any) -> str:
    program = {"target": target, "args": args, "cwd": str(Path.cwd()), "env": {"OMP_NUM_THREADS": "1"}, **more}
    return cluster.client.submit({"name": "blame", "program": program, "nnodes": 2, "nproc_per_node": nproc})


def running(cluster: LocalCluster) -> Json:
    job = cluster.client.job() or {"state": "none"}
    assert job["state"] in ("pending", "starting", "running"), job
    return job


def stop(cluster: LocalCluster, job: str, step: int, ranks: int) -> Path:
    """Ends the job; where its spans lie, when those of `step` are there whole.

    They come in files of half a minute each: that there is one does not mean that it has this step.
    """
    from holdfast.diagnostics.files import span_files

    cluster.client.stop(grace=1.0)
    wait_for(lambda: (cluster.client.job() or {})["state"] == "stopped", 60)
    kept = cluster.state_dir / "controller" / "spans" / job

    def later() -> set[int]:
        """Ranks that reported a step after it."""
        return set(span_files.read(kept, step + 1)[0].rank.tolist())

    wait_for(lambda: list(kept.glob("*.parquet")) and len(later()) == ranks, 60, lambda: sorted(kept.glob("*")))
    return kept


def test_a_slowed_rank_of_the_trainer_is_a_finding_while_it_runs(cluster: LocalCluster, tmp_path: Path) -> None:
    args = ["--steps", "100000", "--pp", "2", "--dp", "2", "--set", "train.micro_batches=4"]
    job = submit(cluster, "holdfast.trainer", args, 2, module=True, hooks=False)
    wait_for(lambda: running(cluster)["step"] >= 3, 90)
    cluster.client.inject("slow:rank3/backward+60")

    def stragglers() -> list[Json]:
        """Of this rank and kind. A busy machine may have others: a hundredth of a step is enough."""
        running(cluster)
        ours = [one for one in cluster.client.incidents() if (one["kind"], one["culprit"]) == ("straggler", "rank3")]
        return [one for one in ours if one["findings"][0]["evidence"]["slowness"] == "compute"]

    # Two looks, and one that began before: the slower the machine, the longer the pauses between them.
    wait_for(stragglers, 150, lambda: cluster.client.incidents())
    (found,) = stragglers()
    assert found["action"] == "alert"

    def worst() -> Json:
        """What costs the most by the last look. The one that the incident is of may have begun before the fault."""
        running(cluster)
        look = cluster.client.newest_blame(job) or {"culprits": []}
        ranks = [one for one in look["culprits"] if one["kind"] != "imbalance"]
        return max(ranks, key=lambda one: one["cost_s"], default={})

    def is_ours(one: Json) -> bool:
        is_named = one and (one["rank"], one["kind"], one["what"]) == (3, "compute", "backward of stage 1")
        return bool(is_named and one["ratio"] > 1.3)

    wait_for(lambda: is_ours(worst()), 90, worst)
    step = found["findings"][0]["evidence"]["steps"][1] - 2
    check_trace(stop(cluster, job, step + 1, ranks=4), step, tmp_path / "trace.json")


def check_trace(kept: Path, step: int, path: Path) -> None:
    """The trace of two steps on disk holds all that the plan has them do, and Perfetto says so."""
    from holdfast.diagnostics.files import span_files

    assert main(["timeline", str(kept), "--steps", f"{step}:{step + 1}", "-o", str(path)]) == 0
    table, shape = span_files.read(kept, step, step + 1)
    plan = shape.decoded()
    assert plan is not None
    tp.check(tp.Importer(path), table, plan, ["node0", "node1"])
    with chromium() as browser, perfetto(browser, path) as real:
        tp.check(real, table, plan, ["node0", "node1"])


def test_the_slow_rank_of_an_unmodified_script_is_named_from_its_record(
    cluster: LocalCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    job = submit(cluster, str(SCRIPT), ["1", "100000"], 2)
    wait_for(lambda: running(cluster)["step"] >= 110, 90)
    kept = stop(cluster, job, 100, ranks=4)
    capfd.readouterr()
    assert main(["blame", str(kept), "--steps", "20:100"]) == 0
    out = capfd.readouterr().out
    assert "compute: rank 1 (node node0, GPU 1): forward" in out
    named = [line for line in out.splitlines() if line.startswith(("compute:", "link:", "host", "data", "garbage"))]
    assert len(named) == 1, f"those that wait for it are not: {named}"
    assert main(["blame", str(kept), "--steps", "20:100", "--heat"]) == 0
    assert "FORWARD" in capfd.readouterr().out


def test_a_slow_optimizer_is_distinguished_from_a_forward_that_is_slow_in_each_tenth_step(
    cluster: LocalCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    job = submit(cluster, str(TWO_SLOW), ["100000"], 2)
    wait_for(lambda: running(cluster)["step"] >= 190, 180)
    kept = stop(cluster, job, 180, ranks=4)
    capfd.readouterr()
    assert main(["blame", str(kept), "--steps", "20:180"]) == 0
    out = capfd.readouterr().out
    assert re.search(r"waiting: rank 1 .* asleep, at a lock or in a read, in optimizer", out), out
    assert re.search(r"waiting: rank 2 .* in one of (8|9|10) steps, .*, in forward", out), out


def test_what_rank_0_does_by_design_is_shown_and_sends_no_alert(cluster: LocalCluster) -> None:
    before = len(cluster.client.incidents())
    job = submit(cluster, str(LOGS), ["100000"], 2)
    looks: dict[int, Json] = {}

    def looked() -> bool:
        """Three times: a finding takes two."""
        running(cluster)
        found = json.load(urllib.request.urlopen(f"http://{cluster.http}/api/v1/blame/newest"))
        for culprit in found["culprits"] if found and found["job"] == job else ():
            if (culprit["rank"], culprit["kind"]) == (0, "waiting"):  # a busy machine may slow it in another way, too
                looks[found["first"]] = culprit
        return len(looks) >= 3

    wait_for(looked, 120, lambda: looks)
    for culprit in looks.values():
        assert culprit["by_design"], culprit["text"]
        assert "for information: since the first steps of the job" in culprit["text"]
    cluster.client.stop(grace=1.0)
    wait_for(lambda: (cluster.client.job() or {})["state"] == "stopped", 60)
    ours = cluster.client.incidents()[: len(cluster.client.incidents()) - before]
    stragglers = [one["findings"][0] for one in ours if (one["kind"], one["culprit"]) == ("straggler", "rank0")]
    assert [one["text"] for one in stragglers if one["evidence"]["slowness"] == "waiting"] == []
