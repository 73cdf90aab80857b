"""Does a GPU work or wait? Judged by NVML's figures, which are faked; and by the processes that use it."""

import functools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from holdfast.agent.activity.gpu_use import Figures, GpuUses, judge
from holdfast.agent.activity.nccl_ras import Absent, RasStatus, ask
from holdfast.agent.activity.operations import LATER_S, NcclOperations
from holdfast.agent.activity.watch import Activities
from holdfast.agent.collectors.gpu import GpuCollector
from holdfast.diagnostics.hang.stillness import Liveness, look
from holdfast.wire import types as t
from holdfast.wire.standing import GpuUse
from tests.agent.support.fake_nvml import Board, FakeNvml
from tests.agent.support.fake_ras import FakeRas, serve


@pytest.mark.parametrize(
    ("figures", "use"),
    [
        (Figures(70, 700, 0.0), GpuUse.WAITS),  # NCCL spins: utilization 100% at idle power
        (Figures(512, 700, 0.0), GpuUse.WORKS),
        (Figures(240, 700, 0.0), GpuUse.UNKNOWN),
        (Figures(70, 700, 0.4), GpuUse.WORKS),
        (Figures(120, 700, 0.0, 300e6, 0.0), GpuUse.WORKS),
        (Figures(120, 700, 0.0, 2e6, 0.0), GpuUse.WAITS),
        (Figures(123, 700, 0.0, math.nan, 1.1e6), GpuUse.WAITS),  # an idle H200
        (Figures(123, 700, 0.0, math.nan, 122.4e6), GpuUse.WAITS),  # NCCL polls flags in host memory, as measured there
        (Figures(126, 700, 0.0, math.nan, 1970.9e6), GpuUse.WAITS),  # the same with 32 channels
        (Figures(126, 700, 0.0, 0.0, 64 * 61.6e6), GpuUse.WAITS),  # with as many as NCCL has
        (Figures(123, 700, 0.0, 0.0, 9e9), GpuUse.WORKS),  # copies over PCIe 3.0
        (Figures(123, 700, 0.0, math.nan, 61.1e9), GpuUse.WORKS),
        (Figures(240, 700, 0.0, 0.0, 122.4e6), GpuUse.UNKNOWN),
        (Figures(math.nan, 700, 0.0, 0.0, 122.4e6), GpuUse.UNKNOWN),
        (Figures(), GpuUse.UNKNOWN),
        (Figures(math.nan, 700, 0.0), GpuUse.UNKNOWN),
        (Figures(300, 0, 0.0), GpuUse.UNKNOWN),
        (Figures(512, 700, 0.4, processes=2), GpuUse.UNKNOWN),
        (Figures(70, 700, 0.0, processes=2), GpuUse.WAITS),
    ],
)
def test_power_memory_and_bytes_are_the_evidence(figures: Figures, use: GpuUse) -> None:
    assert judge(figures) is use


CPU = {"state": "R", "cpu": 1.0}


@pytest.mark.parametrize(
    ("what", "figures", "use", "seen"),
    [
        ("a copy of memory that is not pinned", Figures(129, 700, 0.0, 0.0, 12.3e9), GpuUse.WORKS, CPU),
        ("a save through a slow disk: a burst a minute", Figures(123, 700, 0.0, 0.0, 5e6), GpuUse.WAITS,
         {"written": 80e6}),
        ("a load from a slow share, over a socket", Figures(123, 700, 0.0, 0.0, 2e6), GpuUse.WAITS, {"network": 20e6}),
        ("a dataset that a child unpacks", Figures(123, 700), GpuUse.WAITS, {"children_cpu": 0.9}),
        ("kernels of a small batch in a loop of Python", Figures(150, 700, 0.01), GpuUse.WAITS, CPU),
        ("a decode that reads its cache at little power", Figures(160, 700, 0.08), GpuUse.WORKS, CPU),
        ("an exchange over NVLink at little power", Figures(140, 700, 0.0, 400e6, 1e6), GpuUse.WORKS, CPU),
        ("spans that end one by one at little power", Figures(140, 700), GpuUse.WAITS, CPU),
        ("all-reduces of few bytes that NCCL's RAS counts", Figures(124, 700, 0.0, math.nan, 90e6), GpuUse.WAITS, CPU),
        ("first touch of memory that copies come to", Figures(124, 700, 0.0, math.nan, 1.5e9), GpuUse.WAITS, CPU),
        ("a pause of an evaluation at half power", Figures(300, 700), GpuUse.WORKS, CPU),
    ],
)  # fmt: skip
def test_honest_work_that_looks_like_waiting_here_is_kept_alive_by_other_evidence(
    what: str, figures: Figures, use: GpuUse, seen: dict[str, Any]
) -> None:
    """Where the GPU waits by its figures, `quiet` is small for the reason that `what` names: bytes, children, the
    interpreter's lock, events, RAS counts or page faults, each tested where it is counted."""
    assert judge(figures) is use, what
    by_its_gpu = use is GpuUse.WORKS
    activity = t.Activity(9.0, 0.1, **{"state": "S", "has_gpu": True, "gpu": use, **seen})
    assert look(activity).life is Liveness.BUSY, what
    assert ("its GPU, which works" in look(activity).text) == by_its_gpu


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
    now[0] = 60.0  # no answer from the driver since
    assert found.of(7) is GpuUse.UNKNOWN


