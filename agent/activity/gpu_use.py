"""Does a worker's GPU work, or does it wait? From figures of NVML, without asking the worker.

Utilization is no evidence: a kernel of NCCL that waits for a peer spins, and reads as 100% (NVIDIA/nccl issue 968:
100% at about 70 W; an H200: 100% at 123 W, which is what it draws idle). Power is, and memory that is read, bytes on
NVLink, and many bytes on PCIe. `judge` is pure; `GpuUses` asks.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from holdfast.agent.activity.movement import Moves
from holdfast.agent.collectors.gpu import GpuCollector
from holdfast.wire.standing import GpuUse
from holdfast.wire.types import GpuGauges

POWER_WORKS, POWER_WAITS = 0.4, 0.25
"""Share of the power limit from which a GPU works, and up to which it waits. Between: not known."""
MEMORY_WORKS = 0.05
"""Share of the time in which memory was read or written, from which it works."""
NVLINK_WORKS = 50e6
"""Bytes a second over NVLink from which it works: a kernel that waits polls its own memory."""
PCIE_WORKS = 6e9
"""Bytes a second over PCIe from which it works, both directions. A kernel of NCCL that waits for the network, or for
a GPU without NVLink, polls flags in host memory: on an H200 122 MB/s for a waiting rank with 2 channels, 1.97 GB/s with
32 (idle: 1 MB/s), so 3.9 with the 64 that NCCL has at most. Copies moved 61 GB/s there, of memory that is not pinned
12.3, and are above 10 on a PCIe of the third generation. What moves less is judged by its power."""
FORGET_S = 10.0
"""Seconds for which an answer holds when no newer one comes."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one GPU. NaN where the GPU does not report the value."""

    power_w: float = math.nan
    limit_w: float = math.nan
    memory_share: float = math.nan
    nvlink_bytes_s: float = math.nan
    pcie_bytes_s: float = math.nan
    processes: int = 1
    """That compute on it."""


def judge(figures: Figures) -> GpuUse:
    """What the GPU does. Several processes on one GPU can't be distinguished, unless all of them wait."""
    share = figures.power_w / figures.limit_w if figures.limit_w > 0 else math.nan
    moves = figures.nvlink_bytes_s >= NVLINK_WORKS or figures.pcie_bytes_s >= PCIE_WORKS
    if moves or share >= POWER_WORKS or figures.memory_share >= MEMORY_WORKS:
        return GpuUse.WORKS if figures.processes <= 1 else GpuUse.UNKNOWN
    # Without its power it is not known what a kernel does that touches no memory.
    return GpuUse.WAITS if share <= POWER_WAITS else GpuUse.UNKNOWN


class GpuCounts:
    """Movement of one worker at a standstill that only counters show: events that the GPU passes, operations that the
    worker begins. Pure."""

    def __init__(self) -> None:
        self.moves = Moves()
        self.pending = 0
        """Events that timers recorded and that have not come."""
        self._come = -1

    def count(self, now: float, recorded: int, come: int) -> None:
        """Events of its timers on the GPU, since the process began."""
        if come > self._come >= 0:
            self.moves.note(now)
        self._come, self.pending = come, recorded - come

    def note(self, at: float) -> None:
        """When it was last seen to begin an operation; NaN: not in this standstill."""
        if not math.isnan(at) and not at <= self.moves.last:
            self.moves.note(at)


class GpuUses:
    """Of the workers of this node. `look` may block in a sick driver; `of` never does."""

    def __init__(self, gpus: GpuCollector, clock: Callable[[], float] = time.monotonic) -> None:
        self._gpus, self._clock = gpus, clock
        self._uses: dict[int, tuple[float, GpuUse]] = {}
        self._bytes: dict[int, tuple[float, float]] = {}

    def of(self, pid: int) -> GpuUse:
        at, use = self._uses.get(pid, (-math.inf, GpuUse.UNKNOWN))
        return use if self._clock() - at <= FORGET_S else GpuUse.UNKNOWN

    def look(self, pids: Iterable[int], gauges: tuple[GpuGauges, ...]) -> None:
        """Judge the GPUs of these processes, given what was just read of all. Never raises."""
        now = self._clock()
        values = {gpu.index: gpu.values for gpu in gauges}
        by_gpu = self._gpus.processes()
        found: dict[int, tuple[float, GpuUse]] = {}
        for pid in pids:
            indices = [index for index, theirs in by_gpu.items() if pid in theirs]
            uses = [judge(self._figures(index, values.get(index, {}), len(by_gpu[index]), now)) for index in indices]
            if uses:
                found[pid] = now, _together(uses)
        self._uses = found

    def _figures(self, index: int, values: dict[str, float], processes: int, now: float) -> Figures:
        moved, rate = self._gpus.link_bytes(index), math.nan
        before = self._bytes.get(index)
        if not math.isnan(moved):
            if before is not None and now > before[0]:
                rate = max(moved - before[1], 0.0) / (now - before[0])
            self._bytes[index] = now, moved
        return Figures(
            values.get("power_watts", math.nan),
            self._gpus.power_limit_w(index),
            values.get("memory_utilization_ratio", math.nan),
            rate,
            self._gpus.pcie_bytes_s(index),
            processes,
        )


def _together(uses: list[GpuUse]) -> GpuUse:
    """Of a process on several GPUs."""
    if GpuUse.WORKS in uses:
        return GpuUse.WORKS
    return GpuUse.WAITS if all(use is GpuUse.WAITS for use in uses) else GpuUse.UNKNOWN
