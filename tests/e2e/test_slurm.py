"""Under a real Slurm: a node that dies in the middle of training is drained with a reason, and the spare takes over."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.base.config.client import ClientConfig
from holdfast.cli.common.client import Client
from holdfast.cli.local import leftovers
from tests.e2e import slurm
from tests.e2e.daemons import HOLDFAST, Commands, Json, ready, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.calm,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not slurm.CAN, reason=slurm.WHY),
]

NODES = ["n0", "n1", "n2"]


@pytest.fixture
def env() -> Iterator[dict[str, str]]:
    folder = Path(tempfile.mkdtemp(prefix="slurm"))  # pytest's own paths are too long for munge's socket
    try:
        with slurm.cluster(folder, NODES) as env:
            yield env
    finally:
        shutil.rmtree(folder)


def test_a_dead_node_is_drained_and_the_spare_takes_over(
    holdfast: Commands, env: dict[str, str], tmp_path: Path
) -> None:
    ports = ("--grpc-port", "0", "--http-port", "0")
    flags = ("--scheduler", "slurm", "--agent-grace", "3s", "--silence-floor", "4s", "--hang-floor", "5s")
    controller = holdfast.start("controller", *ports, *flags, "--state-dir", str(tmp_path / "controller"), env=env)
    grpc, http = ready(controller)
    client = Client(ClientConfig(controller=http), timeout=30.0)  # it starts while all else does
    whole = holdfast.environment(env)
    agents = []
    try:
        for node in NODES:
            argv = ["srun", "--nodelist", node, "--nodes", "1", "--oversubscribe", *HOLDFAST, "agent", "--controller"]
            rest = [grpc, "--node-name", node, "--slots", "2", "--state-dir", str(tmp_path / node)]
            with open(tmp_path / f"{node}.log", "wb") as log:
                agents.append(subprocess.Popen([*argv, *rest], stdout=log, stderr=log, env=whole))
        wait_for(lambda: len([n for n in client.nodes() if n["connected"]]) == 3, 60, lambda: client.nodes())
        mesh = ("--pp", "2", "--dp", "2", "--steps", "1000000", "--checkpoint-every", "5")
        store = ("--store", f"file://{tmp_path / 'store'}")
        argv = ("--nnodes", "2", "--nproc-per-node", "2", "-m", "holdfast.trainer")
        run = holdfast.start("run", "--controller", http, *argv, *mesh, *store)

        def job() -> Json:
            assert run.process.poll() is None, run.err[-3000:]
            return client.job() or {"step": None}

        wait_for(lambda: (job()["step"] or 0) >= 12, 120, job)
        used = {n["name"] for n in client.nodes() if n["ranks"]}
        (spare,) = set(NODES) - used
        gone = sorted(used)[0]
        before = int(job()["step"])
        client.inject("node-kill:node0")
        wait_for(lambda: "drain" in slurm.states(env).get(gone, ""), 60, lambda: (slurm.states(env), client.nodes()))
        wait_for(lambda: slurm.reasons(env).get(gone, "").startswith("holdfast: "), 60, lambda: slurm.reasons(env))
        assert not any("drain" in state for name, state in slurm.states(env).items() if name != gone)
        wait_for(lambda: (job()["step"] or 0) > before + 10, 120, job)
        assert {n["name"] for n in client.nodes() if n["ranks"]} == (used - {gone}) | {spare}

        # Repaired by people: back in service in Slurm and in Holdfast.
        if gone in {n["name"] for n in client.nodes()}:
            done = holdfast.run("cordon", spare, "--controller", http)
            assert done.process.returncode == 0, done.err
            wait_for(lambda: "drain" in slurm.states(env).get(spare, ""), 60, lambda: slurm.states(env))
            wait_for(lambda: slurm.reasons(env).get(spare) == "holdfast: cordoned", 60, lambda: slurm.reasons(env))
            done = holdfast.run("uncordon", spare, "--controller", http)
            assert done.process.returncode == 0, done.err
            wait_for(lambda: "drain" not in slurm.states(env).get(spare, "drain"), 60, lambda: slurm.states(env))

        def reported() -> set[str]:
            return {json.loads(line)["event"] for line in controller.err.splitlines() if "scheduler." in line}

        # The log has it after Slurm does.
        wait_for(lambda: {"scheduler.out", "scheduler.in"} <= reported(), 60, reported)
    finally:
        client.stop(0.0)
        client.close()
        for agent in agents:
            agent.terminate()
        for agent in agents:
            agent.wait(60)
        # A dead host's memory goes with it. These are on a host that stays up, as workers without their agent do.
        leftovers.end_marked(holdfast.mark)
        for node in NODES:
            leftovers.remove_shared_memory(tmp_path / node, node)
