"""The workers of this node: starts them, stops them, injects faults, and reports how each of them ended."""

import asyncio
import contextlib
import hashlib
import os
import signal
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path

from holdfast.agent.collectors.kernel_log import KernelLog
from holdfast.agent.forkserver.client import ForkServer, StoreExited
from holdfast.agent.forkserver.worker_spec import Key, WorkerSpec
from holdfast.agent.logs.progress_watch import ProgressWatch
from holdfast.agent.logs.worker_logs import WorkerLogs
from holdfast.agent.probe_file.reader import ProbeReader
from holdfast.agent.processes.guard import PartGuard
from holdfast.agent.processes.holders import ExitWatch
from holdfast.agent.workers import log_files, stacks
from holdfast.agent.workers.environment import worker_environment
from holdfast.agent.workers.exit_reports import ExitReports
from holdfast.agent.workers.fork_servers import ForkServers
from holdfast.agent.workers.probes import WorkerProbes
from holdfast.agent.workers.rendezvous_stores import RendezvousStores
from holdfast.agent.workers.turn_server import TurnServer
from holdfast.agent.workers.unended import UnendedError
from holdfast.base import log, private
from holdfast.base.errors import Unavailable, UsageError
from holdfast.wire import messages as msg
from holdfast.wire import types as t
from holdfast.wire.holds import Hold

_GONE_TIMEOUT = 15.0
_HELD_S = 3.0
"""Seconds after which workers that somebody holds are reported, and within which one that ends is seen to get on."""
_LOOK_S = 0.5
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "sigterm": signal.SIGTERM}


def shared_dir(state_dir: Path) -> Path:
    """Where the probes of this agent's workers are: memory, and the same after a restart of the agent."""
    digest = hashlib.sha256(str(state_dir.absolute()).encode()).hexdigest()[:12]
    base = Path("/dev/shm") if Path("/dev/shm").is_dir() else state_dir
    return base / f"holdfast-{os.getuid()}-{digest}"


