"""A NaN in a script that knows nothing of Holdfast: found, and trained on for no longer than it takes to find; and
what only looks like one ends nothing."""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.local.cluster import LocalCluster
from tests.e2e.daemons import Commands, Json, acted_on

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PAUSE_S = 0.05

TURNS_TO_NAN = """
    import os, sys, time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    folder, last = sys.argv[1], 80
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    first = 0
    if os.path.exists(folder + "/c.pt"):
        state = torch.load(folder + "/c.pt")
        model.load_state_dict(state["model"])
        first = state["step"]
    print("begins at", first, flush=True)
    for step in range(first, last):
        loss = model(torch.randn(8, 32)).square().mean()
        if step == 40 and not os.path.exists(folder + "/struck"):
            dist.barrier()
            open(folder + "/struck", "w").close()
            loss = loss * float("nan")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.05)
        good = all(p.isfinite().all() for p in model.parameters())
        if rank == 0:
            print("step", step, "is", "good" if good else "spoilt", flush=True)
            if (step + 1) % 20 == 0 and good:
                torch.save({"model": model.state_dict(), "step": step + 1}, folder + "/c.part")
                os.replace(folder + "/c.part", folder + "/c.pt")
"""

HONEST = """
    import math, time
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    mask = torch.nn.Parameter(torch.tensor([0.0, -math.inf]))  # infinite by design, and in the optimizer
    mask.grad = torch.zeros(2)
    optimizer = torch.optim.SGD([*model.parameters(), mask], lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=4)
    print("epoch 0 val_loss: nan, best loss: inf, eval perplexity inf", flush=True)
    print("reading /data/nan/loss-nan.bin took 120 nanoseconds", flush=True)
    skipped = 0
    for step in range(120):
        labels = torch.full((2,), -100 if step % 3 == 2 else 1)  # a batch without labels: its mean is 0 / 0
        loss = torch.nn.functional.cross_entropy(model(torch.ones(2, 8)), labels)
        model.zero_grad()
        before = scaler.get_scale()
        scaler.scale(100 * loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=False)
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
        print(f"step {step} loss {loss.item():.4f} grad norm {norm.item()} aux_loss nan", flush=True)
        print("| step | loss | val |", f"| {step} | {loss.item():.4f} | nan |", flush=True)
        time.sleep(0.02)
    assert skipped > 3, "steps were left out"
    assert all(p.isfinite().all() for p in model.parameters())
    time.sleep(6)  # as long as an alert of a log line takes
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    patient = ("--hang-floor", "5s")
    with LocalCluster(tmp_path_factory.mktemp("nan"), nodes=1, slots=2, controller_flags=patient) as one:
        yield one


def run(holdfast: Commands, cluster: LocalCluster, folder: Path, code: str, ranks: int) -> tuple[str, Json, list[Json]]:
    """Its output, the job, and the incidents that it made, the first one first."""
    before = len(cluster.client.incidents())
    (folder / "train.py").write_text(textwrap.dedent(code))
    argv = ["--nproc-per-node", str(ranks), str(folder / "train.py"), str(folder)]
    running = holdfast.start("run", "--controller", cluster.http, *argv)
    code_ = running.wait(120)
    assert code_ == 0, running.err[-4000:]
    asked = holdfast.run("job", "--controller", cluster.http, "--json")
    return running.out, json.loads(asked.out), list(reversed(cluster.client.incidents()))[before:]


def test_a_nan_in_an_unmodified_script_is_found_and_left(
    holdfast: Commands, cluster: LocalCluster, tmp_path: Path
) -> None:
    out, job, incidents = run(holdfast, cluster, tmp_path, TURNS_TO_NAN, 2)
    (incident,) = acted_on(incidents)
    assert (incident["kind"], incident["action"]) == ("loss-nonfinite", "restart")
    assert "parameters of rank" in incident["findings"][0]["text"]
    assert (job["state"], job["generation"], job["restarts"]) == ("finished", 2, 1)
    assert out.count("begins at 40") == 2, "from its own checkpoint, of before"
    spoilt = out.count("is spoilt")
    assert 1 <= spoilt <= 2.0 / PAUSE_S, "found within two seconds of steps"
    assert out.rstrip().endswith("step 79 is good")


def test_what_only_looks_like_a_nan_ends_nothing(holdfast: Commands, cluster: LocalCluster, tmp_path: Path) -> None:
    out, job, incidents = run(holdfast, cluster, tmp_path, HONEST, 1)
    assert "loss nan grad norm" in out
    assert "grad norm inf" in out or "grad norm nan" in out
    assert (job["state"], job["generation"], job["restarts"]) == ("finished", 1, 0)
    assert incidents == []
