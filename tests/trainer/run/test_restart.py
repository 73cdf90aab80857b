"""A restart changes nothing: losses after a kill and a restore are those of an undisturbed run, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forked import Zygote

pytestmark = pytest.mark.aside


def losses(done: dict[str, list[dict[str, list[float]]]]) -> list[float]:
    """The losses that every rank agrees on."""
    first, *others = [result["losses"] for result in done["results"]]
    assert all(other == first for other in others)
    return first


def strike(
    zygote: Zygote,
    argv: list[str],
    tmp_path: Path,
    victim: int,
    step: int = 5,
    every: int = 3,
    world: int = 8,
    undisturbed: bool = False,
) -> list[float]:
    """Kill a rank in `step` and start again: the steps that are repeated then have the losses that they had before.

    `undisturbed`: they are those of a run without checkpoints as well. Returns the losses before the kill.
    """
    store = ["--store", (tmp_path / "store").as_uri(), "--checkpoint-every", str(every)]
    folder = tmp_path / "struck"
    args = {"argv": [*argv, *store, "--steps", str(step + 3)], "mark": True}
    first = zygote.run("train", world, folder, args=args, kill={victim: step})
    assert first["exits"][victim] == -9
    assert 0 not in first["exits"]
    before = struck_losses(folder, world, step)
    # Moments are seen from the second step on.
    resumed = step // every * every
    assert step - resumed >= 2
    second = zygote.run("train", world, folder, args={"argv": [*argv, *store, "--steps", str(step)]}, generation=1)
    assert second["exits"] == [0] * world
    assert second["results"][0]["first"] == resumed
    assert losses(second) == before[resumed:]
    if undisturbed:
        plain = {"argv": [*argv, "--steps", str(step)]}
        assert losses(zygote.run("train", world, tmp_path / "whole", args=plain)) == before
    return before


def struck_losses(folder: Path, world: int, step: int) -> list[float]:
    """The losses of all steps before `step`, in which a rank was killed: those that every rank agrees on."""
    found = [json.loads(f"[{(folder / f'losses-{rank}').read_text()}0]")[:step] for rank in range(world)]
    assert all(one == found[0] for one in found)
    assert len(set(found[0])) == step
    return list(found[0])


@pytest.mark.slow
def test_kill_and_restore_repeats_nothing(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    small = ["--set", "model.layers=2", "--set", "train.micro_batches=4", "--set", "model.dropout=0.1"]
    argv = [*tiny, *small, "--pp", "2", "--dp", "2", "--tp", "2"]
    strike(zygote, argv, tmp_path, victim=5, undisturbed=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout", [["--pp", "4", "--dp", "2"], ["--dp", "8"], ["--pp", "2", "--tp", "4"]], ids=" ".join
)
def test_kill_and_restore_on_other_layouts(zygote: Zygote, tiny: list[str], tmp_path: Path, layout: list[str]) -> None:
    small = ["--set", "model.layers=4", "--set", "model.dropout=0.1"]
    strike(zygote, [*tiny, *small, *layout], tmp_path, victim=0)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["interleaved", "eager-1f1b", "bfs", "zbv", "interleaved-zero-bubble"])
def test_other_schedules_restart_too(zygote: Zygote, tiny: list[str], tmp_path: Path, schedule: str) -> None:
    small = ["--set", "model.layers=4", "--set", "train.micro_batches=4"]
    argv = [*tiny, *small, "--pp", "2", "--tp", "2", "--set", f"parallel.schedule={schedule}"]
    strike(zygote, argv, tmp_path, victim=7)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ["optim.name=lamb", "model.tied=true", "parallel.sequence=true"],
        ["optim.name=sgd", "optim.lr=0.1", "train.recompute=full", "model.window=5"],
        ["train.dtype=bfloat16", "model.mlp=swiglu", "model.kv_heads=4"],
        ["train.dtype=bfloat16", "optim.name=lamb", "model.norm=layer", "model.positions=learned"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("layout", [["--dp", "2", "--tp", "2"], ["--pp", "2", "--tp", "2"]], ids=" ".join)
def test_optimizers_and_precisions_restart_too(
    zygote: Zygote, tiny: list[str], tmp_path: Path, settings: list[str], layout: list[str]
) -> None:
    chosen = [word for setting in settings for word in ("--set", setting)]
    small = ["--set", "model.layers=2", "--set", "train.micro_batches=4", "--set", "model.dropout=0.1"]
    strike(zygote, [*tiny, *small, *chosen, *layout], tmp_path, victim=3, world=4)
