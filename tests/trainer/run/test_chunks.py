"""Ranks whose model data is in chunks train as ranks do without, send what the formula has, and start again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from forked import Zygote
from torch import Tensor

from tests.trainer.run.test_restart import losses, strike

pytestmark = pytest.mark.aside

STEPS = 6
LAYERS, WIDTH, LENGTH = 8, 32, 16
"""As `tiny` has them."""
PARAMETERS = LAYERS * (12 * WIDTH**2 + WIDTH) + 2 * 256 * WIDTH + WIDTH
"""12 h^2 and a norm a layer, two tables of bytes, the last norm."""
CAP = 600_000
CHUNKED = ["memory.policy=chunks", f"memory.device_bytes={CAP}"]


def words(settings: list[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def laid(dp: int, *settings: str) -> list[str]:
    return ["--dp", str(dp), *words([f"train.micro_batches={dp}", "parallel.zero=3", *settings])]


def whole(folder: Path, world: int) -> dict[str, Tensor]:
    """Parameters out of the ranks' parts of them; every element must be there."""
    found: dict[str, Tensor] = {}
    for rank in range(world):
        for name, (part, shape, offset) in torch.load(folder / f"values-{rank}.pt").items():
            into = found.setdefault(name, torch.full(shape, torch.nan, dtype=part.dtype))
            into[tuple(slice(o, o + s) for o, s in zip(offset, part.shape, strict=True))] = part
    return found


def run(zygote: Zygote, folder: Path, world: int, argv: list[str]) -> tuple[list[Any], dict[str, Tensor]]:
    done = zygote.run("chunking:steps", world, folder, args={"argv": [*argv, "--steps", str(STEPS)]})
    assert done["exits"] == [0] * world
    return done["results"], whole(folder, world)


@pytest.mark.parametrize(
    ("dp", "settings"),
    [
        (1, ["model.tied=true", "model.dropout=0.1"]),
        pytest.param(2, ["model.dropout=0.1"], marks=pytest.mark.slow),
        pytest.param(2, ["model.tied=true", "train.recompute=full", "optim.name=sgd"], marks=pytest.mark.slow),
        pytest.param(4, ["model.block=serial", "model.mlp=swiglu", "memory.evict=fifo"], marks=pytest.mark.slow),
    ],
)
def test_replicas_with_chunks_train_as_replicas_without(
    zygote: Zygote, tiny: list[str], tmp_path: Path, dp: int, settings: list[str]
) -> None:
    cap = f"memory.device_bytes={CAP * (1 if dp == 1 else dp // 2 + 1)}"
    plain = [one for one in settings if not one.startswith("memory.")]
    argv = [*tiny, *laid(dp)]
    expected, before = run(zygote, tmp_path / "whole", dp, [*argv, *words(plain)])
    found, after = run(zygote, tmp_path / "chunks", dp, [*argv, *words([*settings, *CHUNKED, cap])])
    apart = max(abs(a - b) for a, b in zip(found[0]["losses"], expected[0]["losses"], strict=True))
    furthest = max(float((after[name] - value).abs().max()) for name, value in before.items())
    print(f"losses within {apart:.1e}, parameters within {furthest:.1e}, moved {found[0]['moved']}")
    assert all(one["losses"] == found[0]["losses"] for one in found)
    assert after.keys() == before.keys()
    assert apart <= 1e-6
    assert furthest <= 1e-6
    assert len(set(found[0]["losses"])) == STEPS
    if dp == 1:
        assert (apart, furthest) == (0.0, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(("dp", "dtype"), [(1, "float32"), (2, "bfloat16")])
def test_kill_and_restart_repeat_nothing(zygote: Zygote, tiny: list[str], tmp_path: Path, dp: int, dtype: str) -> None:
    argv = [*tiny, *laid(dp, f"train.dtype={dtype}", "model.dropout=0.1"), *words([*CHUNKED, "model.layers=4"])]
    strike(zygote, argv, tmp_path, victim=dp - 1, world=dp)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_checkpoints_are_those_of_any_layout(zygote: Zygote, tiny: list[str], tmp_path: Path, dtype: str) -> None:
    argv = [*tiny, *laid(1, f"train.dtype={dtype}", "model.layers=4"), "--store", (tmp_path / "store").as_uri()]
    once = zygote.run("train", 1, tmp_path / "once", args={"argv": [*argv[:-2], "--steps", "9"]})
    found = []
    for generation, more in enumerate((CHUNKED, [], CHUNKED)):
        words_ = [*argv, *words(more), "--steps", str(3 * generation + 3)]
        done = zygote.run("train", 1, tmp_path / "turns", args={"argv": words_}, generation=generation)
        assert done["exits"] == [0]
        assert done["results"][0]["first"] == 3 * generation
        found += losses(done)
    assert found == losses(once)
