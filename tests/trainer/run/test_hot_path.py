"""The host does not wait for the device within a step; a step that is not finite is applied nowhere all the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from forked import Zygote
from torch import nn

from holdfast.trainer.optim.adamw import AdamW
from holdfast.trainer.optim.update_rules import Peers, Target
from holdfast.trainer.settings.config import OptimConfig

SMALL = ["--set", "model.layers=2", "--set", "train.micro_batches=4"]


@pytest.mark.parametrize("layout", [["--pp", "1"], ["--dp", "2"], ["--tp", "2"]], ids=" ".join)
def test_a_step_reads_no_number_from_a_tensor(
    zygote: Zygote, tiny: list[str], tmp_path: Path, layout: list[str]
) -> None:
    ranks = int(layout[1])
    done = zygote.run("hot_path:reads", ranks, tmp_path, args={"argv": [*tiny, *SMALL, *layout, "--steps", "3"]})
    for result in done["results"]:
        # The first step sets the pipeline up; totals are read as a whole, once.
        assert result["scalars"][1:] == [0, 0]
        assert result["totals"] == [0, 1, 2]


@pytest.mark.parametrize("clip", [0.0, 0.01])
def test_the_device_skips_what_the_host_would(zygote: Zygote, tiny: list[str], tmp_path: Path, clip: float) -> None:
    argv = [*tiny, *SMALL, "--dp", "2", "--steps", "6", "--set", "train.on_nonfinite=skip"]
    argv += ["--set", f"optim.clip_norm={clip}", "--set", "train.dtype=float64"]
    runs = []
    for on_device in (False, True):
        args = {"argv": argv, "on_device": on_device, "bad": [0, 3]}
        done = zygote.run("hot_path:skipping", 2, tmp_path / str(on_device), args=args)
        assert done["exits"] == [0, 0]
        runs.append(done["results"][0])
    for key in ("losses", "norms"):
        host, device = (run[key] for run in runs)
        assert [n for n, value in enumerate(host) if value is None] == [0, 3]
        assert [n for n, value in enumerate(device) if value is None] == [0, 3]
        pairs = [(a, b) for a, b in zip(host, device, strict=True) if a is not None]
        assert [b for _, b in pairs] == pytest.approx([a for a, _ in pairs], rel=1e-9)


def test_a_bad_update_leaves_every_bit() -> None:
    shard = nn.Parameter(torch.randn(4, 8))
    rule = AdamW(OptimConfig(), [Target(shard, True, 1)], Peers(None))  # type: ignore[arg-type]  # it asks none
    for bad in (0.0, 1.0, 0.0):
        before = [shard.detach().clone(), *(t.clone() for t in rule.averages(0).values())]
        shard.grad = torch.full_like(shard, float("nan")) if bad else torch.randn_like(shard)
        rule.update(0.1, 0, torch.tensor(bad))
        after = [shard.detach(), *rule.averages(0).values()]
        unchanged = [torch.equal(a, b) for a, b in zip(before, after, strict=True)]
        assert unchanged == [bool(bad)] * 3
        assert all(bool(t.isfinite().all()) for t in after)
