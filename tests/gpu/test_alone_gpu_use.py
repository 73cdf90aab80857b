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
from holdfast.wire.standing import GpuUse
from tests.gpu import jobs
from tests.gpu.conftest import Child, OneGpuHosts, Start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(100)]

SCRIPT = str(Path(__file__).parent / "scripts" / "gpu_uses.py")
SETTLES_S, MEASURED_S, EVERY_S = 1.6, 1.0, 0.1
"""The power that a driver reports is that of the second before."""
WAITS, WORKS = GpuUse.WAITS, GpuUse.WORKS
EXPECTED: dict[str, GpuUse | None] = {
    "idle": WAITS,
    "nccl": WAITS,
    "nccl-two": WAITS,
    "nccl-32": WAITS,
    "spin": None,  # of little power: not known
    "pageable": WORKS,
    "copy": WORKS,
    "matmul": WORKS,
}
"""From little power to much: none has to cool down."""


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

    power, limit, memory, nvlink, pcie = (
        float(statistics.median(getattr(one, name) for one in found))
        for name in ("power_w", "limit_w", "memory_share", "nvlink_bytes_s", "pcie_bytes_s")
    )
    return Figures(power, limit, memory, nvlink, pcie, found[-1].processes), statistics.median(busy)


def row(name: str, folder: Path, children: list[Child], gpus: GpuCollector, uses: GpuUses) -> Figures:
    for child in children:
        child.says("is-ready", 50)
    (folder / f"go-{name}").touch()
    for child in children:
        child.says("it-goes", 10)
    time.sleep(SETTLES_S)
    one, busy = figures(gpus, uses)
    for child in children:
        assert child.process.poll() is None, f"{name} has ended:\n{child.output[-1500:]}"
    alone = judge(replace(one, processes=1))
    print(
        f"| {name} | {one.power_w:.0f} W | {one.power_w / one.limit_w:.0%} | {one.memory_share:.1%} | "
        f"{one.pcie_bytes_s / 1e6:.1f} MB | {one.nvlink_bytes_s / 1e6:.1f} MB | {busy:.0%} | {one.processes} | "
        f"{alone.value or 'unknown'} |"
    )
    return one


def test_what_a_gpu_does_is_judged_by_its_real_figures(
    start: Start, one_gpu_hosts: OneGpuHosts, tmp_path: Path
) -> None:
    pairs = [name for name in EXPECTED if name.startswith("nccl")]
    children: dict[str, list[Child]] = {}
    for name, port in zip(pairs, jobs.ports(len(pairs)), strict=True):  # imports of all at once
        ranks = enumerate(one_gpu_hosts(2))
        children[name] = [start(SCRIPT, str(tmp_path), name, str(rank), str(port), env=env) for rank, env in ranks]
    for name in EXPECTED:
        children.setdefault(name, [])
        if name not in pairs:
            children[name].append(start(SCRIPT, str(tmp_path), name))
    gpus = GpuCollector()
    uses = GpuUses(gpus)
    found: dict[str, Figures] = {}
    failed: dict[str, str] = {}
    print("\n| the process | power | of limit | memory in use | PCIe a second | NVLink | in use | processes | judged |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    for name in EXPECTED:
        try:
            found[name] = row(name, tmp_path, children[name], gpus, uses)
        except AssertionError as error:  # the other rows are worth their time
            failed[name] = str(error)
            print(f"| {name} | failed: {str(error).splitlines()[0]} |")
        for child in children[name]:
            child.end()  # killed: a rank that ends by itself would have to wait for its peer
    for name in pairs:
        lines = [line.strip() for child in children[name] for line in child.output.splitlines()]
        print(name, *dict.fromkeys(line for line in lines if "coll channels" in line), sep="\n  ")
    gpus.close()
    judged = {name: judge(replace(one, processes=1)) for name, one in found.items()}
    assert not failed
    assert judged == {name: use if use is not None else judged[name] for name, use in EXPECTED.items()}
    assert judge(found["matmul"]) is WORKS, "all others have ended"
