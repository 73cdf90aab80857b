"""Random SIGKILLs of workers, agents and checkpoint daemons at random moments: acknowledged checkpoints are kept.

HOLDFAST_CHAOS says how many kills (6 if it says nothing), HOLDFAST_CHAOS_SEED which ones.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.node.checkpoints import snapshots_dir
from holdfast.base.errors import HoldfastError
from holdfast.checkpoint.restore.inspect import list_checkpoints, verify
from holdfast.checkpoint.snapshots.arena import Arena
from holdfast.cli.local.cluster import LocalCluster
from tests.e2e.daemons import Commands, one_line, wait_for

KILLS = int(os.environ.get("HOLDFAST_CHAOS", "6"))
SEED = int(os.environ.get("HOLDFAST_CHAOS_SEED", "20264"))
NODES, SLOTS = 2, 2
WORLD = NODES * SLOTS
DEADLINE_S = 90.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240 + 30 * KILLS)]

Job = dict[str, Any]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    # This test is about deaths, not about heartbeats that a busy machine delays.
    patient = ("--hang-floor", "8s", "--silence-floor", "8s")
    folder = tmp_path_factory.mktemp("chaos")
    with LocalCluster(folder, nodes=NODES, slots=SLOTS, controller_flags=patient) as one:
        yield one


def submit(cluster: LocalCluster, text: Path, store: Path, steps: int, every: int = 7) -> None:
    settings = {
        "model.layers": 2, "model.d_model": 32, "model.heads": 4, "data.seq_len": 32, "train.log_every": 0,
        "data.cache_dir": store.parent / "cache", "checkpoint.every": every, "checkpoint.keep": 4,
        "checkpoint.store": store.as_uri(),
    }  # fmt: skip
    args = ["--data", str(text), "--pp", "2", "--dp", "2", "--steps", str(steps)]
    args += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    program = {"target": "holdfast.trainer", "args": args, "module": True, "cwd": os.getcwd(),
               "env": {"OMP_NUM_THREADS": "1"}, "hooks": False, "warm": True}  # fmt: skip
    cluster.client.submit({"name": "chaos", "program": program, "nnodes": NODES, "nproc_per_node": SLOTS,
                           "max_restarts": 100_000})  # fmt: skip


def job(cluster: LocalCluster) -> Job:
    found = cluster.client.job()
    assert found is not None
    assert not cluster.failure, cluster.failure
    return found


def promised(cluster: LocalCluster) -> int:
    """The newest step that every rank has in memory now; 0 when there is none."""
    name = job(cluster)["id"]
    steps: list[set[tuple[int, int]]] = []
    for node in cluster.node_names:
        for path in (snapshots_dir(cluster.state_dir / node, node) / name).glob("own-*.snap"):
            with closing(Arena.open(path)) as arena:
                steps.append({(one.generation, one.step) for one in arena.snapshots()})
    common = set.intersection(*steps) if len(steps) == WORLD else set()
    return max((step for _, step in common), default=0)


def asked(cluster: LocalCluster, fault: str) -> bool:
    """False while the agent that is to do it is itself away."""
    try:
        cluster.client.inject(fault)
    except HoldfastError:
        return False
    return True


def checkpoint_daemon(state: Path) -> int | None:
    """The pid of a node's checkpoint daemon while it runs."""
    try:
        pid = int((state / "run" / "checkpoint.pid").read_text())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if b"holdfast.checkpoint.daemon.daemon" in words else None


def killed(pid: int) -> bool:
    """False when there is no such process."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def kill(cluster: LocalCluster, what: str, chance: random.Random) -> bool:
    """Whether a worker died of it."""
    node = chance.choice(cluster.node_names)
    if what == "agent":
        # One that was killed a moment ago may not be back yet.
        wait_for(lambda: killed(cluster.pids()[node]), 60)
    elif what == "daemon":
        # One that was killed a moment ago may not be back yet.
        wait_for(lambda: checkpoint_daemon(cluster.state_dir / node) is not None, 60)
        pid = checkpoint_daemon(cluster.state_dir / node)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
    else:
        rank = chance.randrange(WORLD)
        wait_for(lambda: asked(cluster, f"kill:rank{rank}"), 60)
    return what == "worker"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    chance = random.Random(1)
    for number in range(4):
        (folder / f"{number}.txt").write_text("".join(chance.choices("abcdefgh \n", k=20_000)))
    return folder


def test_a_checkpoint_on_request(cluster: LocalCluster, holdfast: Commands, text: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    submit(cluster, text, store, steps=1_000_000, every=0)
    wait_for(lambda: job(cluster)["step"] > 5, DEADLINE_S, lambda: job(cluster))
    done = holdfast.run("checkpoint", "now", "--json", "--controller", cluster.http)
    assert done.process.returncode == 0, done.err
    (one,) = list_checkpoints(store.as_uri())
    assert one.step == json.loads(done.out)["step"]
    assert verify(store.as_uri(), one.step) == []
    risk = job(cluster)["at_risk"]
    assert 0 <= risk["worker"] < 10
    assert risk["worker"] <= risk["node"] <= risk["job"]
    done = holdfast.run("job", "--controller", cluster.http)
    assert "costs worker" in done.out
    cluster.client.stop(0.0)
    wait_for(lambda: job(cluster)["state"] == "stopped", 60, lambda: job(cluster))
    done = holdfast.run("checkpoint", "now", "--controller", cluster.http)
    assert (done.process.returncode, one_line(done.err)) == (1, "holdfast: no job is running")


def test_what_was_promised_is_kept(cluster: LocalCluster, text: Path, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    store = tmp_path / "store"
    submit(cluster, text, store, steps=1_000_000)
    wait_for(lambda: job(cluster)["step"] > 10, DEADLINE_S, lambda: job(cluster))
    sources: Counter[str] = Counter()
    for number in range(KILLS):
        what = chance.choice(["worker", "worker", "agent", "daemon"])
        time.sleep(chance.random() * 0.5)  # the moment is the chance
        generation, promise = job(cluster)["generation"], promised(cluster)
        if kill(cluster, what, chance):
            wait_for(lambda: job(cluster)["generation"] > generation, DEADLINE_S, lambda: job(cluster))  # noqa: B023
        trained = job(cluster)["step"]
        wait_for(lambda: job(cluster)["step"] > trained + 3, DEADLINE_S, lambda: job(cluster))  # noqa: B023
        for incident in cluster.client.incidents():
            if incident["generation_to"] and incident["generation_to"] > generation:
                resumed = incident["step_resumed"]
                assert resumed is None or resumed >= promise, f"kill {number}, {what}: {resumed} after {promise}"
                sources[incident["source"]] += 1
    print(f"{KILLS} kills, restores from {dict(sources)}, step {job(cluster)['step']}")
    reported = cluster.client.steps()  # at one moment: the job goes on
    seen = dict(zip(reported["step"], reported["loss"], strict=True))
    cluster.client.stop(0.0)
    wait_for(lambda: job(cluster)["state"] in ("stopped", "failed"), 60, lambda: job(cluster))
    found = list_checkpoints(store.as_uri())
    assert found
    for one in found:
        assert verify(store.as_uri(), one.step) == []
    # Where it was never disturbed, it loses the same bit for bit.
    last = min(max(seen), 150)
    submit(cluster, text, tmp_path / "calm", steps=last)
    wait_for(lambda: job(cluster)["state"] == "finished", DEADLINE_S, lambda: job(cluster))
    reported = cluster.client.steps()
    calm = dict(zip(reported["step"], reported["loss"], strict=True))
    assert [seen[step] for step in range(last)] == [calm[step] for step in range(last)]
