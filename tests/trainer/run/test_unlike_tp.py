"""Pipeline ranks of different tensor-parallel sizes compute what one process computes, and restart like any others."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked import Zygote

from tests.trainer.run.test_equality import compare
from tests.trainer.run.test_reshard import SAVED, SMALL, STEPS, go_on, mesh, save
from tests.trainer.run.test_restart import strike

pytestmark = pytest.mark.aside


def unlike(tps: list[int], *settings: str, dp: int = 1) -> list[str]:
    chosen = [f"parallel.stage_tp={tps}", "model.layers=4", *settings]
    sizes = ["--pp", str(len(tps)), "--dp", str(dp)]
    return [*sizes, *(word for setting in chosen for word in ("--set", setting))]


CASES: dict[str, tuple[list[int], int, list[str]]] = {
    "1-2": ([1, 2], 1, []),
    "2-1 gpipe": ([2, 1], 1, ["parallel.schedule=gpipe", "train.recompute=full"]),
    "4-2-1 eager": ([4, 2, 1], 1, ["parallel.schedule=eager-1f1b"]),
    "1-2-2 sequence": ([1, 2, 2], 1, ["parallel.sequence=true", "model.dropout=0.1"]),
    "4-2 sequence lamb": ([4, 2], 1, ["parallel.sequence=true", "optim.name=lamb", "train.micro_batch_size=2"]),
    "1-2 tied": ([1, 2], 1, ["model.tied=true"]),
    "2-1 tied sequence lamb": ([2, 1], 1, ["model.tied=true", "parallel.sequence=true", "optim.name=lamb"]),
    "2-1-2 tied split": ([2, 1, 2], 1, ["model.tied=true", "parallel.shard_vocabulary=true"]),
    "2-4 vocabulary": ([2, 4], 1, ["parallel.shard_vocabulary=true", "model.block=serial"]),
    "1-2 replicas": ([1, 2], 2, ["parallel.zero=0", "model.tied=true"]),
    "2-1 zero 1": ([2, 1], 2, ["parallel.zero=1", "model.tied=true"]),
    "2-1 zero 2": ([2, 1], 2, ["parallel.zero=2", "parallel.sequence=true"]),
    "1-2 zero 3": ([1, 2], 2, ["parallel.zero=3"]),
    "2-1 interleaved": ([2, 1], 1, ["parallel.schedule=interleaved", "model.dropout=0.1"]),
    "1-2 bfs": ([1, 2], 1, ["parallel.schedule=bfs"]),
    "1-2 zbv": ([1, 2], 1, ["parallel.schedule=zbv"]),
    "1-2 layers": (
        [1, 2],
        1,
        ["parallel.schedule=interleaved", "model.layers=7", "parallel.stage_layers=[1, 3, 2, 1]", "model.tied=true"],
    ),
    "2-1 halves": ([2, 1], 1, ["parallel.schedule=interleaved-zero-bubble"]),
}
FAST = ("1-2", "2-1 tied sequence lamb")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FAST else pytest.mark.slow) for n in CASES])
def test_unlike_sizes_equal_one_process(zygote: Zygote, tiny: list[str], tmp_path: Path, name: str) -> None:
    tps, dp, settings = CASES[name]
    argv = unlike(tps, *settings, "train.dtype=float64", "train.micro_batches=4", dp=dp)
    compare(zygote, [*tiny, *argv], tmp_path, world=dp * sum(tps), steps=3, within=1e-10)


@pytest.mark.parametrize("local", [1, 2])
def test_ranks_of_several_hosts_equal_one_process(zygote: Zygote, tiny: list[str], tmp_path: Path, local: int) -> None:
    """On hosts of `local` ranks each, an activation goes through other ranks: by pieces, rings and gathers."""
    argv = unlike([1, 4], "train.dtype=float64", "train.micro_batches=4", "model.layers=2")
    compare(zygote, [*tiny, *argv], tmp_path, 5, steps=2, within=1e-10, task=f"hosting:gradients_on_{local}")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["2-1 tied sequence lamb", "1-2 replicas", "2-1 zero 1"])
def test_kill_and_restore_repeats_nothing(zygote: Zygote, tiny: list[str], tmp_path: Path, name: str) -> None:
    tps, dp, settings = CASES[name]
    argv = [*tiny, *unlike(tps, *settings, "train.micro_batches=4", dp=dp)]
    strike(zygote, argv, tmp_path, victim=1, world=dp * sum(tps))


@pytest.mark.slow
def test_a_checkpoint_of_like_sizes_goes_on_in_unlike_ones(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    saved = save(zygote, tiny, tmp_path)
    go_on(zygote, tiny, tmp_path, saved, unlike([1, 2]), 3)


@pytest.mark.slow
def test_a_checkpoint_of_unlike_sizes_goes_on_alone(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    argv = [*tiny, *SMALL, *unlike([2, 1]), "--steps"]
    first = [*argv, str(SAVED), "--store", store]
    assert zygote.run("train", 3, tmp_path / "first", args={"argv": first})["exits"] == [0] * 3
    whole = zygote.run("train", 3, tmp_path / "whole", args={"argv": [*argv, str(STEPS)]})
    assert whole["exits"] == [0] * 3
    go_on(zygote, tiny, tmp_path, (store, whole["results"][0]["losses"]), mesh(1, 1, 1), 1)


@pytest.mark.slow
def test_every_token_is_counted_once(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    """Three ranks share 128 tokens: no three equal parts."""
    argv = [*tiny, *unlike([1, 2]), "--steps", "1"]
    done = zygote.run("hosting:tokens", 3, tmp_path, args={"argv": argv})
    assert done["exits"] == [0] * 3
    assert sum(rank["tokens"] for rank in done["results"]) == 8 * 1 * 16
