"""Scripts without instrumentation, and how their attempts end: what is progress, and which rank left."""

from pathlib import Path
from urllib.request import urlopen

import pytest

from holdfast.cli.local.cluster import LocalCluster
from tests.e2e.daemons import Commands, acted_on
from tests.e2e.test_run import WARM_S, Runs, script

pytestmark = [pytest.mark.slow, pytest.mark.calm, pytest.mark.timeout(240)]


@pytest.fixture
def runs(holdfast: Commands, one_node: LocalCluster) -> Runs:
    return Runs(holdfast, one_node)


LEAKS = """
import os, sys, torch
path = sys.argv[1]
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
begin = torch.load(path)["n"] if os.path.exists(path) else 0
print("from", begin, flush=True)
for n in range(begin, 60):
    weight.grad = torch.ones(1)
    optimizer.step()
    if n - begin >= 11 and n < 59:
        raise RuntimeError("cannot allocate memory")
    torch.save({"n": n + 1}, path + ".part")
    os.replace(path + ".part", path)
"""


def test_a_script_that_goes_on_from_its_own_checkpoints_is_not_given_up(runs: Runs, tmp_path: Path) -> None:
    before = len(runs.cluster.client.incidents())
    named = ("--name", "leaks")  # by which its metrics are found
    run = runs.start("--nproc-per-node", "1", *named, script(tmp_path, LEAKS), str(tmp_path / "own.pt"))
    assert run.wait(WARM_S) == 0, run.err[-4000:]
    assert [line for line in run.out.splitlines() if "from" in line] == [f"[0] from {n}" for n in range(0, 60, 11)]
    job = runs.ask("job")
    assert (job["state"], job["generation"]) == ("finished", 6)
    assert job["step"] == 5 * 12 + 5 - 1  # counted over all attempts: five of twelve steps, and the last
    assert job["steps_counted"]
    assert job["progress"].startswith("checkpoint ")
    assert job["time"]["lost"]["recompute"] is None
    found = runs.new_incidents(before)
    assert {one["kind"] for one in acted_on(found)} == {"worker-exception"}
    assert all(one["step_resumed"] is None for one in found)
    (pattern,) = [one for one in found if one["kind"] == "lives-alike"]
    assert "the last 3 restart attempts ended alike after 12 steps" in pattern["summary"]
    assert "each of them finished a checkpoint" in pattern["summary"]
    shown = runs.holdfast.run("job", "--controller", runs.cluster.http)
    assert "recompute unknown" in " ".join(shown.out.split())
    reported = runs.holdfast.run("incidents", str(found[0]["id"]), "--controller", runs.cluster.http)
    assert "-> unknown" in reported.out
    with urlopen(f"http://{runs.cluster.http}/metrics") as answer:
        own = [line for line in answer.read().decode().splitlines() if 'job="leaks"' in line]
    assert any('reason="detect"' in line for line in own)
    assert not any('reason="recompute"' in line for line in own)


SAVES_IN_EVERY_WAY = """
import os, pickle, sys, time
import numpy as np, torch
from safetensors.torch import save_file
folder = sys.argv[1]
attempts = len(os.listdir(folder))
os.makedirs(f"{folder}/checkpoint-{attempts}")
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
for n in range(4):
    weight.grad = torch.ones(1)
    optimizer.step()
path = f"{folder}/checkpoint-{attempts}/state"
if attempts % 3 == 0:
    save_file({"weight": weight.detach()}, path)
elif attempts % 3 == 1:
    np.savez(path, weight=weight.detach().numpy())
else:
    with open(path, "wb") as file:
        pickle.dump(weight, file)
if attempts < 6:
    raise RuntimeError("cannot allocate memory")
"""


def test_a_script_whose_short_attempts_save_by_any_library_is_not_given_up(runs: Runs, tmp_path: Path) -> None:
    """Four steps and the same error each time would be a bug, but for the checkpoints."""
    (tmp_path / "out").mkdir()
    run = runs.start("--nproc-per-node", "1", script(tmp_path, SAVES_IN_EVERY_WAY), str(tmp_path / "out"))
    assert run.wait(WARM_S) == 0, run.err[-4000:]
    job = runs.ask("job")
    assert (job["state"], job["generation"]) == ("finished", 7)
    assert job["progress"] == f"checkpoint {tmp_path}/out/checkpoint-6/state"


