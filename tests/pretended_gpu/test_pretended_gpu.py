"""What is written for GPUs, on GPUs that are none. Needs another Python with a torch for CUDA; see pretend.py.

HOLDFAST_CUDA_PYTHON=/path/to/python python -m pytest tests/pretended_gpu -m slow
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PYTHON = os.environ.get("HOLDFAST_CUDA_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="HOLDFAST_CUDA_PYTHON names no Python with a torch for CUDA"),
]

HALF = "train.dtype=bfloat16"
LLAMA = ("model.block=serial", "model.mlp=swiglu", "model.kv_heads=4")
GPT = ("model.norm=layer", "model.positions=learned", "model.tied=true", "model.dropout=0.1")
# Ranks, their layout, and settings; all with `train.deterministic`, by which torch refuses what is not.
CASES = [
    (4, "--pp 2 --tp 2", ()),
    (4, "--pp 2 --tp 2", (HALF, *LLAMA)),
    (4, "--pp 2", (HALF, "parallel.schedule=zbv")),
    (4, "--pp 2", (HALF, "parallel.zero=3", "parallel.zero_unit=stage", "parallel.schedule=bfs")),
    (4, "--tp 4", (HALF, "parallel.sequence=true", "parallel.shard_vocabulary=true")),
    (2, "--tp 2", (HALF, *GPT)),
    (2, "--tp 2", (HALF, *LLAMA, "parallel.sequence=true", "parallel.overlap_chunks=2")),
    (2, "--tp 2", ("data.loader=shared", "data.prefetch=2")),
    (2, "--pp 2", (HALF, "train.recompute=full,selective", "model.dropout=0.1")),
    (2, "", ("parallel.zero=0",)),
    (2, "", (HALF, "parallel.zero=2", "optim.name=lamb")),
    (2, "", (HALF, "parallel.zero=3", "optim.name=sgd")),
    (1, "", (HALF, "model.window=16")),
    (1, "", ("model.window=16", "model.dropout=0.1")),
]


def pretend(gpus: int, *command: str, gigabytes: float = 141.0) -> subprocess.CompletedProcess[str]:
    words = [PYTHON, str(HERE / "pretend.py"), "--gpus", str(gpus), "--gigabytes", str(gigabytes), "--", *command]
    return subprocess.run(words, capture_output=True, text=True, timeout=280, cwd=HERE.parents[1])


@pytest.mark.parametrize(("ranks", "layout", "settings"), CASES)
def test_steps_are_done(ranks: int, layout: str, settings: tuple[str, ...]) -> None:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    chosen = [word for setting in ("model.layers=4", *settings) for word in ("--set", setting)]
    done = pretend(ranks, *torchrun, "-m", "holdfast.trainer", *layout.split(), *chosen, "--steps", "3")
    assert done.returncode == 0, done.stderr[-4000:]
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("step ")] == ["0", "1", "2"]
    assert "non-deterministic" not in done.stderr


def test_under_an_agent_workers_are_forked_and_snapshots_uploaded(tmp_path: Path) -> None:
    """A driver that was asked for GPUs before the fork has none for the worker."""
    store = ["--store", (tmp_path / "store").as_uri(), "--checkpoint-every", "10"]
    run = ["-m", "holdfast", "run", "--nproc-per-node", "1", "-m", "holdfast.trainer", *store]
    done = pretend(1, *run, "--steps", "20", "--set", HALF)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "[0] step 19 " in done.stdout
    assert (tmp_path / "store" / "step-00000020-t0001" / "manifest.json").exists()


def test_the_benchmark_fits_a_gpu_of_80_gb() -> None:
    done = pretend(1, "benchmarks/trainer_gpu.py", "--steps", "1", "--warmup", "1", "--no-compile", gigabytes=80)
    assert done.returncode == 0, done.stderr[-4000:]
