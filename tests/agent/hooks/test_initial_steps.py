"""The step by which torch makes an optimizer's state is no step of training."""

import subprocess
import sys
import time
from pathlib import Path

from holdfast.agent.probe_file import layout
from holdfast.agent.probe_file.reader import ProbeReader
from holdfast.wire.types import Phase

SCRIPT = """
import sys
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from holdfast.agent import probe
from holdfast.agent.hooks import torch_hooks
probe.attach()
torch_hooks.install()
net = torch.nn.Linear(2, 2)
optimizer = torch.optim.AdamW(net.parameters())
torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1.0)
get_optimizer_state_dict(net, optimizer)
assert len(optimizer.state) == 2
print("restored", flush=True)
sys.stdin.readline()
for _ in range(2):
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
print("stepped", flush=True)
"""


def test_a_restore_counts_no_step(tmp_path: Path) -> None:
    path = tmp_path / "probe"
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), layout.ENV_PATH: str(path)},
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "restored\n"
        reader = ProbeReader(str(path), "j")
        assert reader.new_steps() == []
        sample = reader.sample(time.monotonic_ns())
        assert (sample.step, sample.phase) == (-1, Phase.START)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "stepped\n"
        assert [record.step for record in reader.new_steps()] == [0, 1]
        reader.close()
