"""`holdfast run` in torchrun's place: scripts without instrumentation, on a cluster of real daemons."""

import json
import os
import re
import signal
import textwrap
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.local import leftovers
from holdfast.cli.local.cluster import LocalCluster
from holdfast.cli.main import main
from tests.e2e.daemons import Commands, Json, Running, acted_on, commands, one_line, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SCRIPT = Path(__file__).parent / "scripts" / "ddp_mnist_like.py"
WARM_S = 120.0
"""The first job waits for torch's import, on a machine that may be busy with other tests."""


class Runs:
    """`holdfast` with the cluster's address preset."""

    def __init__(self, holdfast: Commands, cluster: LocalCluster) -> None:
        self.holdfast, self.cluster = holdfast, cluster

    def start(self, *argv: str, **more: Any) -> Running:
        return self.holdfast.start("run", "--controller", self.cluster.http, *argv, **more)

    def ask(self, *argv: str) -> Json:
        """In this process: another would take half a second to import what is here."""
        with redirect_stdout(StringIO()) as out:
            assert main([*argv, "--controller", self.cluster.http, "--json"]) == 0
        found: Json = json.loads(out.getvalue())
        return found

    def new_incidents(self, before: int) -> list[Json]:
        return list(reversed(self.cluster.client.incidents()))[before:]


@pytest.fixture
def runs(holdfast: Commands, one_node: LocalCluster) -> Runs:
    return Runs(holdfast, one_node)


def script(folder: Path, code: str, name: str = "train.py") -> str:
    path = folder / name
    path.write_text(textwrap.dedent(code))
    return str(path)


def losses(text: str) -> dict[int, float]:
    """The last that was printed for each step."""
    found = re.findall(r"^\[0\] epoch \d+ step (\d+) loss (\S+)$", text, re.MULTILINE)
    return {int(step): float(loss) for step, loss in found}


def test_an_unmodified_script_survives_the_death_of_a_worker(runs: Runs, tmp_path: Path) -> None:
    long = ["--epochs", "12"]
    calm = runs.start("--nproc-per-node", "4", str(SCRIPT), *long, "--checkpoint", str(tmp_path / "calm.pt"))
    assert calm.wait(WARM_S) == 0, calm.err[-4000:]
    before = len(runs.cluster.client.incidents())
    assert "[0] world 4, starting at step 0\n" in calm.out
    assert all(f"[{rank}] rank {rank} of 4 is done after step 120\n" in calm.err for rank in range(4))
    assert list(losses(calm.out)) == list(range(1, 121))
    assert all(re.match(r"\[\d\] ", line) for line in calm.out.splitlines())

    struck = runs.start(
        "--nproc-per-node=4", str(SCRIPT), *long, "--checkpoint", str(tmp_path / "struck.pt"), "--pause", "0.08"
    )
    client = runs.cluster.client

    def step() -> int:
        job = client.job()
        return int(job["step"]) if job is not None and job["max_steps"] is None and job["state"] == "running" else -1

    wait_for(lambda: step() >= 12 and struck.process.poll() is None, 60, lambda: client.job())
    shown = runs.ask("status")["job"]
    assert shown["step"] >= 12
    assert shown["state"] == "running"
    assert (shown["name"], shown["world_size"]) == ("ddp_mnist_like", 4)
    victim = worker(runs.cluster, 2)
    os.kill(victim, signal.SIGKILL)
    assert struck.wait(90) == 0, struck.err[-4000:]

    job = runs.ask("job")
    assert (job["state"], job["generation"], job["restarts"], job["exit_code"]) == ("finished", 2, 1, 0)
    assert job["step"] >= shown["step"]
    assert "starting at step 0\n" in struck.out
    assert re.search(r"\[0\] world 4, starting at step [1-9]\d*\n", struck.out)
    # DDP's first step after any start has other buckets, so sums may round otherwise: that is the script's own affair.
    assert losses(struck.out) == pytest.approx(losses(calm.out), abs=1e-4)
    [incident] = acted_on(runs.new_incidents(before))
    assert (incident["kind"], incident["culprit"], incident["state"]) == ("worker-killed", "rank2", "closed")
    assert (incident["generation_from"], incident["generation_to"]) == (1, 2)
    said = struck.err.splitlines()
    assert f"incident {incident['id']}: worker-killed on rank2, seen after" in struck.err
    assert said[-1].startswith("holdfast: job ddp_mnist_like finished after ")
    for generation, begins in (("-1", True), ("2", False)):
        printed = runs.holdfast.run(
            "logs", "rank0", "--generation", generation, "--grep", "^world", "--controller", runs.cluster.http
        )
        assert (printed.out == "[0] world 4, starting at step 0\n") == begins, printed.out
        assert re.fullmatch(r"\[0\] world 4, starting at step \d+\n", printed.out), printed.err


def worker(cluster: LocalCluster, rank: int) -> int:
    """The process of this rank, found as a person would: by what `ps` shows. Other tests may run on this host, too."""
    for pid in leftovers.marked(cluster._mark):
        with suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text().strip() == f"holdfast-r{rank}":
                return pid
    raise AssertionError(f"no process is holdfast-r{rank}")


