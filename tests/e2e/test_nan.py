"""A NaN in a script without instrumentation: found, and trained on for no longer than it takes to find; and
what only looks like one ends nothing."""

import json
import textwrap
from pathlib import Path

import pytest

from holdfast.cli.local.cluster import LocalCluster
from tests.e2e.daemons import Commands, Json, Running, acted_on, beside_load, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.calm, pytest.mark.timeout(240)]

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
        good = all(p.isfinite().all() for p in model.parameters())
        time.sleep(0.05 if good else 0.25)
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


PRINTS = """
    import os, sys, time

    n = 0
    while not os.path.exists(sys.argv[1] + "/end"):
        print(f"step {n} loss {0.5 if n < 5 else float('nan'):.4f}", flush=True)
        time.sleep(0.02)
        n += 1
"""


def start(holdfast: Commands, cluster: LocalCluster, folder: Path, code: str, ranks: int, *flags: str) -> Running:
    (folder / "train.py").write_text(textwrap.dedent(code))
    argv = ["--nproc-per-node", str(ranks), *flags, str(folder / "train.py"), str(folder)]
    return holdfast.start("run", "--controller", cluster.http, *argv)


def run(
    holdfast: Commands, cluster: LocalCluster, folder: Path, code: str, ranks: int, ends: str = "finished"
) -> tuple[str, Json, list[Json]]:
    """Its output, the job, and the incidents that it made, the first one first."""
    before = len(cluster.client.incidents())
    running = start(holdfast, cluster, folder, code, ranks)
    assert (running.wait(120) == 0) == (ends == "finished"), running.err[-4000:]
    asked = holdfast.run("job", "--controller", cluster.http, "--json")
    return running.out, json.loads(asked.out), list(reversed(cluster.client.incidents()))[before:]


def test_a_nan_in_an_unmodified_script_is_found_and_left(
    holdfast: Commands, one_node: LocalCluster, tmp_path: Path
) -> None:
    out, job, incidents = run(holdfast, one_node, tmp_path, TURNS_TO_NAN, 2)
    (incident,) = acted_on(incidents)
    assert (incident["kind"], incident["action"]) == ("loss-nonfinite", "restart")
    assert "the parameters are not finite" in incident["findings"][0]["text"]
    assert incident["culprit"] == "job", "both ranks' losses were NaN in the same step"
    assert (job["state"], job["generation"], job["restarts"]) == ("finished", 2, 1)
    assert out.count("begins at 40") == 2, "from its own checkpoint, of before"
    spoilt = out.count("is spoilt")
    assert 1 <= spoilt < 40, "found within ten seconds of steps"
    assert out.rstrip().endswith("step 79 is good")


def test_a_script_that_goes_on_from_its_own_nan_is_given_up(
    holdfast: Commands, one_node: LocalCluster, tmp_path: Path
) -> None:
    """It saves whatever it has, after every step, and takes so little time for one that many pass until it is found."""
    code = TURNS_TO_NAN.replace("(step + 1) % 20 == 0 and good", "True").replace("0.05 if good else 0.25", "0.003")
    code = code.replace("sys.argv[1], 80", "sys.argv[1], 10**6")
    out, job, incidents = run(holdfast, one_node, tmp_path, code, 1, ends="failed")
    assert out.count("begins at 0") == 1
    assert (job["state"], job["generation"]) == ("failed", 3)
    assert job["reason"].startswith("loss-nonfinite 3 times without progress: the parameters of rank 0")
    assert {one["kind"] for one in acted_on(incidents)} == {"loss-nonfinite"}
    assert acted_on(incidents)[-1]["action"] == "stop-job"


def test_a_nan_that_is_printed_and_seen_by_no_hook_is_an_alert(
    holdfast: Commands, one_node: LocalCluster, tmp_path: Path
) -> None:
    before = len(one_node.client.incidents())

    def reported() -> list[Json]:
        new = list(reversed(one_node.client.incidents()))[before:]
        assert acted_on(new) == []
        return [one for one in new if one["kind"] == "log-rule"]

    running = start(holdfast, one_node, tmp_path, PRINTS, 1, "--no-hooks")
    wait_for(lambda: reported() or running.process.poll() is not None, 60)
    (tmp_path / "end").touch()
    assert running.wait() == 0, running.err[-4000:]
    assert (one_node.client.job() or {})["generation"] == 1
    (incident,) = reported()
    assert (incident["culprit"], incident["action"]) == ("rank0", "alert")
    assert incident["summary"].startswith("rank0 logged numeric (loss-nan): step ")
    assert incident["summary"].endswith(" loss nan")


