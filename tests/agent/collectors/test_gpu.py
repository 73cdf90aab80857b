"""GPU gauges against a fake of NVML: one unsupported query costs itself, one lost GPU costs itself."""

import pynvml
import pytest

from holdfast.agent.collectors.gpu import GpuCollector
from holdfast.facts.xid import RecoveryAction
from tests.agent.support.fake_nvml import Board, FakeNvml


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def build(*boards: Board, slow_every: int = 1) -> tuple[GpuCollector, FakeNvml, Clock]:
    nvml, clock = FakeNvml(list(boards)), Clock()
    return GpuCollector(nvml, slow_every=slow_every, clock=clock), nvml, clock


def test_identity_and_all_gauges() -> None:
    collector, _, _ = build(Board("GPU-a", links=18, links_off=1, ecc=5, rows=(1, 2, 1, 0), reasons=0x40, recovery=2))
    assert collector.available
    assert collector.driver == "550.54.15"
    (gpu,) = collector.gpus
    assert (gpu.uuid, gpu.model, gpu.pci, gpu.memory_bytes) == (
        "GPU-a",
        "NVIDIA H100 80GB HBM3",
        "00000000:9B:00.0",
        80 << 30,
    )
    (gauges,) = collector.collect()
    assert gauges.index == 0
    assert gauges.values == {
        "lost": 0,
        "utilization_ratio": 0.97,
        "memory_utilization_ratio": 0.4,
        "memory_used_bytes": 60 << 30,
        "memory_total_bytes": 80 << 30,
        "temperature_celsius": 61,
        "power_watts": 512.5,
        "sm_clock_hertz": 1.98e9,
        "memory_clock_hertz": 2.619e9,
        "clock_event_reasons": 0x40,
        "hw_throttled": 1,
        "ecc_corrected_volatile": 5,
        "ecc_corrected_aggregate": 6,
        "ecc_uncorrected_volatile": 15,
        "ecc_uncorrected_aggregate": 16,
        "remapped_rows_corrected": 1,
        "remapped_rows_uncorrected": 2,
        "remapped_rows_pending": 1,
        "remapped_rows_failed": 0,
        "memory_temperature_celsius": 1000,
        "energy_joules": 1,
        "pcie_replays": 1000,
        "recovery_action": 2,
        "nvlink_crc_flit_errors": 1000,
        "nvlink_crc_data_errors": 1000,
        "nvlink_replay_errors": 1000,
        "nvlink_recovery_errors": 1000,
        "nvlink_receive_errors": 18_000,
        "nvlink_link_recoveries": 18_000,
        "sw_thermal_throttle_seconds": pytest.approx(1e-6),
        "hw_thermal_throttle_seconds": pytest.approx(1e-6),
        "hw_power_brake_seconds": pytest.approx(1e-6),
        "nvlinks": 18,
        "nvlinks_down": 1,
    }


def test_what_is_not_supported_is_asked_once() -> None:
    board = Board(
        "GPU-a",
        fail={
            "nvmlDeviceGetRemappedRows": pynvml.NVML_ERROR_NOT_SUPPORTED,
            "nvmlDeviceGetPowerUsage": pynvml.NVML_ERROR_NO_PERMISSION,
        },
        fields_off=frozenset({230, 52}),
    )
    collector, nvml, clock = build(board)
    for _ in range(3):
        (gauges,) = collector.collect()
        clock.now += 1000
    assert nvml.calls["nvmlDeviceGetRemappedRows"] == nvml.calls["nvmlDeviceGetPowerUsage"] == 1
    assert nvml.calls["fields"] == 9
    assert not {"power_watts", "recovery_action", "nvlink_replay_errors", "nvlinks"} & gauges.values.keys()
    assert gauges.values["temperature_celsius"] == 61


def test_another_error_rests_a_while() -> None:
    board = Board("GPU-a", fail={"nvmlDeviceGetPowerUsage": pynvml.NVML_ERROR_UNKNOWN})
    collector, nvml, clock = build(board)
    for _ in range(5):
        collector.collect()
    assert nvml.calls["nvmlDeviceGetPowerUsage"] == 1
    board.fail.clear()
    clock.now += 61
    assert collector.collect()[0].values["power_watts"] == 512.5


