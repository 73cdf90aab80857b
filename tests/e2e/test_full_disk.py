"""The agent's state folder is full: worker output is no reason to end them, and the finding names the full disk."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.local.cluster import LocalCluster
from tests.e2e.daemons import Commands, acted_on, wait_for
from tests.e2e.test_run import WARM_S, Runs, script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PRINTS = """
import os, subprocess, sys, time
from holdfast.agent import probe
folder, steps = sys.argv[1], int(sys.argv[2])
probe.phase("train")
for n in range(steps):
    print(f"step {n} " + "." * 2000, flush=True)
    probe.step(n)
    time.sleep(0.02)
    while n == 40 and not os.path.exists(f"{folder}/seen"):  # what happens then happens while it has more to print
        time.sleep(0.02)
subprocess.run(["echo", "a child prints, too"], check=True)  # as do programs of any kind
print("done", file=sys.stderr)
"""


WANTS_ROOM = """
import os, sys, time
from holdfast.agent import probe
node = "node0" if "-node0-" in os.environ["HOLDFAST_SNAPSHOTS"] else "node1"
probe.phase("train")
for n in range(40):
    print(f"step {n} " + "." * 2000, flush=True)
    if n == 20 and os.environ["RANK"] == "1":
        with open(f"{sys.argv[1]}/{node}/of-the-script", "wb") as file:
            file.write(bytes(1 << 20))
    probe.step(n)
    time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a cluster whose first node has its state on a file system of 8 MB."""
    folder = tmp_path_factory.mktemp("cluster")
    state = folder / "node0"
    state.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0700", "none", str(state)]
    mounted = subprocess.run(words, capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system of a test's own here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(state)], check=True)


@pytest.fixture(scope="module")
def cluster(small: Path) -> Iterator[LocalCluster]:
    with LocalCluster(small, nodes=2, slots=2, controller_flags=("--hang-floor", "5s")) as one:
        yield one


@pytest.fixture
def runs(holdfast: Commands, cluster: LocalCluster) -> Runs:
    return Runs(holdfast, cluster)


def fill(folder: Path) -> Path:
    """Leave no free byte."""
    path = folder / "filler"
    with open(path, "ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return path


def logged(cluster: LocalCluster, rank: int) -> str:
    paths = sorted((cluster.state_dir / "node0" / "logs").glob(f"*/g1/rank{rank}.out"), key=lambda p: p.stat().st_mtime)
    return paths[-1].read_text(errors="replace") if paths else ""


def is_back(incident: dict[str, object]) -> bool:
    return incident["kind"] == "agent-exit" and incident["state"] == "closed"


@pytest.mark.parametrize("then", ["nothing else", "its agent dies", "there is room again"])
def test_a_job_goes_on_where_the_agents_folder_is_full(
    runs: Runs, cluster: LocalCluster, tmp_path: Path, then: str
) -> None:
    before = len(runs.cluster.client.incidents())
    state = cluster.state_dir / "node0"
    filler = fill(state)
    run = runs.start("--nproc-per-node", "2", script(tmp_path, PRINTS), str(tmp_path), "150")
    run.says("[1] step 20 ", WARM_S)
    if then == "its agent dies":
        os.kill(cluster.pids()["node0"], signal.SIGKILL)
        # What is printed at a worker's end reaches the user if an agent is there again to read it.
        wait_for(
            lambda: any(is_back(one) for one in runs.new_incidents(before)), WARM_S, lambda: runs.new_incidents(before)
        )
    elif then == "there is room again":
        filler.unlink()
    (tmp_path / "seen").touch()
    try:
        assert run.wait(WARM_S) == 0, run.err[-4000:]
    finally:
        filler.unlink(missing_ok=True)
    assert runs.ask("job")["generation"] == 1
    found = runs.new_incidents(before)
    assert acted_on(found) == []
    full = [one for one in found if one["kind"] == "disk-full"]
    if then == "nothing else":  # the first: the same is reported again after ten minutes
        assert full
        assert full[0]["culprit"] == "node0"
        assert "No space left on device" in " ".join(one["summary"] for one in full)
    said = [line.partition(" .")[0] for line in run.out.splitlines()]
    for rank in range(2):
        assert f"[{rank}] a child prints, too" in said
        lines = [line for line in said if line.startswith(f"[{rank}] step ")]
        wanted = [f"[{rank}] step {n}" for n in range(150)]
        if then == "its agent dies":  # what it had read and not yet sent went with it: here no disk has it
            assert lines[-1:] == wanted[-1:]
            assert len(lines) > 100
            assert set(lines) <= set(wanted)
        else:
            assert lines == wanted
    if then == "there is room again":
        wait_for(lambda: "bytes of output are missing here: No space left on device]" in logged(cluster, 0), 60)


def test_a_job_that_needs_room_goes_on_at_another_node(runs: Runs, cluster: LocalCluster, tmp_path: Path) -> None:
    """The last test here: the node is out of service after it."""
    before = len(runs.cluster.client.incidents())
    filler = fill(cluster.state_dir / "node0")
    try:
        path = script(tmp_path, WANTS_ROOM)
        run = runs.start("--nproc-per-node", "2", path, str(cluster.state_dir))
        assert run.wait(WARM_S) == 0, run.err[-4000:]
    finally:
        filler.unlink(missing_ok=True)
    job = runs.ask("job")
    assert (job["state"], job["generation"]) == ("finished", 2)
    assert [one["node"] for one in job["assignment"]] == ["node1"]
    (incident,) = acted_on(runs.new_incidents(before))
    assert (incident["kind"], incident["culprit"], incident["action"]) == ("disk-full", "node0", "evict")
    assert incident["summary"].startswith("a disk of node0 is full; rank 1 ")
    assert incident["summary"].endswith("No space left on device")
