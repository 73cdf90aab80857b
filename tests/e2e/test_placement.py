"""Ranks are placed by their groups: agents under several switches, a job that declares its sizes, a node that goes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.local.cluster import LocalCluster
from holdfast.cli.main import main
from tests.e2e.daemons import Json, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

# Names go round the switches; the spare is in another pod.
SWITCHES = {"node0": "p/a", "node1": "p/b", "node2": "p/a", "node3": "p/b", "node4": "q/c"}
PATIENT = ("--hang-floor", "30s", "--silence-floor", "30s")  # no heartbeat that a busy machine delays is a fault
LEAN = ("--preload", "")  # nothing here imports torch
SCRIPT = "import signal\nsignal.pause()\n"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster(
        tmp_path / "cluster", nodes=4, spares=1, switches=SWITCHES, controller_flags=PATIENT, agent_flags=LEAN
    ) as one:
        yield one


def test_groups_are_under_one_switch_and_stay_when_a_node_goes(
    cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    address = ["--controller", cluster.http]
    words = ["run", *address, "--nnodes", "4", "--parallel", "pp=2,dp=2", "--fresh", "--no-hooks", "--detach"]
    assert main([*words, str(script)]) == 0
    job = capsys.readouterr().out.strip()

    def running_after(generation: int) -> Json:
        def is_up() -> bool:
            now = cluster.client.job(job) or {}
            return bool(now and now["state"] == "running" and now["generation"] > generation)

        wait_for(is_up, 90, lambda: cluster.client.job(job))
        return cluster.client.job(job) or {}

    found = running_after(0)
    nodes = [one["node"] for one in found["assignment"]]
    assert [SWITCHES[name] for name in nodes] in (["p/a", "p/a", "p/b", "p/b"], ["p/b", "p/b", "p/a", "p/a"])
    levels = {one["level"]: (one["total"], one["naive"]) for one in found["placement"]["levels"]}
    # A link of dp counts 4 times one of pp: two rings of two links each, and two lines of two directions each.
    assert levels == {"switch": pytest.approx((0.8, 0.2)), "pod": pytest.approx((0.2, 0.8))}
    assert main(["job", *address, "--job", job]) == 0
    assert "under a switch 80.0% (20.0%)" in " ".join(capsys.readouterr().out.split())

    cluster.client.evict(nodes[1])
    after = [one["node"] for one in running_after(found["generation"])["assignment"]]
    assert after == [nodes[0], "node4", *nodes[2:]]

    assert main(["plan", *address, "--cluster", "live"]) == 2
    assert "reports no GPU: for ranks on CPUs give a cluster file" in capsys.readouterr().err
