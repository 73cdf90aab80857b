"""Wiring: build the parts, run until a signal comes, leave in order. `holdfast agent` calls `run`."""

import asyncio
import dataclasses
import gc
import math
import os
import shutil
import sys
import time
import uuid
from contextlib import suppress

from holdfast.agent.collectors import nic
from holdfast.agent.collectors.gpu import GpuCollector
from holdfast.agent.collectors.host import HostCollector
from holdfast.agent.collectors.kernel_log import KernelLog, event, xid_event
from holdfast.agent.collectors.rdma import RdmaCollector
from holdfast.agent.commands import Commands
from holdfast.agent.forkserver import journal, output_memory
from holdfast.agent.logs import rules as log_rules
from holdfast.agent.logs.worker_logs import WorkerLogs
from holdfast.agent.node.checkpoints import Checkpoints
from holdfast.agent.node.faults import NodeFaults
from holdfast.agent.node.identity import read_identity
from holdfast.agent.node.peers import ProbeListener
from holdfast.agent.processes.guard import PartGuard
from holdfast.agent.sampling.sampler import Sampler
from holdfast.agent.sampling.sweeps import COMPILED
from holdfast.agent.stream.beat import beat
from holdfast.agent.stream.heartbeat import Gauges, Heartbeat
from holdfast.agent.stream.link import Link, read_credentials
from holdfast.agent.stream.outbox import Outbox
from holdfast.agent.stream.span_sender import SpanSender
from holdfast.agent.workers.fork_servers import jobs_dir
from holdfast.agent.workers.workers import Workers
from holdfast.base import log, private, service
from holdfast.base.config.agent import AgentConfig
from holdfast.base.errors import HoldfastError, UsageError
from holdfast.base.state_lock import StateLock
from holdfast.facts.nics import VARIABLE, nic_type
from holdfast.wire import codec as wire
from holdfast.wire import messages as msg
from holdfast.wire import types as t

_LOOK_EVERY = 0.25  # seconds, at most, between looks at the kernel's log, and at the workers' while they are quiet
_LOGS_EVERY = 0.05  # while they are not
_QUIET_LOOKS = 20
_SWITCH = 0.0005  # seconds that one thread may keep the interpreter while another waits, as the sampler without its C
_SPANS_EVERY = 1.0
_ASIDE = 0.1
_CLOCK_EVERY = 5.0  # seconds between questions for the controller's time ...
_CLOCK_FIRST = 8  # ... but for the first few
_NEWS_EVERY = 1.0
_PRESSED_EVERY = 0.1  # seconds between frames while a worker has just stood for longer than a step
_FULL_APART = 60.0  # between two reports of a disk that refuses
_HOST_EVERY = 5.0
_GPUS_EVERY = 2.0
_DRIVER_TIMEOUT = 10.0
_END_S = 10.0
_PATIENT = 5.0  # seconds that a worker has stood still, after which its stacks may be read slowly, without a signal
_LAST_NEWS_S = 2.0  # to get the news of the workers' ends through


def run(config: AgentConfig) -> int:
    """Serve until a signal comes. Exit codes as in holdfast.base.service."""
    service.raise_priority()
    sys.setswitchinterval(_SWITCH)
    return service.run(lambda stop: Agent(config).main(stop), grace=config.drain + _END_S)


def crossed(before: float, now: float, every: float) -> bool:
    """Whether a multiple of `every` lies between the two: one look at several periods has them fall together."""
    return now // every > before // every


