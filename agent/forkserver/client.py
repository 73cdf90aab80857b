"""The agent's side of the fork server: start it or find it again, start and end workers, receive their exits."""

import asyncio
import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from holdfast.agent.forkserver import fork_from, output_memory
from holdfast.agent.forkserver.json_lines import LINE_LIMIT, LOG, MODULE, SOCKET
from holdfast.agent.forkserver.worker_spec import Key, WorkerSpec
from holdfast.agent.processes import interpreter
from holdfast.agent.processes import tree as process_tree
from holdfast.base import private
from holdfast.base.errors import Unavailable
from holdfast.base.local_socket import short_path
from holdfast.wire.messages import KeptWorker
from holdfast.wire.types import WorkerExited

READY_TIMEOUT_S = 120.0
"""Torch, its compiler and the trainer import in 5 s on a quiet machine, in a minute on one that just booted."""
CALL_TIMEOUT_S = 10.0
START_TIMEOUT_S = 30.0
"""A fork copies the page tables of all that is imported, and is recorded on disk: long, on a starved host."""
STORE_TIMEOUT_S = 60.0
"""A store's process may have to import torch first."""


@dataclass(frozen=True, slots=True)
class StoreExited:
    """A job's rendezvous store ended, which only `stop_store` and `shutdown` should cause."""

    job: str
    pid: int
    code: int
    signal: int