def test_bytes_over_links_count_by_their_growth() -> None:
    board = Board("a", links=2, pids=(7,), milliwatts=100_000, memory_percent=0)
    found, collector, now = uses(board)
    for at, kibibytes, use in ((0.0, 1000, GpuUse.WAITS), (2.0, 1000, GpuUse.WAITS), (4.0, 900_000, GpuUse.WORKS)):
        now[0], board.link_kib = at, kibibytes
        found.look([7], collector.collect())
        assert found.of(7) is use


@pytest.mark.parametrize(
    ("kilobytes", "use"), [(60_000, GpuUse.WAITS), (2_000_000, GpuUse.WAITS), (6_000_000, GpuUse.WORKS)]
)
def test_polling_over_pcie_is_no_work_and_copies_are(kilobytes: int, use: GpuUse) -> None:
    board = Board("a", links=2, pids=(7,), milliwatts=123_000, memory_percent=0, pcie_kb=kilobytes)
    found, collector, now = uses(board)
    for now[0] in (0.0, 2.0):
        found.look([7], collector.collect())
        assert found.of(7) is use


def test_what_nvml_does_not_report_is_unknown() -> None:
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


PATIENT = functools.partial(ask, patience=30.0)


class Spinning:
    """A /proc entry of a process in cudaStreamSynchronize: always running, with the driver open."""

    def __init__(self, proc: Path, ras: FakeRas | None = None) -> None:
        self.proc, self.use, self.events = proc, GpuUse.WAITS, (0, 0)
        self.began = time.monotonic()
        asked = NcclOperations(PATIENT if ras is not None else nobody, proc=str(proc))
        self.activities = Activities(str(proc), operations=asked)
        self.activities.uses = lambda pid: self.use
        for name in ("7/fd", "7/fdinfo", "7/task/7"):
            (proc / name).mkdir(parents=True)
        (proc / "7" / "fd" / "9").symlink_to("/dev/nvidia-uvm")
        (proc / "7" / "io").write_text("rchar: 1\nwchar: 1\nread_bytes: 0\nwrite_bytes: 0\n")
        (proc / "7" / "environ").write_text(f"A=b\0NCCL_RAS_ADDR={ras.address if ras is not None else ''}\0")

    def frames(
        self, seconds: float, each: Callable[[], None] = lambda: None, until: Callable[[t.Activity], bool] | None = None
    ) -> t.Activity:
        """Frames for this many seconds, or until the condition holds; the last one."""
        end = time.monotonic() + seconds
        while True:
            ticks = round(100 * (time.monotonic() - self.began))
            stat = f"7 (x) R 1 7 7 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 5 0 0"
            (self.proc / "7" / "stat").write_text(stat)
            each()
            seen = self.activities.attach(t.WorkerSample(0, 0, 7), events=self.events).activity
            self.activities.settle()
            is_over = time.monotonic() > end
            if seen is not None and (until(seen) if until is not None else is_over):
                return seen
            assert until is None or not is_over, f"not seen in time: {seen}"
            time.sleep(0.1)