PRINTS = """
import os, sys
path = sys.argv[1]
begin = int(open(path).read()) if os.path.exists(path) else 0
for n in range(begin, 24):
    print(f"step {n} loss 0.5", flush=True)
    with open(path, "w") as file:
        file.write(str(n + 1))
    if n % 4 == 3 and n < 23:
        raise RuntimeError("cannot allocate memory")
"""


def test_progress_that_only_the_log_reports(runs: Runs, tmp_path: Path) -> None:
    """Nothing of it is seen but what it prints: no hook, no step, no checkpoint."""
    before = len(runs.cluster.client.incidents())
    path = script(tmp_path, PRINTS)
    run = runs.start("--nproc-per-node", "1", "--no-hooks", path, str(tmp_path / "own"))
    assert run.wait(WARM_S) == 0, run.err[-4000:]
    job = runs.ask("job")
    assert (job["state"], job["generation"], job["step"]) == ("finished", 6, -1)
    assert job["progress"] == "its log: step 23 loss 0.5"
    assert {one["kind"] for one in acted_on(runs.new_incidents(before))} == {"worker-exception"}


STEPS_AND_FAILS = """
import sys, torch
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
for n in range(int(sys.argv[1])):
    weight.grad = torch.ones(1)
    optimizer.step()
raise RuntimeError("a batch that is not there")
"""


def test_the_same_error_at_the_third_step_of_each_attempt_is_given_up(runs: Runs, tmp_path: Path) -> None:
    run = runs.start("--nproc-per-node", "1", script(tmp_path, STEPS_AND_FAILS), "3")
    assert run.wait(WARM_S) == 1
    job = runs.ask("job")
    assert (job["state"], job["generation"]) == ("failed", 3)
    assert job["reason"].startswith("the same traceback 3 times without progress: rank 0 ")
    assert job["reason"].endswith(" raised RuntimeError: a batch that is not there")


def test_a_loop_of_equally_long_attempts_ends_with_its_restarts_and_is_reported(runs: Runs, tmp_path: Path) -> None:
    before = len(runs.cluster.client.incidents())
    run = runs.start("--nproc-per-node", "1", "--max-restarts", "5", script(tmp_path, STEPS_AND_FAILS), "12")
    assert run.wait(WARM_S) == 1
    job = runs.ask("job")
    assert (job["state"], job["generation"], job["restarts"]) == ("failed", 6, 5)
    assert job["reason"] == "the job has used its 5 restarts"
    reported = [one["summary"] for one in runs.new_incidents(before) if one["kind"] == "lives-alike"]
    assert len(reported) == 2
    for summary, attempts in zip(reported, (3, 6), strict=True):
        assert f"the last {attempts} restart attempts ended alike after 12 steps" in summary
        assert "none of them finished a checkpoint" in summary


LEAVES = """
import os, sys, time
import torch, torch.distributed as dist
how, once = sys.argv[1:]
dist.init_process_group("gloo")
rank = dist.get_rank()
weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([weight], lr=0.1)
def step(alone=False):
    weight.grad = torch.ones(1)
    if not alone:
        dist.all_reduce(weight.grad)
    optimizer.step()
for n in range(60):
    step()
    if how == "leaves" and rank == 1 and n == 20 and not os.path.exists(once):
        open(once, "w").close()
        print("that is all", flush=True)
        sys.exit(0)
    time.sleep(0.01)
if how == "alone" and rank == 0:
    for n in range(60):
        step(alone=True)
        time.sleep(0.05)
if how == "late" and rank == 2:
    time.sleep(2)
    torch.save(weight, once)
print("rank", rank, "is done", flush=True)
"""


def test_a_rank_that_leaves_in_mid_run_is_the_culprit_and_one_that_is_done_is_not(runs: Runs, tmp_path: Path) -> None:
    path = script(tmp_path, LEAVES)
    for how in ("leaves", "alone", "late"):
        before = len(runs.cluster.client.incidents())
        run = runs.start("--nproc-per-node", "4", path, how, str(tmp_path / how))
        assert run.wait(WARM_S) == 0, run.err[-4000:]
        assert sum("is done" in line for line in run.out.splitlines()) == 4, how
        found = acted_on(runs.new_incidents(before))
        if how != "leaves":
            assert found == []
            continue
        (incident,) = found
        assert (incident["kind"], incident["culprit"]) == ("worker-left", "rank1")
        assert "rank 1 ended with exit code 0 after step 20 while 3 ranks were still training" in incident["summary"]
        assert runs.ask("job")["generation"] == 2