def test_the_exit_code_comes_back(runs: Runs, tmp_path: Path) -> None:
    quick = ["--epochs", "1", "--checkpoint", str(tmp_path / "c.pt"), "--exit-code", "3"]
    run = runs.start("--nproc-per-node", "4", "--max-restarts", "0", str(SCRIPT), *quick)
    assert run.wait(WARM_S) == 3
    assert run.err.splitlines()[-2].startswith("holdfast: job ddp_mnist_like failed: ")
    assert run.err.splitlines()[-1].startswith("holdfast: next: Correct the cause and start the job again; ")
    assert (runs.ask("job")["state"], runs.ask("job")["exit_code"]) == ("failed", 3)


def test_a_bug_ends_the_job_after_a_few_attempts_and_blames_no_node(runs: Runs, tmp_path: Path) -> None:
    before = len(runs.cluster.client.incidents())
    path = script(
        tmp_path,
        """
        import torch
        def forward(x):
            return x @ torch.zeros(3, 3)
        forward(torch.zeros(2, 2))
        """,
    )
    run = runs.start("--nproc-per-node", "2", path)
    assert run.wait(WARM_S) == 1
    reason = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x2 and 3x3)"
    last = run.err.splitlines()[-2]
    assert last.startswith("holdfast: job train failed: ")
    assert reason in last
    assert re.search(r'^\[[01]\]   File ".*/train.py", line 4, in forward$', run.err, re.MULTILINE)
    job = runs.ask("job")
    assert (job["state"], job["generation"]) == ("failed", 3)
    found = acted_on(runs.new_incidents(before))
    assert {incident["kind"] for incident in found} == {"worker-exception"}
    assert found[-1]["action"] == "stop-job"
    wait_for(lambda: {node["state"] for node in runs.cluster.client.nodes()} == {"healthy"})


STEPS = """
import sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(12):
    weight.grad = torch.ones(1)
    dist.all_reduce(weight.grad)
    optimizer.step()
print("trained", *sys.argv[1:])
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("flags", "steps"), [((), 11), (("--no-hooks",), -1), (("--fresh",), 11)], ids=["as it is", "no hooks", "fresh"]
)
def test_the_flags(runs: Runs, tmp_path: Path, flags: tuple[str, ...], steps: int) -> None:
    run = runs.start("--nproc-per-node", "2", *flags, script(tmp_path, STEPS), "--lr", "-1")
    assert run.wait(WARM_S) == 0, run.err[-4000:]
    assert sorted(re.findall(r"^\[(\d)\] trained --lr -1$", run.out, re.MULTILINE)) == ["0", "1"]
    assert runs.ask("job")["step"] == steps


def test_a_module(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").touch()
    script(tmp_path / "pack", "import sys\nprint(__name__, __package__, sys.argv[1:])\n", "train.py")
    run = runs.start("-m", "pack.train", "--deep", cwd=tmp_path)
    assert run.wait(WARM_S) == 0, run.err[-4000:]
    assert run.out == "[0] __main__ pack ['--deep']\n"


def test_a_module_to_preload_that_is_not_installed(runs: Runs, tmp_path: Path) -> None:
    run = runs.start("--preload", "json,no_such_framework", script(tmp_path, "print('started')"))
    assert run.wait(WARM_S) == 2
    assert run.out == ""
    assert "--preload: no module named no_such_framework for the workers' Python" in run.err


def test_a_script_that_refuses_its_arguments_is_not_started_again(runs: Runs, tmp_path: Path) -> None:
    code = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr')\nparser.parse_args()\n"
    run = runs.start("--nproc-per-node", "2", script(tmp_path, code), "--rl", "1")
    assert run.wait(WARM_S) == 2, run.err[-4000:]
    job = runs.ask("job")
    assert (job["state"], job["generation"], job["exit_code"]) == ("failed", 1, 2)
    assert "train.py: error: unrecognized arguments: --rl 1" in run.err.splitlines()[-2]


def test_a_script_that_does_not_exist(runs: Runs) -> None:
    run = runs.start("--nproc-per-node", "4", "gone.py")
    assert run.wait() == 2
    assert "no such script: gone.py" in one_line(run.err)


def test_a_module_that_does_not_exist(runs: Runs, tmp_path: Path) -> None:
    """Only the workers can know: they end, and so does the job, with the reason."""
    run = runs.start("-m", "no.such.module", cwd=tmp_path)
    assert run.wait(WARM_S) != 0
    assert "No module named" in run.err.splitlines()[-2]


def test_ctrl_c_stops_the_job(runs: Runs, tmp_path: Path) -> None:
    path = script(tmp_path, "import time\nprint('up', flush=True)\nwhile True: time.sleep(1)\n")
    run = runs.start("--nproc-per-node", "2", path)
    run.says("[1] up", WARM_S)
    run.signal(signal.SIGINT)
    assert run.wait() == 130
    assert runs.ask("job")["state"] == "stopped"
    wait_for(lambda: runs.cluster.client.ranks()["rank"] == [0, 1])


def test_without_a_controller_it_brings_its_own(tmp_path: Path) -> None:
    path = script(tmp_path, "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n")
    with commands(tmp_path / "own") as own:
        env = {"XDG_STATE_HOME": str(tmp_path)}
        run = own.start("run", "--nproc-per-node", "2", path, env=env)
        assert run.wait(WARM_S) == 0, run.err[-4000:]
        assert sorted(run.out.splitlines()) == ["[0] rank 0 of 2", "[1] rank 1 of 2"]
        assert "started one here: http://127.0.0.1:" in run.err
        assert own.left() == []
