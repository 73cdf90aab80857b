"""Does a GPU work or wait? Judged by NVML's figures, which are faked; and by whom it is used."""

import math
import time
from pathlib import Path
from typing import Any

import pynvml
import pytest

from holdfast.agent.activity.gpu_use import Figures, GpuUses, judge
from holdfast.agent.activity.watch import Activities
from holdfast.agent.collectors.gpu import GpuCollector
from holdfast.wire import types as t
from holdfast.wire.types import GpuUse
from tests.agent.support.fake_nvml import Board, FakeNvml


@pytest.mark.parametrize(
    ("figures", "use"),
    [
        (Figures(70, 700, 0.0), GpuUse.WAITS),  # NCCL spins: utilization 100% at idle power
        (Figures(512, 700, 0.0), GpuUse.WORKS),
        (Figures(240, 700, 0.0), GpuUse.UNKNOWN),
        (Figures(70, 700, 0.4), GpuUse.WORKS),
        (Figures(120, 700, 0.0, 300e6), GpuUse.WORKS),
        (Figures(120, 700, 0.0, 2e6), GpuUse.WAITS),
        (Figures(), GpuUse.UNKNOWN),
        (Figures(math.nan, 700, 0.0), GpuUse.UNKNOWN),
        (Figures(300, 0, 0.0), GpuUse.UNKNOWN),
        (Figures(512, 700, 0.4, processes=2), GpuUse.UNKNOWN),
        (Figures(70, 700, 0.0, processes=2), GpuUse.WAITS),
    ],
)
def test_power_memory_and_bytes_are_the_evidence(figures: Figures, use: GpuUse) -> None:
    assert judge(figures) is use


def uses(*boards: Board) -> tuple[GpuUses, GpuCollector, list[float]]:
    now = [0.0]
    nvml: Any = FakeNvml(list(boards))
    collector = GpuCollector(nvml)
    return GpuUses(collector, lambda: now[0]), collector, now


def test_a_process_has_the_gpus_that_list_it() -> None:
    waits = Board("b", pids=(8,), milliwatts=70_000, memory_percent=0)
    found, collector, now = uses(Board("a", pids=(7,)), waits)
    found.look([7, 8, 9], collector.collect())
    assert [found.of(pid) for pid in (7, 8, 9)] == [GpuUse.WORKS, GpuUse.WAITS, GpuUse.UNKNOWN]
    now[0] = 60.0  # the driver has not answered since
    assert found.of(7) is GpuUse.UNKNOWN


def test_bytes_over_links_count_by_their_growth() -> None:
    board = Board("a", links=2, pids=(7,), milliwatts=100_000, memory_percent=0)
    found, collector, now = uses(board)
    for at, kibibytes, use in ((0.0, 1000, GpuUse.WAITS), (2.0, 1000, GpuUse.WAITS), (4.0, 900_000, GpuUse.WORKS)):
        now[0], board.link_kib = at, kibibytes
        found.look([7], collector.collect())
        assert found.of(7) is use


def test_what_nvml_does_not_tell_is_unknown() -> None:
    fail = {
        name: pynvml.NVML_ERROR_NOT_SUPPORTED
        for name in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetPcieThroughput", "nvmlDeviceGetEnforcedPowerLimit")
    }
    found, collector, _ = uses(Board("a", pids=(7,), memory_percent=0, fail=fail))
    found.look([7], collector.collect())
    assert found.of(7) is GpuUse.UNKNOWN
    absent = GpuUses(GpuCollector(FakeNvml([])))
    absent.look([7], ())
    assert absent.of(7) is GpuUse.UNKNOWN


def test_where_cuda_may_spin_processor_time_is_no_movement_but_a_gpu_that_works_is(tmp_path: Path) -> None:
    """A process of /proc as it is in cudaStreamSynchronize: it runs all the time, and has the driver open."""
    use = [GpuUse.WAITS]
    activities = Activities(str(tmp_path))
    activities.uses = lambda pid: use[0]
    ticks = 0
    for name in ("7/fd", "7/fdinfo", "7/task/7"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "7" / "fd" / "9").symlink_to("/dev/nvidia-uvm")
    (tmp_path / "7" / "io").write_text("rchar: 1\nwchar: 1\nread_bytes: 0\nwrite_bytes: 0\n")

    def frames(seconds: float) -> t.Activity:
        nonlocal ticks
        end = time.monotonic() + seconds
        seen = None
        while seen is None or time.monotonic() < end:
            ticks += 10
            (tmp_path / "7" / "stat").write_text(f"7 (x) R 1 7 7 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 5 0 0")
            seen = activities.attach(t.WorkerSample(0, 0, 7)).activity
            activities.settle()
            time.sleep(0.1)
        return seen

    seen = frames(1.5)
    assert (seen.has_gpu, seen.gpu, seen.state) == (True, GpuUse.WAITS, "R")
    assert seen.cpu > 0.5
    assert seen.quiet == pytest.approx(seen.watched)
    use[0] = GpuUse.WORKS
    assert frames(0.2).quiet < 0.2
    activities.close()
