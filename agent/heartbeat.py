"""Collects what a frame holds: millisecond samples, host and GPU gauges, each worker's training state."""

import time
from collections.abc import Callable, Iterable

from holdfast import types as t
from holdfast.agent.collectors.gpu import GpuCollector
from holdfast.agent.collectors.host import HostCollector
from holdfast.agent.collectors.nic import NicCollector
from holdfast.agent.collectors.rdma import RdmaCollector
from holdfast.agent.probe_reader import ProbeReader
from holdfast.agent.sampler import Sampler
from holdfast.errors import HoldfastError

Gauges = HostCollector | NicCollector | RdmaCollector


class Heartbeat:
    def __init__(
        self,
        sampler: Sampler,
        gauges: Iterable[Gauges],
        gpus: GpuCollector,
        readers: Callable[[], Iterable[ProbeReader]],
        on_lost_steps: Callable[[int, int], None] = lambda rank, count: None,
    ) -> None:
        self._sampler, self._gauges, self._gpus, self._readers = sampler, list(gauges), gpus, readers
        self._due: dict[str, float] = {}
        self._lost: dict[int, int] = {}
        self._on_lost = on_lost_steps

    def frame(self, cadence: float) -> t.Frame:
        """Everything since the last one; its number is the outbox's to give."""
        now = time.monotonic()
        offsets, nics, wall_ns, mono_ns = self._sampler.take(now)
        samples, steps = self.workers()
        return t.Frame(
            seq=0,
            wall_ns=wall_ns,
            mono_ns=mono_ns,
            offsets=offsets,
            nics=nics,
            host=self._host(now),
            gpus=self._gpus.collect() if self._gpus.available and self._is_due("gpu", self._gpus.interval, now) else (),
            workers=samples,
            steps=steps,
            cadence=cadence,
        )

    def workers(self) -> tuple[tuple[t.WorkerSample, ...], tuple[t.StepRecord, ...]]:
        samples, steps = [], []
        now_ns = time.monotonic_ns()
        for reader in self._readers():
            try:
                steps += reader.new_steps()
                samples.append(reader.sample(now_ns))
            except HoldfastError:
                continue  # a worker that tears its own file down cannot be watched; its exit still is
            if reader.lost > self._lost.get(reader.rank, 0):
                self._on_lost(reader.rank, reader.lost - self._lost.get(reader.rank, 0))
                self._lost[reader.rank] = reader.lost
        return tuple(samples), tuple(steps)

    def _host(self, now: float) -> dict[str, float]:
        values: dict[str, float] = {}
        for collector in self._gauges:
            if collector.available and self._is_due(collector.name, collector.interval, now):
                values |= collector.collect()
        return values

    def _is_due(self, name: str, interval: float, now: float) -> bool:
        if now < self._due.get(name, 0.0):
            return False
        self._due[name] = now + interval
        return True
