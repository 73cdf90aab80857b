"""Every layout of eight ranks computes what one process computes."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from forked import Zygote
from reference import Reference
from safetensors import safe_open
from torch import Tensor

from holdfast.trainer.__main__ import parse
from holdfast.trainer.data.corpus import open_corpus
from holdfast.trainer.settings.config import Config, MemoryConfig, OptimConfig, ParallelConfig
from holdfast.trainer.settings.layout import factorisations

pytestmark = pytest.mark.aside

LAYOUTS = sorted(factorisations(8))
STEPS = 4
"""Beyond the two in which the learning rate rises."""
RISING = ["--set", "optim.warmup_steps=2"]


def assembled(folder: Path, world: int) -> dict[str, Tensor]:
    """Whole gradients out of the ranks' tiles; every element must be covered."""
    whole: dict[str, Tensor] = {}
    for rank in range(world):
        with safe_open(folder / f"grads-{rank}.safetensors", "pt") as part:
            for name, tile in json.loads(part.metadata()["tiles"]).items():
                if name not in part.keys():  # noqa: SIM118  # an open file, not a dict
                    continue
                full = whole.setdefault(name, torch.full(tile["shape"], torch.nan, dtype=part.get_tensor(name).dtype))
                place = tuple(slice(o, o + s) for o, s in zip(tile["offset"], tile["size"], strict=True))
                full[place] = part.get_tensor(name)
    return whole


@functools.cache  # of many tests that differ in how the job is laid out only
def alone(config: Config) -> tuple[dict[str, Tensor], list[float]]:
    """What one plain process computes: the gradients of the first step, and the losses of all."""
    oracle = Reference(config, open_corpus(config.data))
    losses = oracle.train(config.train.steps)
    return oracle.first, losses


def compare(
    zygote: Zygote,
    argv: list[str],
    folder: Path,
    world: int = 8,
    steps: int = STEPS,
    within: float = 1e-5,
    task: str = "gradients",
) -> list[Any]:
    """Gradients `within` so much of their norm, losses within ten times that. What the ranks returned. With `task`
    train, losses alone."""
    argv = [*argv, "--steps", str(steps)]
    config = parse(argv)
    train = replace(config.train, recompute="none", activations="device", activation_bytes=0)
    optim = replace(config.optim, state="device", bucket=OptimConfig().bucket, reduce_pieces=0)
    plain = replace(config, parallel=ParallelConfig(), memory=MemoryConfig(), train=train, optim=optim)
    expected, losses = alone(plain)

    done = zygote.run(task, world, folder, args={"argv": argv})
    assert done["exits"] == [0] * world
    grads = expected if task == "train" else assembled(folder, world)
    assert grads.keys() == expected.keys()
    errors = {n: float((grads[n] - g).norm() / g.norm()) for n, g in expected.items()}
    worst = max(errors, key=lambda n: errors[n])
    apart = max(abs(a - b) for r in done["results"] for a, b in zip(r["losses"], losses, strict=True))
    print(f"gradients within {errors[worst]:.1e} ({worst}), losses within {apart:.1e}, {done['seconds']:.1f} s")
    assert errors[worst] < within
    assert apart < 10 * within
    results: list[Any] = done["results"]
    return results


def mesh(pp: int, dp: int, tp: int) -> list[str]:
    return ["--pp", str(pp), "--dp", str(dp), "--tp", str(tp)]


@pytest.mark.slow
@pytest.mark.parametrize(("pp", "dp", "tp"), LAYOUTS)
def test_layout_equals_one_process(zygote: Zygote, tiny: list[str], tmp_path: Path, pp: int, dp: int, tp: int) -> None:
    # Collectives of eight ranks on few cores take their time: no more layers and micro-batches than the layout needs.
    few = [f"model.layers={max(2, pp)}", f"train.micro_batches={dp * (pp if pp > 1 else 2)}"]
    chosen = [word for setting in few for word in ("--set", setting)]
    compare(zygote, [*tiny, *RISING, *chosen, *mesh(pp, dp, tp)], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ["parallel.schedule=gpipe", "model.dropout=0.1"],
        ["parallel.schedule=interleaved", "model.dropout=0.1", "model.block=serial"],
        ["parallel.shard_vocabulary=true", "model.dropout=0.2", "train.micro_batch_size=2"],
    ],
    ids=["gpipe+dropout", "interleaved+dropout+serial", "vocabulary+dropout"],
)
def test_choices_equal_one_process(zygote: Zygote, tiny: list[str], tmp_path: Path, settings: list[str]) -> None:
    few = ["model.layers=4", "train.micro_batches=4"]
    chosen = [word for setting in [*few, *settings] for word in ("--set", setting)]
    compare(zygote, [*tiny, *RISING, *mesh(2, 2, 2), *chosen], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["eager-1f1b", "bfs", "zbv", "interleaved-zero-bubble"])
def test_schedules_equal_one_process(zygote: Zygote, tiny: list[str], tmp_path: Path, schedule: str) -> None:
    """With dropout, which test_pairs.py leaves out: each micro-batch draws its own, whenever its turn comes."""
    few = ["model.layers=4", "model.dropout=0.1", f"parallel.schedule={schedule}"]
    chosen = [word for setting in few for word in ("--set", setting)]
    compare(zygote, [*tiny, *RISING, *mesh(2, 2, 1), *chosen], tmp_path, world=4)


def test_one_rank_equals_reference(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    compare(zygote, [*tiny, "--set", "model.dropout=0.1", "--set", "model.layers=2"], tmp_path, world=1)