class Agent:
    def __init__(self, config: AgentConfig) -> None:
        config.check()
        self.config = config
        sysfs = str(config.sysfs_root)
        if not config.sysfs_root.is_dir():
            raise UsageError(f"sysfs_root {sysfs}: no such folder; the system's own is /sys")
        self.state_dir = config.state_dir
        private.state_folder(self.state_dir)
        incarnation = uuid.uuid4().hex
        self.lock = StateLock(self.state_dir, "agent", incarnation)
        if self.lock.is_copy:
            log.warning("state.copied", state_dir=str(self.state_dir), forgotten="workers of the original")
            journal.forget(self.state_dir / "run")
            shutil.rmtree(jobs_dir(self.state_dir / "run"), ignore_errors=True)
        self.rules = log_rules.load([config.log_rules] if config.log_rules else [])
        self.gpus = GpuCollector()
        self.kernel = KernelLog()
        slots = config.slots or len(self.gpus.gpus) or os.cpu_count() or 1
        self.identity = read_identity(
            config.node_name, config.switch, slots, sysfs, incarnation,
            gpus=self.gpus.gpus, driver=self.gpus.driver, predecessors=tuple(self.lock.runs),
        )  # fmt: skip
        names = () if config.nics == ("auto",) else config.nics
        pairs = nic.choose(sysfs, names)
        if not names and (silent := nic.uncounted(sysfs)):
            log.event("nic.uncounted", nics=", ".join(silent), sampled=", ".join(pair.name for pair in pairs))
        # Only logged: a missing NIC must not keep the agent from reporting it.
        if missing := sorted(set(names) - {pair.name for pair in pairs}):
            log.warning(
                "nic.missing", nics=", ".join(missing), known=", ".join(found.name for found in nic.nics(sysfs))
            )
        self.outbox = Outbox(config.buffer_frames)
        self.guard = PartGuard(self._bug)
        self._full_reported = -math.inf
        self.logs = WorkerLogs(
            self.state_dir / "logs", rules=self.rules, on_match=lambda found, _: self.report(found),
            on_full=self._disk_refuses,
        )  # fmt: skip
        self.sampler = Sampler(pairs, config.sample_interval, notice=self._sampler_notice)
        self.link = Link(
            config.address(), self.outbox, self.hello, lambda command: self.commands.obey(command), self.durable,
            read_credentials(config.tls_ca, config.tls_cert, config.tls_key), self._clock_reply,
        )  # fmt: skip
        self.checkpoints = Checkpoints(
            self.state_dir, self.identity.node, config.switch, self.link.own_address, self.report
        )
        self.workers = Workers(
            self.state_dir, self.logs, self.kernel, self.link.own_address,
            on_event=self.report, on_log=self.link.send, on_last_steps=self._last_steps,
            on_last_reader=lambda reader: self.spans.take(reader),
            preload=config.preload if config.warm else (),
            environ={**os.environ, VARIABLE: nic_type(self.identity.nics), **self.checkpoints.environment()},
            has_time=lambda: self.heart.activities.stood() > _PATIENT, guard=self.guard,
        )  # fmt: skip
        for folder in (self.workers.shm, self.checkpoints.folder):
            with suppress(FileNotFoundError):
                private.check_shared(folder)
        folders = [str(self.state_dir), os.getcwd()]
        gauges: list[Gauges] = [HostCollector(folders), nic.NicCollector(sysfs), RdmaCollector(sysfs)]
        everything: list[Gauges | GpuCollector | KernelLog] = [*gauges, self.gpus, self.kernel]
        for collector in everything:
            if not collector.available:
                log.event("collector.absent", collector=collector.name, reason=collector.absent_reason)
        self.faults = NodeFaults(self.kernel.say, self.rules, config.sysfs_root, self.state_dir, self.gpus.gpus)
        self.heart = Heartbeat(self.sampler, gauges, self.gpus, self.workers.readers, self._lost_steps)
        self.heart.activities.leaders = self.workers.leaders
        self.heart.activities.operations.variable = self.workers.variable
        self.commands = Commands(
            self.workers, self.checkpoints, self.faults, self.link.send, self.heart.activities.disturb, self.guard,
            str(self.state_dir),
        )  # fmt: skip
        self.spans = SpanSender(self.workers.readers, self.link.send, self._dropped_spans)
        self._steps_reported = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heartbeat_interval = self._look_every = _LOOK_EVERY  # of the frame that fills
        self._looks = 1  # until it goes
        self._looked_at = 0.0
        self._clock_request, self._clock_request_at = 0, 0.0
        self._clock_seen: dict[str, float] = {}
        self._checkpoints_seen: dict[str, float] = {}
        self._printing = asyncio.Event()
        self.probe_listener = ProbeListener()

    # --- up ------------------------------------------------------------------------------------------------------

    def hello(self) -> msg.Hello:
        identity = dataclasses.replace(
            self.identity, address=self.link.own_address(), ping_port=self.probe_listener.port
        )
        return msg.Hello(identity, self.workers.hello_workers(), wire.PROTOCOL, wire.PROTOCOL, time.time_ns())

    def report(self, event: t.Event) -> None:
        self.link.send(self.outbox.event(event))

    def _bug(self, part: str, error: Exception) -> None:
        text = f"an error in Holdfast's own {part}, which continues: {type(error).__name__}: {str(error)[:300]}"
        self.report(t.AgentNotice(time.time_ns(), "bug", t.Severity.WARNING, text))

    def _last_steps(self, steps: tuple[t.StepRecord, ...]) -> None:
        """Steps of a worker that is gone travel ahead of the news of its end."""
        frame = t.Frame(
            0, time.time_ns(), time.monotonic_ns(), steps=steps, heartbeat_interval=self.link.heartbeat_interval
        )
        self.link.send(self.outbox.frame(frame, self.link.connected))

    def _lost_steps(self, rank: int, count: int) -> None:
        text = f"{count} steps of rank {rank} were overwritten before they were read: the agent was down too long"
        self.report(t.AgentNotice(time.time_ns(), "probe", t.Severity.WARNING, text))

    def _look_at_outbox(self) -> None:
        if self.outbox.lost_steps > self._steps_reported and self.link.connected:
            count, self._steps_reported = self.outbox.lost_steps - self._steps_reported, self.outbox.lost_steps
            text = f"{count} steps exceeded the buffer for an unreachable controller: the oldest were dropped"
            self.report(t.AgentNotice(time.time_ns(), "steps", t.Severity.WARNING, text))

    def _dropped_spans(self, count: int) -> None:
        text = f"{count} spans dropped, more may follow: the controller receives them too slowly"
        self.report(t.AgentNotice(time.time_ns(), "spans", t.Severity.WARNING, text))

    def _clock_reply(self, reported: msg.ClockReply) -> None:
        self.spans.clock.answered(reported.sent_ns, reported.wall_ns, time.monotonic_ns())

    def _clock_gauges(self) -> dict[str, float]:
        """How far this host's Unix time is ahead of the controller's, and how well that is known."""
        now_ns = time.monotonic_ns()
        best = self.spans.clock.best(now_ns)
        if best is None:
            return {}
        ahead_ns = time.time_ns() - now_ns - best.offset_ns
        return {"clock_offset_seconds": ahead_ns / 1e9, "clock_offset_error_seconds": best.error_ns / 1e9}

    def _sampler_notice(self, text: str) -> None:
        notice = t.AgentNotice(time.time_ns(), "nic", t.Severity.WARNING, text)
        if self._loop is not None:  # called from the sampler's thread
            self._loop.call_soon_threadsafe(self.report, notice)

    def _disk_refuses(self, path: str, error: OSError) -> None:
        """Called from the thread that writes the logs, perhaps often."""
        now = time.monotonic()
        if self._loop is None or now - self._full_reported < _FULL_APART:
            return
        self._full_reported = now
        text = f"cannot write {path}: {error.strerror}; workers continue, their output is sent but missing there"
        kind = "disk-full" if error.errno in output_memory.FULL else "logs"
        notice = t.AgentNotice(time.time_ns(), kind, t.Severity.CRITICAL, text)
        self._loop.call_soon_threadsafe(self.report, notice)

    def durable(self, events: list[t.Event]) -> None:
        for done in events:
            self.workers.durable(done)

    # --- loops ---------------------------------------------------------------------------------------------------

    def _beat(self, due: float) -> float:
        """Frames, and all that is looked at now and then: a process that sleeps pays for each time that it wakes."""
        self._look(due)
        self._looks -= 1
        if self._looks <= 0:
            self.link.send(self.outbox.frame(self._frame(), self.link.connected))
            self._heartbeat_interval = (
                self.link.heartbeat_interval if self.link.connected else max(self.link.heartbeat_interval, 0.5)
            )
            wait = self._heartbeat_interval
            if wait <= _LOOK_EVERY and self.heart.activities.is_pressing():  # a big cluster's frames are many enough
                wait = min(wait, _PRESSED_EVERY)
            self._looks = math.ceil(wait / _LOOK_EVERY)
            self._look_every = wait / self._looks
        return self._look_every

    def _frame(self) -> t.Frame:
        """A node that runs always sends frames, even when their content cannot be made."""
        frame = t.Frame(0, time.time_ns(), time.monotonic_ns(), heartbeat_interval=self._heartbeat_interval)
        with self.guard("frames"):
            frame = self.heart.frame(self._heartbeat_interval)
        return frame

    def _look(self, now: float) -> None:
        before, self._looked_at = self._looked_at, now
        part = self.guard
        with part("kernel"):
            self._look_at_kernel()
        if not self._printing.is_set() and self._look_at_logs():
            self._printing.set()
        if crossed(before, now, _HOST_EVERY):
            with part("host"):
                self._clock_seen = self._clock_gauges()
                self.heart.read_host()
        if crossed(before, now, _NEWS_EVERY):
            with part("outbox"):
                self._look_at_outbox()
            with part("announcements"):
                self.workers.look_for_announcements()
            with part("checkpoints"):
                self._checkpoints_seen = self.checkpoints.look()
            # They take all of the host's gauges along: in a big cluster only when those come anyway.
            if self.link.heartbeat_interval < _NEWS_EVERY or crossed(before, now, _HOST_EVERY):
                warm = {"warm_ready": float(self.workers.has_fork_server)}
                self.heart.report_host(self._checkpoints_seen | self._clock_seen | warm)
        if crossed(before, now, max(_SPANS_EVERY, 2 * self.link.heartbeat_interval)):  # a big cluster speaks less often
            with part("spans"):
                self._look_at_spans(now)

    def _look_at_kernel(self) -> None:
        for line in self.kernel.poll():
            found = event(line, self.rules, time.time_ns())
            if found is not None:
                self.report(found)

    def _look_at_logs(self) -> bool:
        """Whether workers had printed something, or there is more to do with what they printed."""
        chunks: list[msg.LogChunk] = []
        with self.guard("logs"):
            chunks = self.logs.poll()
            for chunk in chunks:
                self.link.send(chunk)
        return bool(chunks) or self.logs.is_behind

    def _look_at_spans(self, now: float) -> None:
        self.spans.read()
        if not self.link.connected:
            self.spans.clock.forget()  # perhaps another controller answers next
            self._clock_request = 0
            return
        if self._clock_request < _CLOCK_FIRST or now - self._clock_request_at > _CLOCK_EVERY:
            self._clock_request, self._clock_request_at = self._clock_request + 1, now
            # By itself: what else this look sends would be part of the round trip.
            asyncio.get_running_loop().call_later(_ASIDE, self._ask_clock)
        self.spans.flush(self.link.backlog, time.monotonic_ns())

    def _ask_clock(self) -> None:
        self.link.send(msg.ClockRequest(time.monotonic_ns()))

    async def _follow_logs(self) -> None:
        """Look often while workers print; while they are quiet, the beat looks."""
        while True:
            await self._printing.wait()
            quiet = 0
            while quiet < _QUIET_LOOKS:
                await asyncio.sleep(_LOGS_EVERY)
                quiet = 0 if self._look_at_logs() else quiet + 1
            self._printing.clear()

    async def _read_gpus(self) -> None:
        while True:
            with self.guard("GPUs"):
                await self._read_gpus_once()
            await asyncio.sleep(_GPUS_EVERY)

    async def _read_gpus_once(self) -> None:
        reading = asyncio.create_task(self.heart.read_gpus())
        _, late = await asyncio.wait({reading}, timeout=_DRIVER_TIMEOUT)
        if late:
            text = f"the GPU driver has not answered for {_DRIVER_TIMEOUT:g} s; training may be stuck in it too"
            self.report(t.AgentNotice(time.time_ns(), "gpu", t.Severity.CRITICAL, text))
        await reading
        if self.gpus.events_available and not self.kernel.available:
            for fault in await asyncio.to_thread(self.gpus.poll_xids):
                self.report(xid_event(fault, time.time_ns()))

    async def _warm_up(self) -> None:
        try:
            await self.workers.open()
            log.event("warm.ready")
        except HoldfastError as error:
            self.report(t.AgentNotice(time.time_ns(), "warm", t.Severity.CRITICAL, str(error)))

    async def _drain(self) -> None:
        """This node is draining: its workers are notified, so that their jobs save their state and go on elsewhere."""
        text = f"the agent is stopping: its workers have {self.config.drain:g} s to save their state"
        self.report(t.AgentNotice(time.time_ns(), "drain", t.Severity.WARNING, text))
        try:
            await self.workers.drain(self.config.drain)
        except HoldfastError as error:
            log.warning("drain", error=str(error))
        deadline = time.monotonic() + _LAST_NEWS_S
        while self.link.connected and self.outbox.has_events and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    async def main(self, stop: asyncio.Event) -> int:
        self._loop = asyncio.get_running_loop()
        self.sampler.start()
        self.kernel.follow()
        with suppress(OSError):  # no route to the controller yet: peers will not be able to probe peer
            await self.probe_listener.open(self.link.own_address())
        self.checkpoints.adopt()
        if self.workers.existing:
            # What an earlier agent left running is part of our hello.
            with suppress(HoldfastError, TimeoutError):
                await asyncio.wait_for(self.workers.open(), 5.0)
        work = [self.link.run(), beat(self._beat, _LOOK_EVERY), self._follow_logs(), self.commands.run()]
        if self.gpus.available or self.gpus.events_available:
            work.append(self._read_gpus())
        loops = [asyncio.create_task(loop) for loop in work]
        warming = asyncio.create_task(self._warm_up())
        gc.collect()
        gc.freeze()  # what exists now is never freed: collections need not traverse it
        log.event(
            "agent.ready", node=self.identity.node, slots=self.identity.slots, controller=self.config.controller,
            sampling="compiled" if COMPILED else "in Python",
        )  # fmt: skip
        ending = asyncio.create_task(stop.wait())
        await asyncio.wait({ending, *loops}, return_when=asyncio.FIRST_COMPLETED)
        if ending.done() and self.config.end_with_workers and self.config.drain and self.workers.running:
            await self._drain()
        failed = [task for task in loops if task.done()]
        for task in (ending, warming, *loops):
            task.cancel()
        await asyncio.gather(warming, *loops, return_exceptions=True)
        await self.commands.close()
        await self.probe_listener.close()
        self.heart.activities.close()
        await self.workers.close(self.config.end_with_workers)
        self.checkpoints.close(self.config.end_with_workers)
        self.sampler.close()
        self.logs.close()
        self.kernel.close()
        self.lock.close()
        for task in failed:
            task.result()  # a loop that ended by itself is a bug: let it be seen
        return 0
