"""Collects what a frame holds: millisecond samples, host and GPU gauges, each worker's training state.

Gauges are read beside the frames, GPU gauges in a thread: a sick driver may not answer for minutes, and then it is the
gauges that are missing and never the heartbeat.
"""

import asyncio
import time
from collections.abc import Callable, Iterable

from holdfast.agent.activity.gpu_use import GpuUses
from holdfast.agent.activity.watch import Activities
from holdfast.agent.collectors.gpu import GpuCollector
from holdfast.agent.collectors.host import HostCollector, process_state
from holdfast.agent.collectors.nic import NicCollector
from holdfast.agent.collectors.rdma import RdmaCollector
from holdfast.agent.probe_file.reader import ProbeReader
from holdfast.agent.sampling.sampler import Sampler
from holdfast.base import log
from holdfast.base.errors import HoldfastError
from holdfast.wire import types as t

Gauges = HostCollector | NicCollector | RdmaCollector


class Heartbeat:
    def __init__(
        self,
        sampler: Sampler,
        gauges: Iterable[Gauges],
        gpus: GpuCollector,
        readers: Callable[[], Iterable[ProbeReader]],
        on_lost_steps: Callable[[int, int], None] = lambda rank, count: None,
        activities: Activities | None = None,
    ) -> None:
        self._sampler, self._gauges, self._gpus, self._readers = sampler, list(gauges), gpus, readers
        self._host: dict[str, float] = {}
        self._read: dict[str, float] = {}
        self._more: dict[str, float] = {}
        self._gpu: tuple[t.GpuGauges, ...] = ()
        self._lost: dict[tuple[str, int], int] = {}
        self._on_lost = on_lost_steps
        self._uses = GpuUses(gpus)
        self.activities = activities or Activities()
        self.activities.uses = self._uses.of
        self._failed: set[str] = set()  # probes that we could not read for a fault of our own

    def frame(self, heartbeat_interval: float) -> t.Frame:
        """Everything since the last one; its number is the outbox's to give."""
        offsets, nics, wall_ns, mono_ns = self._sampler.take(time.monotonic())
        samples, steps = self.workers()
        host, self._host = self._host, {}
        gpus, self._gpu = self._gpu, ()
        return t.Frame(
            seq=0,
            wall_ns=wall_ns,
            mono_ns=mono_ns,
            offsets=offsets,
            nics=nics,
            host=host,
            gpus=gpus,
            workers=samples,
            steps=steps,
            heartbeat_interval=heartbeat_interval,
        )

    def read_host(self) -> None:
        """Read the host's gauges for the next frame."""
        self._read = {}
        for collector in self._gauges:
            if collector.available:
                self._read |= collector.collect()
        for reader in self._readers():
            state = process_state(reader.pid) if reader.pid else ""
            for gauge, letter in (("worker_blocked", "D"), ("worker_zombie", "Z")):
                name = f"{gauge}/{reader.rank}"  # jobs that share the node may have the same ranks
                self._read[name] = max(self._read.get(name, 0.0), float(state == letter))
        self._host = self._read | self._more

    def report_host(self, more: dict[str, float]) -> None:
        """Gauges that come more often than the host's own. A frame has all or none: the last one is what counts."""
        if more != self._more:
            self._more = more
            self._host = self._read | more

    async def read_gpus(self) -> None:
        """Read the GPUs for the next frame; returns when they answered."""
        if self._gpus.available:
            self._gpu = await asyncio.to_thread(self._gpus.collect)
            if standing := self.activities.standing:
                await asyncio.to_thread(self._uses.look, standing, self._gpu)

    def workers(self) -> tuple[tuple[t.WorkerSample, ...], tuple[t.StepRecord, ...]]:
        samples, steps = [], []
        now_ns = time.monotonic_ns()
        for reader in self._readers():
            try:
                steps += reader.new_steps()
                sample = reader.sample(now_ns)
                what = reader.path, reader.tick_thread, now_ns / 1e9, reader.events, reader.handlers, reader.services
                samples.append(self.activities.attach(sample, *what))
                if (activity := samples[-1].activity) is not None:
                    log.debug("activity.seen", rank=sample.rank, activity=activity)
            except HoldfastError:
                continue  # a worker that tears its own file down cannot be watched; its exit still is
            except Exception as error:
                # What is there was written by other people's programs: it must not end the heartbeat of the node.
                if reader.path not in self._failed:
                    self._failed.add(reader.path)
                    log.exception("probe.bug", rank=reader.rank, error=repr(error))
                continue
            worker = reader.job, reader.rank
            if reader.lost > self._lost.get(worker, 0):
                self._on_lost(reader.rank, reader.lost - self._lost.get(worker, 0))
                self._lost[worker] = reader.lost
        self.activities.settle()
        return tuple(samples), tuple(steps)