@dataclass
class ForkServer:
    """A connection to this node's fork server. Made by `open`; all awaits end by a deadline with Unavailable."""

    run_dir: Path
    on_exit: Callable[[WorkerExited], None] | None = None
    on_store_exit: Callable[[StoreExited], None] | None = None
    on_lost: Callable[[], None] | None = None
    """The fork server died or dropped us. Not called after `close` or `shutdown`."""
    pid: int = 0
    preload_errors: dict[str, str] = field(default_factory=dict)
    wanted: tuple[str, ...] = ()
    """The modules of the one job that it is for; empty for a node's own."""
    missing: tuple[str, ...] = ()
    """Those of them that are not installed here."""
    kept: tuple[KeptWorker, ...] = ()
    """Workers found when opened: running ones, and those that ended unacknowledged (`running` False)."""
    exits: tuple[WorkerExited, ...] = ()
    """Exits from before we connected that are not acknowledged. `on_exit` is called for later ones only."""
    stores: dict[str, int] = field(default_factory=dict)
    """Ports of the rendezvous stores found when opened, by job."""
    outputs: dict[Key, tuple[str, str]] = field(default_factory=dict)
    """Where the output of workers can be read that is in memory."""
    reads_memory: bool = False
    """Could this process read it?"""
    _reader: asyncio.StreamReader | None = None
    _writer: asyncio.StreamWriter | None = None
    _listener: asyncio.Task[None] | None = None
    _calls: dict[int, asyncio.Future[dict[str, Any]]] = field(default_factory=dict)
    _ids: "itertools.count[int]" = field(default_factory=itertools.count)
    _started: int = 0  # the process that we started, until it is known to be the one
    _is_cut: bool = False

    @classmethod
    async def open(
        cls,
        run_dir: str | Path,
        *,
        preload: Sequence[str] = (),
        wanted: Sequence[str] = (),
        folder: str = "",
        env: Mapping[str, str] | None = None,
        on_exit: Callable[[WorkerExited], None] | None = None,
        on_store_exit: Callable[[StoreExited], None] | None = None,
        on_lost: Callable[[], None] | None = None,
        ready_timeout: float = READY_TIMEOUT_S,
        idle_exit: float | None = None,
        source: str | Path = "",
    ) -> Self:
        """Connect to the fork server of `run_dir`, starting one if none runs there.

        `preload`, the modules that a job `wanted` with the `folder` where its program looks first, and `env` (its
        environment; ours by default) count for a new one only. `source`: the folder of another fork server of this
        host, which forks the new one if it can do so within a quarter of `ready_timeout`. Raises Unavailable when
        it is not ready after `ready_timeout` seconds, those aside.
        """
        warm = cls(Path(run_dir).absolute(), on_exit, on_store_exit, on_lost)
        args = ["--run-dir", str(warm.run_dir), "--preload", ",".join(preload), "--wanted", ",".join(wanted)]
        args += ["--folder", folder]
        args += [] if idle_exit is None else ["--idle-exit", str(idle_exit)]
        try:
            environ = interpreter.environment(os.environ if env is None else env)
            await warm._reach(args, environ, ready_timeout, Path(source) if source else None)
        except asyncio.CancelledError:
            await warm._abandon()
            raise
        return warm

    async def _reach(
        self, args: Sequence[str], env: Mapping[str, str], ready_timeout: float, source: Path | None
    ) -> None:
        end = time.monotonic() + ready_timeout
        while not await self._connect():
            if source is not None:
                self._started = await fork_from.ask(source, args, env, ready_timeout / 4)
                source, end = None, time.monotonic() + ready_timeout
                if self._started and await self._connect():
                    break
                self._started = 0
            elif self._started and (ended := _ended(self._started)) is not None:
                if ended != 3:  # 3: another process was faster
                    raise Unavailable(f"the fork server ended with {ended} at its start: {self._log_tail()}")
                self._started = 0
            elif not self._started:
                self._started = _spawn(self.run_dir, args, env)
            if time.monotonic() > end:
                raise Unavailable(f"the fork server did not start within {ready_timeout:g} s: {self._log_tail()}")
            await asyncio.sleep(0.02)
        self._listener = asyncio.create_task(self._listen(), name="holdfast-warm")
        try:
            hello = await self._ask("hello", max(end - time.monotonic(), 0.1))
            if self._is_cut:
                raise Unavailable("the fork server ended")
        except Unavailable as error:
            await self.close()
            why = f"is not ready: {error}"
            # It may have died in its imports (no zombie stays); one that still imports is left for later.
            if self._started and (ended := _ended(self._started)) is not None:
                why = f"ended with {ended} at its start"
            raise Unavailable(f"the fork server {why}: {self._log_tail()}") from None
        self.pid = hello["pid"]
        if self._started not in (0, self.pid):
            # Another agent's start was faster. Ours must not linger and take over when the other one ends.
            await self._kill_started()
        self.preload_errors = hello["preload_errors"]
        self.wanted, self.missing = tuple(hello.get("wanted", ())), tuple(hello.get("missing", ()))
        self.kept = tuple(KeptWorker(**worker) for worker in hello["workers"])
        self.exits = tuple(WorkerExited(**ended) for ended in hello["exits"])
        self.stores = hello["stores"]
        self._note_outputs(hello)
        self.reads_memory = _can_open(output_memory.path(self.pid, hello.get("sample", -1)))

    async def _abandon(self) -> None:
        """No client waits for the one that we are starting, and it has no worker yet: it must not outlive us."""
        await self.close()
        if self._started:
            await self._kill_started()

    async def _kill_started(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._started, signal.SIGKILL)
        await _reaped(self._started)

    async def start_worker(self, spec: WorkerSpec) -> int:
        """Start a worker; its process id. Repeating it for the same job, generation and rank changes nothing.

        Without an answer in time it may start all the same, but before anything that is asked for later.
        """
        reply = await self._ask("start_worker", START_TIMEOUT_S, spec=spec.to_json())
        self._note_outputs(reply)
        return int(reply["pid"])

    def _note_outputs(self, reply: Mapping[str, Any]) -> None:
        for job, generation, rank, *fds in reply.get("outputs", ()):
            out, err = (output_memory.path(self.pid, fd) for fd in fds)
            self.outputs[job, generation, rank] = out, err

    async def workers(self) -> tuple[KeptWorker, ...]:
        """Those that run now, and those whose exit is not acknowledged."""
        hello = await self._ask("hello", CALL_TIMEOUT_S)
        self._note_outputs(hello)
        return tuple(KeptWorker(**worker) for worker in hello["workers"])

    async def start_store(self, job: str, host: str) -> int:
        """Make sure that the job's rendezvous store runs on `host`, an address of this node; its port."""
        return int((await self._ask("start_store", STORE_TIMEOUT_S, job=job, host=host))["port"])

    async def stop_store(self, job: str) -> bool:
        """End the job's store; False when there was none."""
        return bool((await self._ask("stop_store", CALL_TIMEOUT_S, job=job))["stopped"])

    async def kill(self, job: str, generation: int, rank: int, number: int) -> int:
        """Send a signal to a worker; how many got it. Rank -1: all of the job up to and including the generation.

        SIGKILL ends everything the worker has started, SIGUSR1 and SIGUSR2 reach the worker alone, others its
        process group.
        """
        ask = {"job": job, "generation": generation, "rank": rank, "signal": int(number)}
        return int((await self._ask("kill", CALL_TIMEOUT_S, **ask))["killed"])

    async def ack_exit(self, job: str, generation: int, rank: int) -> None:
        """The end of this worker is safe with us: the fork server may forget it."""
        await self._ask("ack_exit", CALL_TIMEOUT_S, job=job, generation=generation, rank=rank)
        self.outputs.pop((job, generation, rank), None)

    async def shutdown(self) -> None:
        """End all workers, the stores and the fork server."""
        self.on_lost = None
        pid = self.pid
        unanswered: Unavailable | None = None
        try:
            await self._ask("shutdown", CALL_TIMEOUT_S)
        except Unavailable as error:
            unanswered = error
        finally:
            await self.close()
            is_gone = await _reaped(pid)
        if unanswered is not None and not is_gone:
            raise unanswered  # else it ended before its answer came: that is what was asked

    async def close(self) -> None:
        """Disconnect. The fork server and its workers keep running. Harmless to repeat."""
        self.on_lost = None
        if self._listener is not None:
            self._listener.cancel()
            with suppress(asyncio.CancelledError):
                await self._listener
            self._listener = None
        if self._writer is not None:
            self._writer.close()
            with suppress(OSError):
                await self._writer.wait_closed()
            self._writer = None
        self._fail_calls("the connection to the fork server was closed")

    async def _connect(self) -> bool:
        try:
            with short_path(self.run_dir, SOCKET) as path:
                self._reader, self._writer = await asyncio.open_unix_connection(path, limit=LINE_LIMIT)
        except OSError:
            return False
        return True

    async def _ask(self, do: str, timeout: float, **fields: Any) -> dict[str, Any]:
        if self._writer is None or self._listener is None or self._listener.done():
            raise Unavailable(f"cannot {do}: not connected to the fork server")
        number = next(self._ids)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._calls[number] = answer
        try:
            async with asyncio.timeout(timeout):
                self._writer.write(json.dumps({"id": number, "do": do, **fields}).encode() + b"\n")
                await self._writer.drain()
                reply = await answer
        except TimeoutError:
            raise Unavailable(f"the fork server did not answer {do} within {timeout:g} s") from None
        except OSError as error:
            raise Unavailable(f"cannot {do}: {error}") from None
        finally:
            self._calls.pop(number, None)
        if not reply["ok"]:
            raise Unavailable(f"cannot {do}: {reply['error']}")
        return reply

    async def _listen(self) -> None:
        assert self._reader is not None
        try:
            while line := await self._reader.readline():
                self._handle(json.loads(line))
        except OSError:
            pass  # a reset is an end, too
        except ValueError as error:
            self._fail_calls(f"the fork server sent invalid JSON lines: {error}")
        self._is_cut = True
        if not self.pid:  # it never was ready: whoever waits for its start hears that, and nobody lost it
            if self._started:
                await _dead(self._started, 1.0)
            self._fail_calls("the fork server ended")
            return
        self._fail_calls("the fork server ended")
        await _reaped(self.pid)
        if self.on_lost is not None:
            self.on_lost()

    def _handle(self, message: dict[str, Any]) -> None:
        if (fields := message.get("exited")) is not None:
            if self.on_exit is not None:
                asyncio.get_running_loop().call_soon(self.on_exit, WorkerExited(**fields))
        elif (fields := message.get("store_exited")) is not None:
            if self.on_store_exit is not None:
                asyncio.get_running_loop().call_soon(self.on_store_exit, StoreExited(**fields))
        elif (call := self._calls.get(message["id"])) is not None and not call.done():
            call.set_result(message)

    def _fail_calls(self, reason: str) -> None:
        for call in self._calls.values():
            if not call.done():
                call.set_exception(Unavailable(reason))

    def _log_tail(self) -> str:
        """The last line of its log, for an error of one line."""
        try:
            with open(self.run_dir / LOG, "rb") as file:
                file.seek(max(os.fstat(file.fileno()).st_size - 4096, 0))
                lines = file.read().decode("utf-8", "replace").strip().splitlines()
        except OSError:
            return f"no {self.run_dir / LOG}"
        return f"{lines[-1] if lines else 'nothing'} ({self.run_dir / LOG})"


def _spawn(run_dir: Path, args: Sequence[str], env: Mapping[str, str]) -> int:
    private.make_folder(run_dir)
    command = interpreter.command(MODULE, *args)
    log = str(run_dir / LOG)
    # Not by subprocess: its objects warn when they are dropped while the process still runs, as it should.
    return os.posix_spawn(
        command[0],
        command,
        env,
        setsid=True,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
    )


def _can_open(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _ended(pid: int) -> int | None:
    """The exit code of our own child, or minus its signal; None while it runs, and of a process that is no child."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if found else None


async def _reaped(pid: int, deadline_s: float = 5.0) -> bool:
    """Wait until the process is gone, and say whether it is; if it is our own child, leave no zombie."""
    is_gone = await _dead(pid, deadline_s)  # a zombie of another parent is not ours to wait for
    _ended(pid)
    return is_gone


async def _dead(pid: int, deadline_s: float = 5.0) -> bool:
    """Wait until the process is gone or a zombie, and say whether it is."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        process = process_tree.read(pid)
        if process is None or process.state in "ZX":
            return True
        await asyncio.sleep(0.005)
    return False