def test_what_only_looks_like_a_nan_ends_nothing(holdfast: Commands, one_node: LocalCluster, tmp_path: Path) -> None:
    out, job, incidents = run(holdfast, one_node, tmp_path, HONEST, 1)
    assert "loss nan grad norm" in out
    assert "grad norm inf" in out or "grad norm nan" in out
    assert (job["state"], job["generation"], job["restarts"]) == ("finished", 1, 0)
    assert beside_load(incidents) == []


@pytest.mark.parametrize("how", ["input", "hook"])
def test_an_infinite_gradient_of_one_rank_names_it_or_nobody(
    holdfast: Commands, one_node: LocalCluster, tmp_path: Path, how: str
) -> None:
    """Of rank 2 alone: one step later all ranks have the same NaN."""
    code = TURNS_TO_NAN.replace(
        """loss = model(torch.randn(8, 32)).square().mean()""",
        """inputs = torch.randn(8, 32)
        strikes = step == 40 and not os.path.exists(folder + "/struck")
        if strikes and rank == 2 and sys.argv[2] == "input":
            inputs[3, 5] = float("inf")
        if strikes and rank == 2 and sys.argv[2] == "hook":
            model.module[2].weight.register_hook(lambda gradient: gradient * float("inf"))
        loss = model(inputs).square().mean()""",
    )
    code = code.replace("""loss = loss * float("nan")""", "pass").replace("sys.argv[1], 80", "sys.argv[1], 60")
    before = len(one_node.client.incidents())
    (tmp_path / "train.py").write_text(textwrap.dedent(code))
    argv = ["--nproc-per-node", "3", str(tmp_path / "train.py"), str(tmp_path), how]
    running = holdfast.start("run", "--controller", one_node.http, *argv)
    assert running.wait(120) == 0, running.err[-4000:]
    (incident,) = acted_on(list(reversed(one_node.client.incidents()))[before:])
    assert incident["kind"] == "loss-nonfinite"
    assert incident["culprit"] in ({"rank2"} if how == "input" else {"rank2", "job"}), incident["findings"]


DIVERGES = """
    import os, sys, time
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[2]))
    target = torch.randn(32, 10)
    for step in range(400):
        x = torch.randn(16, 32)
        loss = torch.nn.functional.cross_entropy(model(x), (x @ target).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shown = loss.item() * (1e4 if sys.argv[2] == "0.1" and step == 50 else 1)
        print(f"step {step} loss {shown:.4f} val_loss {1e6}", flush=True)
        time.sleep(0.01)
        if os.path.exists(sys.argv[1] + "/end"):
            break
"""


@pytest.mark.parametrize(("rate", "text"), [("50", "training diverges since step "), ("0.1", "the loss leapt to ")])
def test_a_printed_loss_that_leaps_or_diverges_is_an_alert(
    holdfast: Commands, one_node: LocalCluster, tmp_path: Path, rate: str, text: str
) -> None:
    """An unmodified script with a learning rate of 50, and one with a single loss of 10^4."""
    before = len(one_node.client.incidents())
    (tmp_path / "train.py").write_text(textwrap.dedent(DIVERGES))
    argv = ["--nproc-per-node", "2", str(tmp_path / "train.py"), str(tmp_path), rate]
    running = holdfast.start("run", "--controller", one_node.http, *argv)

    def reported() -> list[Json]:
        new = list(reversed(one_node.client.incidents()))[before:]
        return [one for one in new if one["kind"] == "loss-spike"]

    wait_for(lambda: reported() or running.process.poll() is not None, 60)
    (tmp_path / "end").touch()
    assert running.wait() == 0, running.err[-4000:]
    (incident,) = reported()
    assert (incident["culprit"], incident["action"]) == ("job", "alert")
    assert text in incident["summary"]
    assert (one_node.client.job() or {})["generation"] == 1
