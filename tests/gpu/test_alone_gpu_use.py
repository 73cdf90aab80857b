"""What the agent says a GPU does, from its real figures. Nothing else may use it meanwhile: its power is judged."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.agent.activity.gpu_use import Figures, GpuUses, judge
from holdfast.agent.collectors.gpu import GpuCollector
from holdfast.wire.types import GpuUse
from tests.gpu.conftest import OneGpuHosts, Start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(100)]

SCRIPT = str(Path(__file__).parent / "scripts" / "gpu_uses.py")
SETTLES_S, MEASURED_S, EVERY_S = 1.7, 1.2, 0.2
"""The power that a driver reports is that of the second before."""


def figures(gpus: GpuCollector, uses: GpuUses) -> tuple[Figures, float]:
    """Medians, and the GPU's utilization."""
    found: list[Figures] = []
    busy: list[float] = []
    end = time.monotonic() + MEASURED_S
    while time.monotonic() < end:
        (gauges,) = gpus.collect()[:1]
        (count,) = list(map(len, gpus.processes().values()))[:1]
        found.append(uses._figures(0, gauges.values, count, time.monotonic()))
        busy.append(gauges.values.get("utilization_ratio", math.nan))
        time.sleep(EVERY_S)

    power, limit, memory, moved = (
        float(statistics.median(getattr(one, name) for one in found))
        for name in ("power_w", "limit_w", "memory_share", "bytes_s")
    )
    return Figures(power, limit, memory, moved, found[-1].processes), statistics.median(busy)


def test_what_a_gpu_does_is_judged_by_its_real_figures(
    start: Start, one_gpu_hosts: OneGpuHosts, tmp_path: Path, free_port: int
) -> None:
    order = ("idle", "nccl", "spin", "copy", "matmul")  # from little power to much: none has to cool down
    children = {
        name: [start(SCRIPT, str(tmp_path), name)] for name in order if name != "nccl"
    }  # imports of all at once
    children["nccl"] = [
        start(SCRIPT, str(tmp_path), "nccl", str(rank), str(free_port), env=env)
        for rank, env in enumerate(one_gpu_hosts(2))
    ]
    gpus = GpuCollector()
    uses = GpuUses(gpus)
    for child in (one for some in children.values() for one in some):
        child.says("ready", 50)
    found: dict[str, Figures] = {}
    print("\n| the process | power | of limit | memory in use | bytes/s | utilization | processes | judged, alone |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for name in order:
        (tmp_path / f"go-{name}").touch()
        time.sleep(SETTLES_S)
        one, busy = figures(gpus, uses)
        found[name] = one
        alone = judge(replace(one, processes=1))
        print(
            f"| {name} | {one.power_w:.0f} W | {one.power_w / one.limit_w:.0%} | {one.memory_share:.1%} | "
            f"{one.bytes_s / 1e6:.1f} MB | {busy:.0%} | {one.processes} | {alone.value or 'unknown'} |"
        )
        (tmp_path / f"stop-{name}").touch()
        for child in children[name]:
            child.says("done")
            child.wait()
    gpus.close()
    judged = {name: judge(replace(one, processes=1)) for name, one in found.items()}
    assert judged["matmul"] is GpuUse.WORKS
    assert judged["idle"] is GpuUse.WAITS
    assert judged["nccl"] is GpuUse.WAITS, "a kernel that waits for its peer is no work"
    assert judged["copy"] is GpuUse.WORKS
    assert judge(found["matmul"]) is GpuUse.WORKS, "all others have ended"
