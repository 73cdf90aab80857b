"""What a run does when something breaks, and what the fork server may not hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from forked import REPOSITORY, Zygote

from holdfast.checkpoint.restore.inspect import list_checkpoints

SMALL = ["--set", "model.layers=2", "--set", "train.micro_batches=2"]
IMPORT_S = 280.0
"""Less than pytest gives a test: torch alone takes seconds of a processor, and other runs have them too."""


@pytest.mark.slow
def test_nothing_that_a_fork_would_break_is_left_by_preload() -> None:
    code = (
        "import os, gc; from holdfast.trainer.preload import preload; preload(); preload();"
        "import torch.distributed as d, torch; from holdfast.trainer.settings import load;"
        "print(len(os.listdir('/proc/self/task')), d.is_initialized(), torch.cuda.is_initialized(),"
        "gc.get_freeze_count() > 100000, load._types.cache_info().currsize == len(load.fields(load.Config)))"
    )
    env = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")} | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=IMPORT_S, env=env)
    assert done.stdout.split() == ["1", "False", "False", "True", "True"], done.stderr


@pytest.mark.slow
def test_a_torch_that_can_use_gpus_is_not_asked_for_them_by_preload() -> None:
    """What asks for GPUs cannot be forked. This torch cannot use any, so it is made to pass for one that can."""
    code = (
        "import torch; asked = [];"
        "torch.version.cuda = '13.0';"
        "torch.cuda.is_available = lambda: asked.append('cuda.is_available') or False;"
        "torch.cuda.device_count = lambda: asked.append('cuda.device_count') or 0;"
        "torch.accelerator.is_available = lambda: asked.append('accelerator.is_available') or False;"
        "torch.autograd.backward = lambda *a, **k: asked.append('autograd');"  # starts a thread for each GPU
        "from holdfast.trainer.preload import preload; preload(); print(asked)"
    )
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=IMPORT_S, env=env)
    assert done.stdout == "[]\n", done.stderr


def test_a_poisoned_step_is_reported_and_never_kept(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    store = ["--store", str(tmp_path / "store"), "--checkpoint-every", "1", "--steps", "5"]
    argv = [*tiny, *SMALL, "--tp", "2", *store]
    done = zygote.run("poisoned", 2, tmp_path / "run", args={"argv": argv, "rank": 1, "step": 3})
    assert done["exits"] == [0, 0]
    first, second = done["results"]
    assert first["code"] == second["code"] == 1
    assert "step 3: loss nan or a gradient is not finite, first seen on rank 1" in first["stderr"]
    assert second["stderr"] == ""
    assert [report for report in first["reports"] if report[1] is None] == []
    assert second["reports"][-1] == [3, None]  # NaN, as JSON has it here
    folders = sorted(p.name for p in (tmp_path / "store").glob("step-*"))
    assert folders == ["step-00000001-t0001", "step-00000002-t0001", "step-00000003-t0001"]


def test_ranks_with_different_settings_refuse_to_train(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    argv = [*tiny, *SMALL, "--tp", "2", "--steps", "2"]
    done = zygote.run("disagreeing", 2, tmp_path, args={"argv": argv})
    assert [result["code"] for result in done["results"]] == [1, 1]
    assert "ranks were started with different settings or data" in done["results"][0]["stderr"]


def test_a_store_that_cannot_be_written_is_bad_input(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    argv = [*tiny, *SMALL, "--tp", "2", "--steps", "2", "--store", str(tmp_path / "file")]
    done = zygote.run("command", 2, tmp_path / "run", args={"argv": argv})
    assert [result["code"] for result in done["results"]] == [2, 2]
    assert "holdfast train: checkpoint.store file://" in done["results"][0]["stderr"]


def test_metrics_go_to_their_file_and_training_learns(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    argv = [*tiny, *SMALL, "--steps", "30", "--set", f"train.metrics_path={metrics}"]
    done = zygote.run("command", 1, tmp_path / "run", args={"argv": argv})
    assert done["results"][0]["code"] == 0
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(30))
    assert lines[-1]["loss"] < lines[0]["loss"] - 1
    assert {"step", "loss", "grad_norm", "tokens_per_s", "seconds", "time"} <= lines[0].keys()


@pytest.mark.parametrize("schedule", ["1f1b", pytest.param("chimera", marks=pytest.mark.slow)])
def test_survivors_of_a_kill_say_so_in_one_line(zygote: Zygote, tiny: list[str], tmp_path: Path, schedule: str) -> None:
    argv = [*tiny, *SMALL, "--pp", "2", "--tp", "2", "--steps", "50", "--set", f"parallel.schedule={schedule}"]
    done = zygote.run("dying", 4, tmp_path, args={"argv": argv, "rank": 3, "step": 2})
    assert done["exits"] == [0, 0, 0, -9]
    for rank, result in enumerate(done["results"][:3]):
        assert result["code"] == 1
        assert result["stderr"].startswith(f"holdfast train: rank {rank} lost a peer: ")
        assert result["stderr"].count("\n") == 1


def test_a_full_disk_costs_one_checkpoint_and_not_the_run(zygote: Zygote, tiny: list[str], tmp_path: Path) -> None:
    store = ["--store", str(tmp_path / "store"), "--checkpoint-every", "2", "--steps", "6"]
    argv = [*tiny, *SMALL, "--tp", "2", *store]
    done = zygote.run("full_disk", 2, tmp_path / "run", args={"argv": argv, "rank": 1, "part": "step-00000004"})
    assert [result["code"] for result in done["results"]] == [0, 0]
    assert done["results"][0]["stderr"] == (
        "holdfast train: checkpoint of step 4 failed: part-00001.safetensors: No space left on device; "
        "last good: step 2\n"
    )
    assert [info.step for info in list_checkpoints(str(tmp_path / "store"))] == [6, 2]


@pytest.mark.slow
def test_under_torchrun(tiny: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "holdfast.trainer", *tiny, *SMALL, "--tp", "2", "--steps", "3"]
    command += ["--set", "train.log_every=1"]
    env = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=IMPORT_S, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [["step", str(n)] for n in range(3)]
