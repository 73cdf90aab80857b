"""The agent's figures of a real GPU, against nvidia-smi and NVML itself."""

from __future__ import annotations

import csv
import math
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent.collectors import gpu as collector
from holdfast.agent.collectors.gpu import GpuCollector
from tests.gpu.conftest import Start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

USES = str(Path(__file__).parent / "scripts" / "gpu_uses.py")
SMI = {
    # nvidia-smi's name: ours, factor, how far they may be from each other
    "memory.total": ("memory_total_bytes", 1 << 20, 2 << 20),
    "memory.used": ("memory_used_bytes", 1 << 20, 2 << 30),
    "temperature.gpu": ("temperature_celsius", 1.0, 4.0),
    "power.draw": ("power_watts", 1.0, 60.0),
    "clocks.sm": ("sm_clock_hertz", 1e6, 2e9),
    "clocks.mem": ("memory_clock_hertz", 1e6, 3e9),
    "temperature.memory": ("memory_temperature_celsius", 1.0, 4.0),
    "ecc.errors.corrected.volatile.total": ("ecc_corrected_volatile", 1.0, 0.0),
    "ecc.errors.uncorrected.volatile.total": ("ecc_uncorrected_volatile", 1.0, 0.0),
    "ecc.errors.corrected.aggregate.total": ("ecc_corrected_aggregate", 1.0, 0.0),
    "ecc.errors.uncorrected.aggregate.total": ("ecc_uncorrected_aggregate", 1.0, 0.0),
    "remapped_rows.correctable": ("remapped_rows_corrected", 1.0, 0.0),
    "remapped_rows.uncorrectable": ("remapped_rows_uncorrected", 1.0, 0.0),
}


def smi(names: tuple[str, ...]) -> dict[str, str]:
    argv = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits", "-i", "0"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = csv.reader(done.stdout.splitlines(), skipinitialspace=True)
    return dict(zip(names, row, strict=True))


@pytest.fixture
def gpus() -> Iterator[GpuCollector]:
    one = GpuCollector(slow_every=1)
    assert one.available, one.absent_reason
    yield one
    one.close()


def test_the_gauges_are_those_of_nvidia_smi(gpus: GpuCollector) -> None:
    for _ in range(3):
        began = time.perf_counter()
        (gauges, *_) = gpus.collect()
        print(f"\ncollect(): {(time.perf_counter() - began) * 1e3:.2f} ms", end="")
    values = gauges.values
    print("\ngauges:", {name: round(value, 6) for name, value in sorted(values.items())})
    if shutil.which("nvidia-smi") is None:
        pytest.skip("no nvidia-smi")
    identity = smi(("uuid", "name", "pci.bus_id", "driver_version"))
    print("nvidia-smi:", identity)
    (gpu, *_) = gpus.gpus
    assert (gpu.uuid, gpu.model, gpus.driver) == (identity["uuid"], identity["name"], identity["driver_version"])
    assert gpu.pci.lower() == identity["pci.bus_id"].lower()
    assert gpu.memory_bytes == values["memory_total_bytes"]
    theirs = smi(tuple(SMI))
    print("nvidia-smi:", theirs)
    unlike = []
    for name, (ours, factor, far) in SMI.items():
        try:
            expected = float(theirs[name]) * factor
        except ValueError:  # [N/A]
            print(f"{name}: {theirs[name]}, ours {values.get(ours)}")
            continue
        if not abs(values.get(ours, math.nan) - expected) <= far:
            unlike.append(f"{ours} is {values.get(ours)}, {name} is {theirs[name]}")
    assert not unlike
    assert values["lost"] == 0
    assert gpus.power_limit_w(0) == pytest.approx(
        float(smi(("enforced.power.limit",))["enforced.power.limit"]), rel=0.01
    )


def test_no_query_is_given_up_for_another_reason_than_that_the_gpu_has_it_not(gpus: GpuCollector) -> None:
    """And what the driver refuses is printed: each field by its number."""
    import pynvml

    gpus.collect()
    never = sorted(name for (_, name), until in gpus._rests.items() if until == collector.NEVER)
    rests = sorted(name for (_, name), until in gpus._rests.items() if until != collector.NEVER)
    print(f"\nqueries never asked again: {never}; that rest: {rests}; fields off: {sorted(gpus._fields_off)}")
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    links = gpus._links[0]
    asked = [(constant, getattr(pynvml, constant, None)) for _, constant, _ in collector.FIELDS]
    asked += [(constant, getattr(pynvml, constant, None)) for _, constant in collector.LINK_FIELDS]
    names = ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX")
    asked += [(name, (getattr(pynvml, name), 0xFFFFFFFF)) for name in names]
    refused = []
    for constant, field in asked:
        if field is None:
            print(f"{constant}: not in this pynvml")
            continue
        whole = (field, links[0]) if isinstance(field, int) and "COUNT_" in constant and links else field
        (answer,) = pynvml.nvmlDeviceGetFieldValues(handle, [whole])
        value = getattr(answer.value, collector._VALUE.get(answer.valueType, "ullVal"))
        print(f"{constant} {whole}: return {answer.nvmlReturn}, type {answer.valueType}, value {value}")
        if answer.nvmlReturn not in (pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_SUPPORTED):
            refused.append((constant, answer.nvmlReturn))
    print(f"links: {links}; bytes over them: {gpus.link_bytes(0)}; refused otherwise: {refused}")
    for name, query in (*collector.FAST, *collector.SLOW):
        if name in never:
            with pytest.raises(pynvml.NVMLError) as error:
                query(pynvml, handle)
            assert error.value.value == pynvml.NVML_ERROR_NOT_SUPPORTED, (name, error.value)
    assert "fields" not in never
    assert not rests


def test_processes_energy_and_bytes_follow_what_a_child_does(gpus: GpuCollector, start: Start, tmp_path: Path) -> None:
    quiet = gpus.pcie_bytes_s(0)
    child = start(USES, str(tmp_path), "copy")
    child.says("ready")
    assert child.pid in gpus.processes()[0], gpus.processes()
    before = gpus.collect()[0].values
    (tmp_path / "go-copy").touch()
    rates: list[float] = []
    deadline = time.monotonic() + 10
    while len([rate for rate in rates if rate > 1e9]) < 5:
        assert time.monotonic() < deadline, f"bytes a second: {rates}"
        rates.append(gpus.pcie_bytes_s(0))
        time.sleep(0.05)
    after = gpus.collect()[0].values
    (tmp_path / "stop-copy").touch()
    print(f"\nPCIe: {quiet / 1e6:.1f} MB/s before, then {[round(rate / 1e9, 1) for rate in rates]} GB/s")
    print(f"NVLink bytes: {gpus.link_bytes(0)}")
    print(f"energy: {before.get('energy_joules')} to {after.get('energy_joules')} J")
    assert after["energy_joules"] > before["energy_joules"]
    assert 0 <= after["memory_utilization_ratio"] <= 1
    child.wait()
    deadline = time.monotonic() + 10
    while child.pid in gpus.processes()[0]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
