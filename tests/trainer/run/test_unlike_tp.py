"""Pipeline ranks of different tensor-parallel sizes compute what one process computes, and restart like any others."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from forked import Zygote

from tests.trainer.run.test_equality import compare
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
    "2-1 halves": ([2, 1], 1, ["parallel.schedule=interleaved-zero-bubble"]),
}
FAST = ("1-2", "2-1 tied sequence lamb")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FAST else pytest.mark.slow) for n in CASES])
def test_unlike_sizes_equal_one_process(zygote: Zygote, tiny: list[str], tmp_path: Path, name: str) -> None:
    tps, dp, settings = CASES[name]
    argv = unlike(tps, *settings, "train.dtype=float64", "train.micro_batches=4", dp=dp)
    compare(zygote, [*tiny, *argv], tmp_path, world=dp * sum(tps), steps=3, within=1e-10)
