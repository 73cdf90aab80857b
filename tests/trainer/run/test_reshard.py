"""A checkpoint of one layout goes on in any other: the same bits, and the same losses as far as floats allow."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from forked import Zygote

from holdfast.checkpoint.restore.inspect import find
from holdfast.checkpoint.stores.opening import open_store

pytestmark = pytest.mark.aside

SETTINGS = {"model.layers": 4, "train.micro_batches": 8, "model.dropout": 0.1, "optim.warmup_steps": 2}
SMALL = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
SAVED, STEPS = 2, 4
"""The first step after restoring shows the parameters, the second the moments."""


def mesh(pp: int, dp: int, tp: int, *settings: str) -> list[str]:
    flags = ["--pp", str(pp), "--dp", str(dp), "--tp", str(tp)]
    return flags + [word for setting in settings for word in ("--set", setting)]


def save(zygote: Zygote, tiny: list[str], folder: Path, *settings: str) -> tuple[str, list[float]]:
    """Train half way at (2, 2, 2), and to the end by one process; the store of the former, all losses of the latter."""
    store = (folder / "store").as_uri()
    argv = [*tiny, *SMALL, *mesh(2, 2, 2, *settings), "--store", store, "--steps", str(SAVED)]
    first = zygote.run("train", 8, folder / "first", args={"argv": argv})
    assert first["exits"] == [0] * 8
    kept = [setting for setting in settings if "zero" not in setting]
    plain = [*tiny, *SMALL, *mesh(1, 1, 1, *kept), "--steps", str(STEPS)]
    whole = zygote.run("train", 1, folder / "whole", args={"argv": plain})
    assert whole["exits"] == [0]
    losses: list[float] = whole["results"][0]["losses"]
    assert first["results"][0]["losses"] == pytest.approx(losses[:SAVED], rel=1e-5)
    return store, losses


def go_on(
    zygote: Zygote, tiny: list[str], folder: Path, saved: tuple[str, list[float]], layout: list[str], world: int
) -> None:
    store, losses = saved
    _, manifest = find(open_store(store))
    argv = [*tiny, *SMALL, *layout, "--store", store, "--set", "checkpoint.keep=9"]
    args = {"argv": argv, "steps": STEPS}
    done = zygote.run("resharding:gone_on", world, folder / "on", args=args, generation=1)
    assert done["exits"] == [0] * world
    ranks: list[dict[str, Any]] = done["results"]
    assert [(rank["step"], rank["applied"], rank["differ"]) for rank in ranks] == [(SAVED, SAVED, [])] * world
    # Every byte that is in the store was read once by all ranks together: headers are the one percent and a bit.
    assert sum(rank["bytes_read"] for rank in ranks) == manifest.num_bytes
    # No rank was given more than its own part of what is split.
    if world > 1 and "parallel.zero=0" not in layout:
        most = max(sum(math.prod(size) for _, size in rank["boxes"].values()) for rank in ranks)
        assert most < sum(math.prod(tensor.shape) for tensor in manifest.tensors.values())
    assert {rank["first"] for rank in ranks} == {SAVED}
    assert ranks[0]["losses"] == pytest.approx(losses[SAVED:], rel=1e-5)


LAYOUTS = [
    (8, mesh(1, 8, 1, "parallel.zero=0")),
    (8, mesh(1, 4, 2, "parallel.zero=3")),
    (8, mesh(4, 2, 1, "parallel.zero=2")),
    (8, mesh(4, 1, 2, "parallel.schedule=gpipe")),
    (8, mesh(2, 4, 1, "parallel.schedule=interleaved")),
    (8, mesh(2, 1, 4, "parallel.schedule=zbv")),
    (8, mesh(1, 1, 8, "parallel.sequence=true")),
    (8, mesh(1, 2, 4, "parallel.zero=1", "parallel.shard_vocabulary=false")),
    (4, mesh(2, 2, 1)),
    (4, mesh(1, 4, 1, "parallel.zero=0")),
    (1, mesh(1, 1, 1)),
    (4, mesh(1, 2, 2, "parallel.sequence=true")),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "layouts"),
    [
        # A store holds whole tensors, whichever ranks wrote them: each layout reads one of these three.
        (["parallel.zero=1"], LAYOUTS[::3]),
        (["parallel.zero=2", "optim.name=lamb", "model.tied=true"], LAYOUTS[1::3]),
        (["parallel.zero=3"], LAYOUTS[2::3]),
    ],
    ids=["zero 1", "zero 2, lamb, tied", "zero 3"],
)
def test_a_checkpoint_goes_on_anywhere(
    zygote: Zygote, tiny: list[str], tmp_path: Path, settings: list[str], layouts: list[tuple[int, list[str]]]
) -> None:
    saved = save(zygote, tiny, tmp_path, *settings)
    kept = [word for setting in settings if "zero" not in setting for word in ("--set", setting)]
    for number, (world, layout) in enumerate(layouts):
        store, folder = f"{saved[0]}-{number}", tmp_path / str(number)
        folder.mkdir()
        copy(saved[0], store)
        go_on(zygote, tiny, folder, (store, saved[1]), [*kept, *layout], world)


def copy(old: str, new: str) -> None:
    shutil.copytree(old.removeprefix("file://"), new.removeprefix("file://"))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ("train.seed=9", "setting train.seed = 0, this run has 9"),
        ("train.micro_batches=4", "setting train.micro_batches = 8, this run has 4"),
        ("model.d_model=64", "setting model.d_model = 32, this run has 64"),
    ],
)
def test_what_decides_the_losses_must_be_the_same(
    zygote: Zygote, tiny: list[str], tmp_path: Path, changed: str, says: str
) -> None:
    argv = [*tiny, *SMALL, "--store", str(tmp_path / "store"), "--steps", "1"]
    assert zygote.run("train", 1, tmp_path / "first", args={"argv": argv})["exits"] == [0]
    done = zygote.run("command", 1, tmp_path / "again", args={"argv": [*argv, "--set", changed]}, generation=1)
    assert done["results"][0]["code"] == 2
    assert says in done["results"][0]["stderr"]
    assert done["results"][0]["stderr"].count("\n") == 1
