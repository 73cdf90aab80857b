"""The GPU benchmark on a toy: the same code path, and a clear refusal where there is no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]


def run(*flags: str) -> subprocess.CompletedProcess[str]:
    # Without a visible GPU, also where there is one: the toy is the same everywhere.
    env = os.environ | {"PYTHONPATH": str(REPOSITORY), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "trainer_gpu.py"), *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, env=env)


@pytest.mark.slow
def test_the_toy_goes_through_every_case() -> None:
    done = run("--smoke", "--no-compile", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["smoke"]
    assert result["medians_mfu"] == {"holdfast": {"serial": None, "+ parallel block": None, "+ window": None}}
    assert all(seconds > 0 for seconds in result["medians_s"]["holdfast"].values())


@pytest.mark.slow
def test_no_gpu_is_one_line_and_exit_code_2() -> None:
    done = run()
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "trainer_gpu: no GPU that torch can use; --smoke runs a toy without one\n"