class Workers:
    """Owns the connections to the fork servers. `on_event` gets the events for the controller."""

    def __init__(
        self,
        state_dir: Path,
        logs: WorkerLogs,
        kernel: KernelLog,
        own_address: Callable[[], str],
        on_event: Callable[[t.Event], None],
        on_log: Callable[[msg.LogChunk], None],
        on_last_steps: Callable[[tuple[t.StepRecord, ...]], None],
        on_last_reader: Callable[[ProbeReader], None] = lambda reader: None,
        preload: tuple[str, ...] = (),
        environ: Mapping[str, str] = os.environ,
        has_time: Callable[[], bool] = lambda: False,
        guard: PartGuard | None = None,
    ) -> None:
        """`has_time`: whether the workers have stood still for so long that stacks may be read slowly."""
        self.run_dir, self.shm = state_dir / "run", shared_dir(state_dir)
        self._logs, self._own_address, self._on_event = logs, own_address, on_event
        self._probes = WorkerProbes(self.shm, on_event, on_last_steps, on_last_reader)
        self._progress = ProgressWatch(on_event)
        self._exits = ExitReports(
            self.run_dir, logs, kernel, self._probes, self._progress, on_log, guard or PartGuard()
        )
        self._environ, self._has_time = dict(environ), has_time
        self._servers = ForkServers(
            self.run_dir, preload, self._environ, self._exited, self._store_exited, self._opened, self._notice
        )
        self._tasks: set[asyncio.Future[None]] = set()
        self._stores = RendezvousStores()
        self._turns = TurnServer(self.shm)
        self.kept: dict[Key, msg.KeptWorker] = {}
        self._environments: dict[Key, tuple[int, dict[str, str]]] = {}  # of those started here, with their process
        self._ended: dict[Key, asyncio.Event] = {}
        self._unanswered: set[Key] = set()  # starts that were asked for: whether those workers run is not known
        self._reported: set[Key] = set()  # exits that were reported: a fork server reports again what was not acked
        self.newest: dict[str, int] = {}  # job -> highest generation seen: older ones are refused

    # --- the fork server ----------------------------------------------------------------------------------------

    @property
    def existing(self) -> bool:
        """Whether an earlier agent left a fork server here."""
        return self._servers.existing

    @property
    def has_fork_server(self) -> bool:
        """Whether a worker can be forked at once."""
        return self._servers.own is not None

    async def open(self) -> ForkServer:
        """Connect to the fork server, starting it if need be; adopts the workers that it holds."""
        await self._turns.open()  # workers of an earlier agent may wait for it
        return await self._servers.open()

    def _opened(self, warm: ForkServer) -> None:
        self._stores.adopt(warm.stores)
        for worker in warm.kept:
            self._adopt(worker, warm)
        for exited in warm.exits:
            self._exited(exited)

    def _adopt(self, worker: msg.KeptWorker, warm: ForkServer) -> None:
        key = (worker.job, worker.generation, worker.rank)
        self.newest[worker.job] = max(worker.generation, self.newest.get(worker.job, 0))
        known = key in self.kept
        self.kept[key] = worker
        outputs = warm.outputs.get(key)
        self._ended.setdefault(key, asyncio.Event())
        if not known and worker.running:
            self._logs.paths(*key, from_end=True, users=log_files.of_process(worker.pid))
        if outputs is not None and key not in self._reported:
            self._logs.paths(*key)
            self._logs.follow(*key, outputs)
        if not known and worker.running:
            log.event("worker.adopted", rank=worker.rank, generation=worker.generation, worker_pid=worker.pid)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _store_exited(self, exited: StoreExited) -> None:
        if self._stores.exited(exited.job):
            self._notice("store", t.Severity.WARNING, f"the rendezvous endpoint {exited.job} ended by itself")

    def _notice(self, kind: str, severity: t.Severity, text: str) -> None:
        self._on_event(t.AgentNotice(time.time_ns(), kind, severity, text))

    # --- what runs -----------------------------------------------------------------------------------------------

    def hello_workers(self) -> tuple[msg.KeptWorker, ...]:
        return tuple(self.kept.values())

    @property
    def running(self) -> bool:
        return any(w.running for w in self.kept.values())

    def readers(self) -> list[ProbeReader]:
        """A reader for each running worker that has its probe up."""
        return self._probes.readers(self._running())

    def look_for_announcements(self) -> None:
        """Pass on what the jobs here report of themselves. Cheap; once a second is enough."""
        running = self._running()
        self._probes.look_for_announcements(running)
        for key in running:
            self._progress.look(key, self._probes.path(key), self._logs.mark(*key))

    def _running(self) -> list[Key]:
        return [key for key, worker in self.kept.items() if worker.running]

    def _exited(self, exited: t.WorkerExited) -> None:
        """Called once for each worker, as soon as the kernel knows."""
        key = (exited.job, exited.generation, exited.rank)
        if key in self._reported:
            return
        self._reported.add(key)
        worker = self.kept.get(key)
        self.kept[key] = msg.KeptWorker(
            *key, local_rank=worker.local_rank if worker else 0, pid=exited.pid, running=False
        )
        self._on_event(self._exits.complete(exited))
        self._ended.setdefault(key, asyncio.Event()).set()

    def durable(self, event: t.Event) -> None:
        """The controller holds this event: the fork server may forget the exit, and we what it left behind."""
        if not isinstance(event, t.WorkerExited):
            return
        key = (event.job, event.generation, event.rank)
        self.kept.pop(key, None)
        self._environments.pop(key, None)
        self._ended.pop(key, None)
        self._exits.forget(key)
        self._probes.path(key).unlink(missing_ok=True)
        self._spawn(self._ack(key))

    async def _ack(self, key: Key) -> None:
        for warm in self._servers.connected(key[0]):
            try:
                await warm.ack_exit(*key)
            except Unavailable as error:
                log.debug("warm.ack", error=str(error))  # it will report the exit again, and we will drop it again

    # --- commands ------------------------------------------------------------------------------------------------

    async def obey(self, command: msg.Command) -> dict[str, str]:
        """Do it; what to answer. HoldfastError in one line when it cannot be done."""
        match command.order:
            case msg.StartStore() as order:
                return await self._start_store(command, order.host or self._own_address())
            case msg.StartWorkers() as order:
                return await self._start(command, order)
            case msg.StopWorkers() as order:
                stopped = await self._stop(command.job, command.generation, order.grace)
                await self._stores.stop(self._servers.own, command.job, command.generation)
                return stopped
            case msg.Inject() as order:
                return await self._inject(command, order)
            case msg.RequestCheckpoint():
                return self._request_checkpoint(command)
            case msg.RunCheck() | msg.ProbePeer():
                raise AssertionError("the agent's own: no worker has a part in it")
            case msg.DumpStacks():
                return await self._dump_stacks(command)

    async def _start_store(self, command: msg.Command, host: str) -> dict[str, str]:
        """A store of its own for the generation to come: what an older one left in its store cannot be met there."""
        port = await self._stores.start(await self.open(), command.job, command.generation + 1, host)
        return {"host": host, "port": str(port)}

    async def _start(self, command: msg.Command, order: msg.StartWorkers) -> dict[str, str]:
        job, generation = command.job, command.generation
        if generation < self.newest.get(job, 0):
            raise UsageError(f"generation {generation} of job {job} ended: {self.newest[job]} already ran here")
        await self._stop(job, generation - 1, 0.0)
        self.newest[job] = generation
        self._reported = {key for key in self._reported if key[0] == job and key[1] >= generation - 1}
        await self._servers.end_idle(but=job, busy={key[0] for key in self.kept})
        warm = await self._servers.for_job(job, order.program)
        private.shared_folder(self.shm)
        await self._turns.open()
        with contextlib.suppress(OSError):
            self._exits.make_folder()
        for place in order.ranks:
            key = (job, generation, place.rank)
            if key in self._reported:  # a controller that was restarted asks again, and this one has run
                continue
            files = log_files.chosen(command, order, place)
            log_files.make(files)
            try:
                out, err = self._logs.paths(*key, users=files)
            except OSError as error:
                raise Unavailable(f"cannot make the log files of rank {place.rank}: {error}") from None
            spec = WorkerSpec(
                job=job,
                generation=generation,
                rank=place.rank,
                local_rank=place.local_rank,
                env=worker_environment(self._environ, command, order, place) | self._turns.environment(order, place),
                program=order.program,
                out_path=str(out),
                err_path=str(err),
                error_file=str(self._exits.error_file(key)),
                probe_path=str(self._probes.path(key)),
                in_memory=warm.reads_memory and not any(files),
            )
            self._ended.setdefault(key, asyncio.Event())
            self._unanswered.add(key)
            pid = await warm.start_worker(spec)
            self._unanswered.discard(key)
            if (outputs := warm.outputs.get(key)) is not None:
                self._logs.follow(*key, outputs)
            # Its exit may already have been reported: what ended stays ended.
            if key not in self.kept:
                self.kept[key] = msg.KeptWorker(job, generation, place.rank, place.local_rank, pid, True)
                self._environments[key] = pid, spec.env
                self._exits.remember(pid)
        return {"started": str(len(order.ranks))}

    async def _stop(self, job: str, generation: int, grace: float) -> dict[str, str]:
        """End all workers of the job up to this generation, with everything that they started."""

        def left() -> list[Key]:
            return [k for k, w in self.kept.items() if k[0] == job and k[1] <= generation and w.running]

        await self._find_late(job, generation)
        if not left():
            return {"stopped": "0"}
        count = len(left())
        if grace > 0:
            await self._kill(job, generation, signal.SIGTERM)
            await self._wait_gone(left(), grace)
        if left():
            await self._kill(job, generation, signal.SIGKILL)
            await self._wait_killed(left)
        return {"stopped": str(count)}

    async def _wait_killed(self, left: Callable[[], list[Key]]) -> None:
        """Wait for the end of workers that were sent SIGKILL. UnendedError says why they are still there."""
        watch, began = ExitWatch(), time.monotonic()
        while left():
            now = time.monotonic()
            pids = {key[2]: self.kept[key].pid for key in left()}
            for pid in pids.values():
                watch.look(pid, now)
            if now - began >= _HELD_S:
                unended = {rank: (pid, watch.why(pid, now, _HELD_S)) for rank, pid in pids.items()}
                is_held = all(why.hold is Hold.HELD for _, why in unended.values())
                if is_held or now - began >= _GONE_TIMEOUT:
                    raise UnendedError(unended, now - began)
            await self._wait_gone(left(), _LOOK_S)

    async def _kill(self, job: str, generation: int, number: int) -> None:
        """Send a signal to all workers of the job up to this generation, whichever fork server has them."""
        for warm in await self._servers.reached(job):
            await warm.kill(job, generation, -1, number)

    async def _find_late(self, job: str, generation: int) -> None:
        """Workers whose start was not answered in time may run all the same: they end with their generation."""
        late = {key for key in self._unanswered if key[0] == job and key[1] <= generation}
        if not late:
            return
        for warm in await self._servers.reached(job):
            for worker in await warm.workers():  # answered after those starts
                key = (worker.job, worker.generation, worker.rank)
                if key not in late or not worker.running:
                    continue
                self.kept.setdefault(key, worker)
                if (outputs := warm.outputs.get(key)) is not None:
                    self._logs.paths(*key)
                    self._logs.follow(*key, outputs)
        self._unanswered -= late

    async def drain(self, grace: float) -> None:
        """Ask all workers to end, and give them so many seconds for it. Raises Unavailable."""
        left = [key for key, worker in self.kept.items() if worker.running]
        for job, generation in sorted({key[:2] for key in left}):
            await self._kill(job, generation, signal.SIGTERM)
        await self._wait_gone(left, grace)

    async def _wait_gone(self, keys: list[Key], timeout: float) -> None:
        waits = [asyncio.ensure_future(self._ended[k].wait()) for k in keys if k in self._ended]
        if waits:
            _, pending = await asyncio.wait(waits, timeout=timeout)
            for task in pending:
                task.cancel()

    async def _inject(self, command: msg.Command, order: msg.Inject) -> dict[str, str]:
        at = str(time.time_ns())
        if order.kind in ("agent-kill", "agent-stop"):
            os.kill(os.getpid(), signal.SIGKILL if order.kind == "agent-kill" else signal.SIGSTOP)
            return {"at": at}
        key = (command.job, command.generation, order.rank)
        worker = self.kept.get(key)
        if worker is None or not worker.running:
            raise UsageError(f"rank {order.rank} of generation {command.generation} does not run here")
        if order.kind in _SIGNALS:
            os.kill(worker.pid, _SIGNALS[order.kind])
            return {"at": at}
        readers = {r.rank: r for r in self.readers() if r.job == command.job}
        if order.rank not in readers:
            raise Unavailable(f"rank {order.rank} has no probe yet: a fault cannot be injected")
        readers[order.rank].inject(order.kind)
        return {"at": at}

    async def _dump_stacks(self, command: msg.Command) -> dict[str, str]:
        wanted = {
            key[2]: (worker.pid, self._probes.path(key))
            for key, worker in sorted(self.kept.items())
            if worker.running and key[:2] == (command.job, command.generation)
        }
        return await stacks.dump(wanted, self._has_time())

    def _request_checkpoint(self, command: msg.Command) -> dict[str, str]:
        readers = [r for r in self.readers() if (r.job, r.generation) == (command.job, command.generation)]
        if not readers:
            raise Unavailable(f"no worker of generation {command.generation} here can make a checkpoint")
        readers[0].request_checkpoint()
        return {"rank": str(readers[0].rank)}

    def leaders(self) -> list[int]:
        """Processes from which everything here descends: the fork servers, and workers whose fork server died."""
        return [warm.pid for warm in self._servers.connected()] + [
            worker.pid for worker in self.kept.values() if worker.running
        ]

    def variable(self, pid: int, name: str) -> str:
        """Of the environment that a worker was started with; empty where it is not set or not known. The kernel shows
        of a forked worker that of its fork server."""
        return next((env.get(name, "") for one, env in self._environments.values() if one == pid), "")

    # --- the end -------------------------------------------------------------------------------------------------

    async def close(self, end_workers: bool) -> None:
        """Leave the workers to the fork server, or end everything."""
        await self._turns.close()
        await self._servers.close(end_workers)
        self._probes.close()
        if end_workers and self.shm.is_dir():
            for path in self.shm.iterdir():
                path.unlink(missing_ok=True)
            self.shm.rmdir()
