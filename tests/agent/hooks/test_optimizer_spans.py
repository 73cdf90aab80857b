"""What an optimizer's step does is in its span, whatever class it is of and whatever it calls."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.probe_file import layout

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs torch")

# The clock of the spans stands but for what the script adds to it.
SCRIPT = """
import json, socket, sys, types
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from holdfast.agent import observations, probe
from holdfast.agent.hooks import spans, torch_hooks

clock = types.SimpleNamespace(now=0)
spans.time = types.SimpleNamespace(monotonic_ns=lambda: clock.now, thread_time_ns=lambda: clock.now)
seen, steps = [], []
record, step = probe.record, observations.step
probe.record = lambda kind, start, end, **more: seen.append([kind, end - start]) or record(kind, start, end, **more)
observations.step = lambda number, *args, **more: steps.append(number) or step(number, *args, **more)
probe.attach()
torch_hooks.install()
with socket.socket() as found:
    found.bind(("127.0.0.1", 0))
    port = found.getsockname()[1]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)

class Slow(torch.optim.SGD):
    def step(self, closure=None):
        clock.now += 3
        loss = super().step(closure)
        clock.now += 4
        return loss

class Fails(torch.optim.SGD):
    tries = 0
    def step(self, closure=None):
        self.tries += 1
        if self.tries == 1:
            raise ValueError("not now")
        return super().step(closure)

def forward(module, args):
    clock.now += 100

results = {}
def run(name, make, with_closure=False):
    net = torch.nn.Linear(2, 2)
    model = DistributedDataParallel(net)
    net.register_forward_pre_hook(forward)
    optimizer = make(net.parameters())
    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(1, 2)).sum()
        loss.backward()
        return loss
    for _ in range(2):
        seen.clear()
        steps.clear()
        try:
            if not with_closure:
                closure()
            optimizer.step(*[closure] * with_closure)
        except ValueError:
            pass
    results[name] = {"spans": [one for one in seen if one[0] in ("forward", "optimizer")], "steps": len(steps)}

run("alone", lambda p: Slow(p, lr=0.1))
torch_hooks_first = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
run("base has hooks", lambda p: Slow(p, lr=0.1))
run("closure", lambda p: Slow(p, lr=0.1), True)
run("after an error", lambda p: Fails(p, lr=0.1))
print(json.dumps(results))
sys.stdout.flush()
import os
os._exit(0)
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By case, of the second step: spans of forward and optimizer with their length, and how many steps counted."""
    path: Path = tmp_path_factory.mktemp("spans") / "probe"
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), layout.ENV_PATH: str(path)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=env, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("case", ["alone", "base has hooks"])
def test_a_class_and_its_base_are_one_step(seen: dict[str, Any], case: str) -> None:
    """torch gives its hooks to both where both have instances."""
    assert seen[case]["spans"] == [["forward", 100], ["optimizer", 7]]


def test_what_a_closure_does_is_not_the_optimizers(seen: dict[str, Any]) -> None:
    assert seen["closure"]["spans"] == [["optimizer", 3], ["forward", 100], ["optimizer", 4]]


def test_a_step_that_failed_is_over(seen: dict[str, Any]) -> None:
    assert seen["after an error"]["spans"] == [["forward", 100], ["optimizer", 0]]


def test_each_counts_once(seen: dict[str, Any]) -> None:
    """Only the steps of the first optimizer are the job's."""
    assert {case: one["steps"] for case, one in seen.items()}["alone"] == 1
    assert max(one["steps"] for one in seen.values()) == 1
