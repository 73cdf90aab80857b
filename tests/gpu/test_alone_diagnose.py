"""The checks of `holdfast diagnose` on a real GPU; nothing else may use it meanwhile: they measure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.diagnostics.catalog.results import CheckResult, parse_result

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]

ROOT = Path(__file__).parents[2]
CHECKS = ("nvml", "gemm", "device-copy", "all-to-all", "all-reduce", "kernel-log")


def test_the_checks_on_this_gpu(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "holdfast.diagnostics", *CHECKS, "--json", "--folder", str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=80, cwd=ROOT)
    print(f"\n{done.stdout}{done.stderr[-2000:]}")
    assert done.returncode == 0
    found: dict[str, CheckResult] = {}
    for line in done.stdout.splitlines():
        result = parse_result(line)
        found[result.check] = result
        read = [f"{one.component} {one.metric} {one.value:.4g}" for one in result.readings]
        print(f"{result.check}: {result.seconds:.1f} s, {read}, {[one.text for one in result.faults]}, {result.unable}")
    assert set(found) == set(CHECKS)
    for name in ("nvml", "gemm", "device-copy", "all-to-all", "all-reduce"):
        assert not found[name].faults, found[name].faults
        assert not found[name].error, found[name].error
    of_gpu = {(one.component, one.metric): one.value for one in found["gemm"].readings}
    assert of_gpu["gpu0", "flops"] > 1e13
    assert not found["gemm"].unable
    rates = {one.metric: one.value for one in found["device-copy"].readings if one.component == "gpu0"}
    assert rates.keys() == {"to_device", "on_device", "to_host"}
    assert rates["to_device"] > 1e9
    assert rates["on_device"] > rates["to_device"]
    assert found["nvml"].evidence == {"gpus": 1}
    assert "no peer" in found["all-to-all"].unable
    assert "peers" in found["all-reduce"].unable
