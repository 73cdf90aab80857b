"""The batch script under a real Slurm, without an operator's rights: certificates, agents, a job, its exit code."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.local import leftovers
from holdfast.cli.local.ports import free_ports
from tests.e2e import slurm
from tests.e2e.daemons import ROOT, Commands, wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.calm,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not slurm.CAN, reason=slurm.WHY),
]

SCRIPT = ROOT / "deploy" / "slurm" / "holdfast.sbatch"
TRAIN = """import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {int(total)} runs with {sys.argv[1]} on node {os.environ['GROUP_RANK']}", flush=True)
dist.destroy_process_group()
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def env() -> Iterator[dict[str, str]]:
    folder = Path(tempfile.mkdtemp(prefix="slurm"))  # pytest's own paths are too long for munge's socket
    try:
        with slurm.cluster(folder, ["n0", "n1", "n2"]) as env:
            yield env
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("code", [0, 3])
def test_a_job_in_one_allocation(holdfast: Commands, env: dict[str, str], tmp_path: Path, code: int) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "holdfast"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    program.chmod(0o755)
    (tmp_path / "train.py").write_text(TRAIN)
    http, grpc = map(str, free_ports(2))
    path = f"{program.parent}:{os.environ['PATH']}"
    own = {"HTTP_PORT": http, "GRPC_PORT": grpc, "PER_NODE": "2", "PATH": path, "TMPDIR": str(tmp_path)}
    whole = holdfast.environment({**env, **own, "OMP_NUM_THREADS": "1"})
    out = tmp_path / "out"
    limits = ["--nodes", "3", "--output", str(out), "--parsable", "--wait", str(SCRIPT)]
    job = [str(tmp_path / "train.py"), "--lr=1", str(code)]
    done = subprocess.run(
        ["sbatch", *limits, *job], cwd=tmp_path, env=whole, capture_output=True, text=True, timeout=240, check=False
    )
    text = out.read_text() if out.exists() else ""
    try:
        state = tmp_path / f"holdfast-{done.stdout.strip()}"
        if code == 0:
            assert done.returncode == 0, done.stderr + text
            lines = {line for line in text.splitlines() if "runs with" in line}
            assert {line.split("rank ", 1)[1] for line in lines} == {
                f"{rank} of 4 runs with --lr=1 on node {rank // 2}" for rank in range(4)
            }
        else:
            assert done.returncode == 3, done.stderr + text
        assert sorted(path.name for path in (state / "certs").iterdir()) == [
            "controller",
            "nodes",
            "operator",
            "reader",
        ]
        assert (state / "controller.sqlite").exists()
        wait_for(lambda: slurm.states(env) == dict.fromkeys(["n0", "n1", "n2"], "idle"), 60)
    finally:
        leftovers.end_marked(holdfast.mark)
        for node in ("n0", "n1", "n2"):
            leftovers.remove_shared_memory(tmp_path / f"holdfast-{done.stdout.strip()}-{node}", node)
