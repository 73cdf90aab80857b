"""This node's fork servers: its own, and one for each job that has modules preloaded (`--preload`).

A job's modules are imported in a process of their own, in the job's environment: no other job gets them, and a module
that the user changed is imported again by the next job.
"""

import asyncio
import shutil
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from pathlib import Path

from holdfast.agent.forkserver.client import ForkServer, StoreExited
from holdfast.agent.forkserver.fork_from import VARIABLE
from holdfast.agent.forkserver.json_lines import SOCKET
from holdfast.agent.workers.environment import job_environment, program_folder
from holdfast.base import log
from holdfast.base.errors import HoldfastError, Refused, Unavailable
from holdfast.wire import messages as msg
from holdfast.wire import types as t

JOB_READY_S = 90.0
"""For a job's modules to be imported: the controller waits 120 s for the workers."""
JOB_IDLE_S = 600.0
"""A job's fork server without workers ends after so long; the job's next attempt then starts another."""

Notice = Callable[[str, t.Severity, str], None]


class ForkServers:
    """`on_opened` gets each, as soon as it is connected."""

    def __init__(
        self,
        run_dir: Path,
        preload: tuple[str, ...],
        environ: Mapping[str, str],
        on_exit: Callable[[t.WorkerExited], None],
        on_store_exit: Callable[[StoreExited], None],
        on_opened: Callable[[ForkServer], None],
        notice: Notice,
    ) -> None:
        self.run_dir, self._jobs_dir = run_dir, jobs_dir(run_dir)
        self._preload, self._environ = preload, environ
        self._on_exit, self._on_store_exit, self._on_opened, self._notice = on_exit, on_store_exit, on_opened, notice
        self.own: ForkServer | None = None
        self._opening: asyncio.Task[ForkServer] | None = None
        self._of_jobs: dict[str, ForkServer] = {}
        self._given_up: set[str] = set()  # jobs whose modules could not be preloaded here
        self._changes = asyncio.Lock()  # of `_of_jobs`
        self._tasks: set[asyncio.Future[None]] = set()

    @property
    def existing(self) -> bool:
        """Whether an earlier agent left one here."""
        return (self.run_dir / SOCKET).exists() or bool(self._left())

    def _left(self) -> list[str]:
        return sorted(path.parent.name for path in self._jobs_dir.glob(f"*/{SOCKET}"))

    def connected(self, job: str = "") -> list[ForkServer]:
        """Those that may have workers of this job; without a job: all."""
        theirs = [server for name, server in self._of_jobs.items() if job in ("", name)]
        return [*([self.own] if self.own is not None else []), *theirs]

    async def reached(self, job: str) -> list[ForkServer]:
        """The same, connected to first if need be. Raises Unavailable without the node's own."""
        await self.open()
        if job in self._left():
            await self._adopt(job)
        return self.connected(job)

    async def open(self) -> ForkServer:
        """Connect to the node's own, starting it if need be; and to what an earlier agent left."""
        if self.own is not None:
            return self.own
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        try:
            return await asyncio.shield(self._opening)
        except BaseException:
            if self._opening is not None and self._opening.done():
                self._opening = None
            raise

    async def _open(self) -> ForkServer:
        warm = await ForkServer.open(
            self.run_dir,
            preload=self._preload,
            env=self._environ,
            on_exit=self._on_exit,
            on_store_exit=self._on_store_exit,
            on_lost=self._lost,
            source=self._environ.get(VARIABLE, "") if self._preload else "",
        )
        self.own, self._opening = warm, None
        for name, error in warm.preload_errors.items():
            self._notice("warm", t.Severity.INFO, f"the fork server could not import {name}: {error}")
        self._on_opened(warm)
        for job in self._left():
            await self._adopt(job)
        return warm

    def _lost(self) -> None:
        """The fork server died: a new one takes its workers over; it sees that they end, but not how."""
        if self.own is not None:
            self._spawn(self.own.close())
        self.own = None
        self._notice("warm", t.Severity.WARNING, "the fork server died; its workers continue, a new one is started")
        self._spawn(self._reopen())

    async def _reopen(self) -> None:
        try:
            await self.open()
        except HoldfastError as error:
            self._notice("warm", t.Severity.CRITICAL, str(error))

    # --- of jobs -------------------------------------------------------------------------------------------------

    async def for_job(self, job: str, program: msg.Program) -> ForkServer:
        """Where to fork this job's workers from: none of an older generation may run. Refused for a module that is
        not installed. If the modules cannot be preloaded, workers start without them, and one line says why."""
        own = await self.open()
        if not program.preload or not program.warm or program.executable or job in self._given_up:
            return own
        async with self._changes:
            known = self._of_jobs.get(job)
            if known is not None and known.wanted == program.preload:
                return known
            await self._end(job)  # of an agent before, or one that took over from another
            try:
                server = await self._start(job, program)
            except Unavailable as error:
                self._given_up.add(job)
                text = f"--preload {','.join(program.preload)}: {error}; workers start without them"
                self._notice("warm", t.Severity.WARNING, text)
                return own
            if server.missing:
                await self._end(job)
                raise Refused(_missing(server.missing))
        if left_out := [f"{name} {why}" for name, why in server.preload_errors.items() if name in program.preload]:
            self._notice("warm", t.Severity.WARNING, f"--preload: {'; '.join(left_out)}; workers start without")
        return server

    async def end_idle(self, but: str, busy: Collection[str]) -> None:
        """Another job has the node: end the fork servers of those that have no worker here."""
        async with self._changes:
            for job in set(self._of_jobs) - {but, *busy}:
                await self._end(job)

    async def _start(self, job: str, program: msg.Program) -> ForkServer:
        began = time.monotonic()
        server = await ForkServer.open(
            self._jobs_dir / job,
            preload=self._preload,
            wanted=program.preload,
            folder=program_folder(program),
            env=job_environment(self._environ, program),
            on_exit=self._on_exit,
            on_lost=lambda: self._lost_job(job),
            ready_timeout=JOB_READY_S,
            idle_exit=JOB_IDLE_S,
        )
        self._of_jobs[job] = server
        log.event("warm.preloaded", job=job, modules=",".join(program.preload), seconds=time.monotonic() - began)
        self._on_opened(server)
        return server

    async def _adopt(self, job: str) -> None:
        """Connect to what runs in the job's folder; if nothing does, to one that takes the workers over."""
        async with self._changes:
            if job in self._of_jobs:
                return
            try:
                server = await ForkServer.open(
                    self._jobs_dir / job, env=self._environ, on_exit=self._on_exit,
                    on_lost=lambda: self._lost_job(job), idle_exit=JOB_IDLE_S,
                )  # fmt: skip
            except Unavailable as error:
                self._notice("warm", t.Severity.WARNING, f"the fork server of job {job}: {error}")
                return
            self._of_jobs[job] = server
            self._on_opened(server)
            if not server.wanted and not any(worker.running for worker in server.kept) and not server.exits:
                await self._end(job)  # it was idle, and its own fork server has ended: nothing to take over

    def _lost_job(self, job: str) -> None:
        """It died, or ended because it had nothing to do. Which, its folder says: one that ends removes its socket."""
        server = self._of_jobs.pop(job, None)
        if server is not None:
            self._spawn(server.close())
        if (self._jobs_dir / job / SOCKET).exists():
            text = f"the fork server of job {job} died; its workers continue, a new one is started"
            self._notice("warm", t.Severity.WARNING, text)
            self._spawn(self._adopt(job))
        else:
            shutil.rmtree(self._jobs_dir / job, ignore_errors=True)

    async def _end(self, job: str) -> None:
        server = self._of_jobs.pop(job, None)
        if server is None:
            return
        try:
            await server.shutdown()
        except Unavailable as error:
            log.warning("warm.shutdown", job=job, error=str(error))
        shutil.rmtree(self._jobs_dir / job, ignore_errors=True)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self, end_workers: bool) -> None:
        """Leave the workers to the fork servers, or end everything."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait({self._opening}, timeout=5)
        for server in self.connected():
            await (server.shutdown() if end_workers else server.close())
        if end_workers:
            shutil.rmtree(self._jobs_dir, ignore_errors=True)


def jobs_dir(run_dir: Path) -> Path:
    return run_dir / "jobs"


def _missing(names: Collection[str]) -> str:
    what = "no module named" if len(names) == 1 else "no modules named"
    return f"--preload: {what} {', '.join(names)} for the workers' Python; install on the nodes, or leave out"