def nobody(address: str, as_text: bool = False) -> RasStatus:
    raise Absent(address)


def test_where_cuda_may_spin_processor_time_is_no_movement_but_a_gpu_that_works_is(tmp_path: Path) -> None:
    worker = Spinning(tmp_path)
    seen = worker.frames(30.0, until=lambda seen: seen.quiet > 1.2)
    assert (seen.has_gpu, seen.gpu, seen.state) == (True, GpuUse.WAITS, "R")
    assert seen.cpu > 0.5
    assert seen.quiet == pytest.approx(seen.watched)
    worker.use = GpuUse.WORKS
    worker.frames(30.0, until=lambda seen: seen.quiet < 0.2)
    worker.activities.close()


def test_events_that_come_are_movement_and_events_that_stand_at_idle_power_are_a_peers_wait(tmp_path: Path) -> None:
    """A GPU that is idle by NVML may still complete recorded events, one by one."""
    worker = Spinning(tmp_path)
    worker.events = (9, 4)  # before the stall
    seen = worker.frames(30.0, until=lambda seen: seen.quiet > 1.5)
    assert (seen.events_pending, seen.waits_for_gpu, look(seen).life) == (5, True, Liveness.IDLE)
    assert seen.quiet == pytest.approx(seen.watched)

    def come() -> None:
        worker.events = (9, min(worker.events[1] + 1, 9))

    seen = worker.frames(30.0, come, until=lambda seen: seen.quiet < 0.2)
    assert look(seen).life is Liveness.BUSY
    seen = worker.frames(30.0, until=lambda seen: seen.quiet > 0.6)
    assert look(seen).life is Liveness.IDLE
    worker.activities.close()


def test_operations_that_it_begins_are_movement_and_one_that_lags_its_peers_is_named(tmp_path: Path) -> None:
    """As NCCL's RAS counts them, asked over TCP at the address of the worker's own environment."""
    counts = {"AllReduce": 640}
    ranks = [(0, "127.0.0.1", 7, counts), (1, "192.0.2.9", 7, {"AllReduce": 900})]
    with serve(FakeRas(ranks)) as ras:
        worker = Spinning(tmp_path, ras)
        seen = worker.frames(20.0, until=lambda seen: bool(seen.behind))
        assert seen.behind.startswith("by NCCL's count it has begun 640 AllReduce operations as rank 0 of communicator")
        assert look(seen).life is Liveness.IDLE
        assert seen.behind in look(seen).text

        def begin() -> None:
            counts["AllReduce"] += 1

        seen = worker.frames(20.0, begin, until=lambda seen: seen.quiet < 0.3)
        assert look(seen).life is Liveness.BUSY
        assert worker.frames(20.0, begin, until=lambda seen: not seen.behind).gpu is GpuUse.WAITS
        worker.activities.close()
    # Half a second after the first, then once a second.
    assert ras.heard.count("verbose status") <= 3 + (time.monotonic() - worker.began) / LATER_S


def test_no_close_look_begins_with_a_question_to_nccl(tmp_path: Path) -> None:
    """Whoever answers opens a descriptor for it, which would be a movement."""
    worker = Spinning(tmp_path)
    begun: list[str] = []
    worker.frames(20.0, until=lambda seen: seen.has_gpu)
    for name, what in (("operations", "question"), ("_aside", "look")):
        began = lambda *args, what=what: begun.append(what) or True  # noqa: E731
        fake = type("Fake", (), {"is_free": True, "left": (), "begin": began, "close": lambda self: None})()
        for own in ("grew_at", "behind", "forget"):
            setattr(fake, own, lambda pid, own=own: math.nan if own == "grew_at" else "")
        setattr(worker.activities, name, fake)
    worker.frames(0.3)
    assert set(begun) == {"question"}
    worker.activities.operations.begin = lambda *args: False  # type: ignore[method-assign]
    worker.frames(0.3)
    assert "look" in begun


def test_a_worker_without_a_gpu_costs_no_question(tmp_path: Path) -> None:
    with serve(FakeRas()) as ras:
        worker = Spinning(tmp_path, ras)
        (tmp_path / "7" / "fd" / "9").unlink()
        worker.frames(1.5)
        worker.activities.close()
        assert ras.heard == []