def test_a_lost_gpu_is_said_and_the_others_go_on() -> None:
    sick, well = Board("GPU-a"), Board("GPU-b")
    collector, _, clock = build(sick, well)
    sick.fail["nvmlDeviceGetUtilizationRates"] = pynvml.NVML_ERROR_GPU_IS_LOST
    for _ in range(3):
        first, second = collector.collect()
        assert first.values == {"lost": 1.0}
        assert second.values["lost"] == 0.0
        assert second.values["utilization_ratio"] == 0.97
    sick.fail.clear()
    clock.now += 61
    assert collector.collect()[0].values["lost"] == 0.0


def test_a_gpu_that_we_may_not_ask_is_not_lost() -> None:
    collector, _, _ = build(
        Board("", fail={"nvmlDeviceGetHandleByIndex": pynvml.NVML_ERROR_NO_PERMISSION}), Board("GPU-b")
    )
    denied, ours = collector.collect()
    assert denied.values == {}
    assert ours.values["lost"] == 0.0


def test_a_gpu_lost_before_the_start() -> None:
    collector, _, _ = build(
        Board("", fail={"nvmlDeviceGetHandleByIndex": pynvml.NVML_ERROR_GPU_IS_LOST}), Board("GPU-b")
    )
    assert [gpu.uuid for gpu in collector.gpus] == ["", "GPU-b"]
    assert [gauges.values["lost"] for gauges in collector.collect()] == [1.0, 0.0]
    assert not collector.events_available


def test_slow_queries_are_asked_seldom_and_stand_between() -> None:
    board = Board("GPU-a", ecc=1)
    collector, nvml, _ = build(board, slow_every=5)
    collector.collect()
    board.ecc = 100
    for _ in range(4):
        assert collector.collect()[0].values["ecc_corrected_volatile"] == 1
    assert collector.collect()[0].values["ecc_corrected_volatile"] == 100
    assert nvml.calls["nvmlDeviceGetTotalEccErrors"] == 8
    assert nvml.calls["nvmlDeviceGetPowerUsage"] == 6


def test_every_xid_is_seen_repeats_too() -> None:
    first, second = Board("GPU-a"), Board("GPU-b")
    collector, nvml, _ = build(first, second)
    assert collector.events_available
    assert collector.poll_xids() == []
    nvml.pending.extend([(first, 31), (first, 31), (second, 79)])
    found = collector.poll_xids()
    assert [(x.code, x.device, x.action) for x in found] == [
        (31, "GPU-a", RecoveryAction.RESTART_APP),
        (31, "GPU-a", RecoveryAction.RESTART_APP),
        (79, "GPU-b", RecoveryAction.REBOOT),
    ]
    assert collector.poll_xids() == []


def test_events_that_break_leave_it_to_the_kernel_log() -> None:
    board = Board("GPU-a")
    collector, nvml, _ = build(board)
    nvml.pending.append((board, -pynvml.NVML_ERROR_GPU_IS_LOST))
    assert [x.code for x in collector.poll_xids()] == [79]
    assert not collector.events_available
    assert collector.poll_xids() == []
    assert not build(Board("GPU-a", events=0))[0].events_available


def test_absent_driver_and_no_gpu() -> None:
    collector = GpuCollector(FakeNvml([], init_error=pynvml.NVML_ERROR_DRIVER_NOT_LOADED))
    assert (collector.available, collector.absent_reason) == (False, "NVML: Driver Not Loaded")
    assert collector.collect() == ()
    assert collector.poll_xids() == []
    assert GpuCollector(FakeNvml([])).absent_reason == "NVML: no GPU"


def test_this_host_says_why_it_has_none_or_answers() -> None:
    collector = GpuCollector()
    assert collector.available != bool(collector.absent_reason)
    assert len(collector.collect()) == len(collector.gpus)
    collector.close()


def test_close_twice() -> None:
    collector, nvml, _ = build(Board("GPU-a"))
    collector.close()
    collector.close()
    assert nvml.calls["nvmlShutdown"] == nvml.calls["nvmlEventSetFree"] == 1
    assert collector.collect() == ()
