"""A silently corrupted state in the newest snapshot: the job goes back to an earlier checkpoint."""

import textwrap
from pathlib import Path

import pytest

from holdfast.cli.local.cluster import LocalCluster
from tests.e2e.daemons import Commands

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SCRIPT = """
    import os
    import sys
    import time

    import torch
    import torch.distributed as dist
    from holdfast.agent import probe
    from holdfast.checkpoint import Checkpointer
    from holdfast.checkpoint.restore.inspect import list_checkpoints

    dist.init_process_group("gloo")
    generation = int(os.environ["HOLDFAST_GENERATION"])
    model = torch.nn.Linear(4, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    checkpointer = Checkpointer(sys.argv[1], {"model": model}, every=5, keep=20)
    first = checkpointer.restore()
    print(f"generation {generation} goes on from step {first}", flush=True)
    probe.phase("train")
    for step in range(first, 60):
        time.sleep(0.1)
        if generation == 1 and step < 27 and step % 5 == 3:  # copies do lie every five steps, however busy the host is
            while step > 3 and step - 3 not in [one.step for one in list_checkpoints(sys.argv[1])]:
                time.sleep(0.02)
        while generation == 1 and step == 33:  # until it is ended for what it has reported by now
            time.sleep(0.1)
        with torch.no_grad():
            model.weight += step
            if generation == 1 and step == 27 and dist.get_rank() == 1:
                model.weight[0, 2] = float("inf")  # no report of this
        dist.all_reduce(model.weight.data)
        model.weight.data /= 2
        loss = float(model.weight.sum())
        checkpointer.step(step + 1)
        probe.step(step, loss=loss)
    checkpointer.close()
    print(f"the sum is {float(model.weight.sum()):.0f}", flush=True)
"""


def test_a_bad_state_is_left_behind_and_the_result_is_that_of_a_good_run(
    holdfast: Commands, one_node: LocalCluster, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    before = len(one_node.client.incidents())
    words = ("--nproc-per-node", "2", str(path), (tmp_path / "store").as_uri())
    run = holdfast.start("run", "--controller", one_node.http, *words)
    assert run.wait(150) == 0, run.err[-4000:]
    incidents = list(reversed(one_node.client.incidents()))[before:]
    job = one_node.client.job()
    assert job is not None
    assert (job["generation"], job["state"]) == (3, "finished")
    last = incidents[-1]
    assert (last["kind"], last["action"], last["state"], last["source"]) == (
        "loss-nonfinite",
        "roll-back",
        "closed",
        "store",
    )
    resumed = [int(line.rpartition(" ")[2]) for line in run.out.splitlines() if "[0] generation" in line]
    assert resumed[0] == 0
    assert 27 <= resumed[1] < 40
    # Ten steps before the loss that was bad at once; copies are kept every five, the last may not be in the store yet.
    assert f"rolling back to a checkpoint of at most {resumed[1] - 10} steps" in last["reason"]
    assert resumed[1] - 20 < resumed[2] <= resumed[1] - 10
    assert f"the sum is {4 * sum(range(60))}" in run.out
